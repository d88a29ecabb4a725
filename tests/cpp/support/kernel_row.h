// Every row of the registry on every instruction set of this machine, against the reference.
#pragma once

#include <cctype>
#include <optional>

#include "cpu/targets.h"
#include "kernel_run.h"

namespace twofour::test {

struct Param {
  std::string id;
  KernelConfig config;
};

inline void PrintTo(const Param& param, std::ostream* out) { *out << param.id; }

/// Every row that is not a debugging one; the reference is its own.
inline std::vector<Param> all_params() {
  std::vector<Param> params;
  for (const Kernel& row : kernels()) {
    const bool on_cpu = row.arch == "cpu" && !row.config.trace;
    if (on_cpu || row.id == "attention.ref") params.push_back({row.id, row.config});
  }
  return params;
}

inline std::string param_name(const testing::TestParamInfo<Param>& info) {
  std::string name = info.param.id;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

class KernelRow : public testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    for (const std::string& target : cpu::supported_targets()) {
      const ScopedVariable variable("TWOFOUR_CPU_TARGET", target);
      const Result<Device> device = cpu_device();
      ASSERT_TRUE(device.ok()) << device.status().message();
      ASSERT_EQ(device->arch, target);
      devices_.push_back(*device);
      if (is_reference()) break;  // the same on all of them
    }
    ASSERT_FALSE(devices_.empty());
  }

  bool is_reference() const { return GetParam().id == "attention.ref"; }
  std::string trace_id() const { return GetParam().id + (is_reference() ? "" : ".trace"); }

  /// A sparsity of this row's kind; what it cannot have is left out. The reference serves all
  /// kinds, and takes a different one each time.
  Sparsity sparsity(int block, int sink, int local, std::optional<float> refine = {},
                    std::optional<float> drop = {}) {
    QKProduct qk = GetParam().config.qk;
    ScorePattern score = GetParam().config.score;
    if (is_reference()) {
      qk = static_cast<QKProduct>(turn_ % 3);
      score = static_cast<ScorePattern>(turn_ / 3 % 4);
      ++turn_;
    }
    Sparsity sparsity{qk, score, block, sink, local, {}, {}};
    if (qk == QKProduct::kNm24 && score != ScorePattern::kNm24Strided) sparsity.refine = refine;
    if (score != ScorePattern::kNm24Strided) sparsity.drop = drop;
    return sparsity;
  }

  AttentionProblem problem(std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t head_dim,
                           std::int64_t head_dim_v, const Sparsity& sparsity) {
    AttentionProblem problem;
    problem.seqlen_q = seqlen_q;
    problem.seqlen_k = seqlen_k;
    problem.head_dim = head_dim;
    problem.head_dim_v = head_dim_v;
    problem.sparsity = sparsity;
    return problem;
  }

  /// Runs the row and its debugging row on every instruction set and holds both against the
  /// reference; returns how the last one agreed.
  Agreement check(AttentionCase& c, Layout layout = Layout::kContiguous) {
    SCOPED_TRACE(describe(c));
    Agreement agreement;
    Judged judged;
    for (const Device& device : devices_) {
      SCOPED_TRACE(device.arch);
      agreement = check_on(c, device, layout, &judged);
      if (HasFailure()) break;
    }
    c.prepared = nullptr;
    return agreement;
  }

  /// What was replayed last, kept so that targets with the same decisions share one replay.
  struct Judged {
    PreparedK prepared;
    Decisions decisions;
    std::optional<Result<ref::Output>> expected;
  };

  Agreement check_on(AttentionCase& c, const Device& device, Layout layout, Judged* judged) {
    PreparedK prepared;
    if (c.problem.sparsity.qk == QKProduct::kInt8) {
      c.prepared = nullptr;
      const ScopedVariable variable("TWOFOUR_CPU_TARGET", device.arch);
      Result<PreparedK> made = prepare_k(c.problem, c.args());
      EXPECT_TRUE(made.ok()) << made.status().message();
      if (!made.ok()) return {};
      prepared = *std::move(made);
      check_prepared(c, prepared);
      const KernelOutput own = run_kernel(c, GetParam().id, device, false, layout);
      c.prepared = &prepared;
      const KernelOutput given = run_kernel(c, GetParam().id, device, false, layout);
      EXPECT_TRUE(own.o.bytes() == given.o.bytes())
          << "the prepared K is not what the row computes";
    }
    KernelOutput plain = run_kernel(c, GetParam().id, device, false, layout);
    EXPECT_TRUE(plain.status.ok()) << plain.status.message();
    KernelOutput traced = run_kernel(c, trace_id(), device, true, layout);
    EXPECT_TRUE(traced.status.ok()) << traced.status.message();
    if (!plain.status.ok() || !traced.status.ok()) return {};
    EXPECT_TRUE(plain.o.bytes() == traced.o.bytes()) << "tracing changed the output";

    if (!judged->expected || judged->decisions.kept != traced.decisions.kept ||
        judged->decisions.unit != traced.decisions.unit ||
        judged->prepared.codes != prepared.codes || judged->prepared.scale != prepared.scale ||
        judged->prepared.mean != prepared.mean) {
      ref::Options options;
      options.replay = &traced.decisions;
      judged->expected = ref::attention(c.problem, c.args(), options);
      judged->decisions = traced.decisions;
      judged->prepared = prepared;
    }
    const Result<ref::Output>& expected = *judged->expected;
    EXPECT_TRUE(expected.ok()) << expected.status().message();
    if (!expected.ok()) return {};
    for (const KernelOutput* out : {&plain, &traced}) expect_counts(out->stats, expected->stats);
    total_.units += expected->stats.units;
    total_.refined += expected->stats.refined;
    total_.dropped += expected->stats.dropped;
    return compare_with_reference(c, plain, *expected);
  }

  /// The public prepared K against the definition: scales and mean to fp32 rounding, codes to one.
  void check_prepared(AttentionCase& c, const PreparedK& got) {
    const Result<PreparedK> expected = ref::prepare_k(c.problem, c.args());
    ASSERT_TRUE(expected.ok());
    ASSERT_EQ(got.block, expected->block);
    ASSERT_EQ(got.block_offset, expected->block_offset);
    ASSERT_EQ(got.codes.size(), expected->codes.size());
    ASSERT_EQ(got.mean.size(), expected->mean.size());
    ASSERT_EQ(got.scale.size(), expected->scale.size());
    const auto near = [](float a, float b, float size) {
      return (std::isnan(a) && std::isnan(b)) || std::fabs(a - b) <= 4 * 0x1p-23f * size;
    };
    float largest = 0;
    for (float m : expected->mean) largest = std::max(largest, std::fabs(m));
    for (float s : expected->scale) largest = std::max(largest, std::isnan(s) ? 0 : 127 * s);
    for (std::size_t n = 0; n < got.mean.size(); ++n) {
      ASSERT_TRUE(near(got.mean[n], expected->mean[n], largest)) << n;
    }
    for (std::size_t n = 0; n < got.scale.size(); ++n) {
      ASSERT_TRUE(near(got.scale[n], expected->scale[n], largest)) << n;
    }
    for (std::size_t n = 0; n < got.codes.size(); ++n) {
      ASSERT_LE(std::abs(got.codes[n] - expected->codes[n]), 1) << n;
    }
  }

  static std::string describe(const AttentionCase& c) {
    const AttentionProblem& p = c.problem;
    std::string text = to_string(p.sparsity) + " " + to_string(p.dtype) + " B" +
                       std::to_string(p.batch) + " M" + std::to_string(p.seqlen_q) + " N" +
                       std::to_string(p.seqlen_k) + " H" + std::to_string(p.heads_q) + "/" +
                       std::to_string(p.heads_kv) + " D" + std::to_string(p.head_dim) + "/" +
                       std::to_string(p.head_dim_v);
    if (p.causal) text += p.align == Align::kTopLeft ? " causal top-left" : " causal";
    if (!p.window.open()) {
      text += " window " + std::to_string(p.window.left) + "," + std::to_string(p.window.right);
    }
    if (p.packed) text += " packed";
    if (p.has_mask) text += " mask";
    if (p.has_transform) text += " transform";
    return text;
  }

  std::vector<Device> devices_;
  AttentionStats total_;
  int turn_ = 0;
};

}  // namespace twofour::test
