#include "check_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "compare.h"
#include "core/half.h"
#include "cuda/prepare_k.h"
#include "cuda_call.h"

namespace twofour::tool {
namespace {

constexpr std::byte kUntouched{0xFF};  // NaN in every format: an element left out is seen
constexpr std::size_t kGuard = 64;
constexpr double kReferencePairs = 1 << 13;  // the reference's own row runs up to here

/// Outputs of one run.
struct Outputs {
  std::vector<std::byte> o, lse;
  AttentionStats stats;
  Decisions decisions;
};

class CaseCheck {
 public:
  CaseCheck(const io::Case& c, const Device& device, Tally* tally)
      : case_(c), device_(device), tally_(tally), memory_(io::make_case_memory(c)) {}

  void run(const Selection& selection) {
    if (on_cuda()) {
      Result<std::unique_ptr<CudaCall>> made =
          CudaCall::make(case_.problem, memory_->args, device_);
      if (!made.ok()) return fail("cuda", made.status().message());
      cuda_ = *std::move(made);
    }
    if (case_.problem.sparsity.qk == QKProduct::kInt8 && !prepare()) return;
    for (const Family& family : selection.families) check_family(family);
    if (selection.reference && pairs() <= kReferencePairs) check_reference_row();
  }

 private:
  bool on_cuda() const { return device_.kind == DeviceKind::kCuda; }

  double pairs() const {
    const AttentionProblem& p = case_.problem;
    const double batch = static_cast<double>(p.packed ? 1 : p.batch);
    const double rows = static_cast<double>(p.packed ? p.total_q : p.seqlen_q);
    return batch * rows * static_cast<double>(p.heads_q) * static_cast<double>(p.seqlen_k);
  }

  void fail(const std::string& kernel, const std::string& message) {
    ++tally_->rows[kernel].failed;
    tally_->failures.push_back({kernel, device_.arch, case_.text, message});
  }

  /// The public prepared K, checked against the numbers it stands for.
  bool prepare() {
    Result<PreparedK> prepared = on_cuda()
                                     ? cuda::prepare_k(case_.problem, cuda_->args(), device_.index)
                                     : prepare_k(case_.problem, memory_->args);
    // A device whose rows all refuse the problem; each says so when it is asked.
    if (on_cuda() && prepared.status().code() == Code::kUnsupported) return true;
    if (!prepared.ok()) {
      fail("prepare_k", prepared.status().message());
      return false;
    }
    const Result<PreparedK> expected = ref::prepare_k(case_.problem, memory_->args);
    if (!expected.ok()) {
      fail("prepare_k", expected.status().message());
      return false;
    }
    prepared_ = *std::move(prepared);
    const std::string wrong = compare_prepared(*expected);
    if (!wrong.empty()) fail("prepare_k", wrong);
    return wrong.empty();
  }

  float key(std::int64_t row, std::int64_t head, std::int64_t d) const {
    const AttentionProblem& p = case_.problem;
    const ConstTensorView& k = memory_->args.k;
    const auto& s = k.stride;
    const std::int64_t at =
        p.packed ? row * s[0] + head * s[1] + d * s[2]
                 : row / p.seqlen_k * s[0] + row % p.seqlen_k * s[1] + head * s[2] + d * s[3];
    return load_float(k.data, p.dtype, at);
  }

  /// Mean and scales near the reference's; every code stands for its key to half a step.
  std::string compare_prepared(const PreparedK& expected) const {
    const PreparedK& got = *prepared_;
    if (got.codes.size() != expected.codes.size() || got.scale.size() != expected.scale.size() ||
        got.mean.size() != expected.mean.size() || got.block_offset != expected.block_offset)
      return "prepared K: sizes differ from the reference";
    double largest = 0;
    for (std::int64_t h = 0; h < got.heads_kv; ++h)
      for (std::int64_t row = 0; row < got.rows; ++row)
        for (std::int64_t d = 0; d < got.head_dim; ++d)
          if (const double k = std::fabs(key(row, h, d)); std::isfinite(k))
            largest = std::max(largest, k);
    // An fp32 sum of all keys, each rounding of at most their sum.
    const double mean_bound = largest * (static_cast<double>(got.rows) + 8) * 0x1p-24;
    for (std::size_t i = 0; i < got.mean.size(); ++i)
      if (!(std::fabs(double{got.mean[i]} - expected.mean[i]) <= mean_bound))
        return fmt::format("prepared K: mean {}: expected {}, got {}", i, expected.mean[i],
                           got.mean[i]);
    for (std::size_t i = 0; i < got.scale.size(); ++i) {
      if (std::isnan(got.scale[i]) && std::isnan(expected.scale[i])) continue;
      const double bound = 2 * mean_bound / 127 + 0x1p-22 * std::fabs(expected.scale[i]);
      // Rounding decides whether a block of nearly equal keys has scale 0, which becomes 1.
      const bool both_tiny = std::min(got.scale[i], expected.scale[i]) <= bound;
      if (!(std::fabs(double{got.scale[i]} - expected.scale[i]) <= bound) && !both_tiny)
        return fmt::format("prepared K: scale {}: expected {}, got {}", i, expected.scale[i],
                           got.scale[i]);
    }
    return compare_codes(expected);
  }

  std::string compare_codes(const PreparedK& expected) const {
    const PreparedK& got = *prepared_;
    const AttentionProblem& p = case_.problem;
    for (std::int64_t h = 0; h < got.heads_kv; ++h)
      for (std::int64_t row = 0; row < got.rows; ++row) {
        const auto b = static_cast<std::int64_t>(
            p.packed ? std::upper_bound(case_.cu_seqlens_k.begin(), case_.cu_seqlens_k.end(), row) -
                           case_.cu_seqlens_k.begin() - 1
                     : row / p.seqlen_k);
        const std::int64_t in_sequence =
            p.packed ? row - case_.cu_seqlens_k[static_cast<std::size_t>(b)] : row % p.seqlen_k;
        const std::int64_t block =
            got.block_offset[static_cast<std::size_t>(b)] + in_sequence / got.block;
        const double scale = got.scale[static_cast<std::size_t>(h * got.blocks + block)];
        if (std::isnan(scale)) continue;  // the codes of a poisoned block mean nothing
        const std::int8_t* codes =
            &got.codes[static_cast<std::size_t>((h * got.rows + row) * got.head_dim)];
        const std::int8_t* wanted =
            &expected.codes[static_cast<std::size_t>((h * got.rows + row) * got.head_dim)];
        const auto is_zero = [&](const std::int8_t* c) {
          return std::all_of(c, c + got.head_dim, [](std::int8_t code) { return code == 0; });
        };
        if (is_zero(codes) && is_zero(wanted)) continue;  // a dead key, or one at the mean
        for (std::int64_t d = 0; d < got.head_dim; ++d) {
          const double mean =
              got.mean[static_cast<std::size_t>((h * p.batch + b) * got.head_dim + d)];
          const double centred = double{key(row, h, d)} - mean;
          const double step = std::fabs(centred - codes[d] * scale) / scale;
          if (!(step <= 0.5 + 1e-4 + std::fabs(centred) / scale * 0x1p-20))
            return fmt::format(
                "prepared K: code of key {}, head {}, channel {}: {} is {:.3g} steps "
                "from the key",
                row, h, d, codes[d], step);
        }
      }
    return "";
  }

  /// Runs a row as a caller would. Nothing when it refused or failed; a failure is recorded.
  std::optional<Outputs> launch(const Kernel& row, bool trace, bool give_prepared) {
    AttentionProblem problem = case_.problem;
    problem.trace = trace;
    problem.has_prepared_k = give_prepared && prepared_.has_value() && !on_cuda();
    PlanOptions options;
    options.kernel_id = row.id;
    const Result<Plan> plan = twofour::plan(problem, device_, options);
    if (!plan.ok()) {
      if (plan.status().code() == Code::kUnsupported) {
        ++tally_->rows[row.id].refused;
      } else {
        fail(row.id, plan.status().message());
      }
      return std::nullopt;
    }
    Outputs out;
    AttentionArgs args = memory_->args;
    args.prepared_k = problem.has_prepared_k ? &*prepared_ : nullptr;
    args.stats = &out.stats;
    if (trace) {
      out.decisions = make_decisions(plan->problem());
      args.decisions = &out.decisions;
    }
    std::fill(memory_->o.bytes.begin(), memory_->o.bytes.end(), kUntouched);
    std::fill(memory_->lse.bytes.begin(), memory_->lse.bytes.end(), kUntouched);
    std::string outside;
    const Status status =
        on_cuda() ? cuda_->run(*plan, args, &outside) : run_on_cpu(*plan, args, &outside);
    if (!status.ok()) outside = status.message();
    if (!outside.empty()) {
      fail(row.id, outside);
      return std::nullopt;
    }
    if (!padding_untouched()) {
      fail(row.id, "wrote between the rows of o");
      return std::nullopt;
    }
    out.o = memory_->o.bytes;
    out.lse = memory_->lse.bytes;
    return out;
  }

  static Status run_on_cpu(const Plan& plan, const AttentionArgs& args, std::string* outside) {
    // Starts off alignment, ends in a guard.
    constexpr std::size_t kOffset = 8;
    std::vector<std::byte> workspace(kOffset + plan.workspace_bytes() + kGuard, kUntouched);
    const Status status = plan.run(args, workspace.data() + kOffset, plan.workspace_bytes());
    const auto untouched = [](std::byte b) { return b == kUntouched; };
    if (!std::all_of(workspace.end() - kGuard, workspace.end(), untouched) ||
        !std::all_of(workspace.begin(), workspace.begin() + kOffset, untouched))
      *outside = "wrote outside its workspace";
    return status;
  }

  /// Layout fused gives every row of o one element that is not its own.
  bool padding_untouched() const {
    if (case_.layout != io::CaseLayout::kFused) return true;
    const std::size_t element = size_of(case_.problem.dtype);
    const std::size_t row = static_cast<std::size_t>(case_.problem.head_dim_v + 1) * element;
    for (std::size_t end = row; end <= memory_->o.bytes.size(); end += row)
      for (std::size_t i = end - element; i < end; ++i)
        if (memory_->o.bytes[i] != kUntouched) return false;
    return true;
  }

  /// The reference with the same prepared K and, when given, the same decisions.
  Result<ref::Output> reference(const Decisions* replay) {
    AttentionProblem problem = case_.problem;
    problem.sparsity = resolved(problem.sparsity, problem.head_dim);
    ref::Options options;
    options.prepared = prepared_ ? &*prepared_ : nullptr;
    options.replay = replay;
    if (on_cuda()) options.weights = ref::weights_in(problem.dtype);
    return ref::attention(problem, memory_->args, options);
  }

  /// Records whether `out` is what the reference says.
  bool judge(const Kernel& row, const Outputs& out, const ref::Output& expected) {
    memory_->o.bytes = out.o;
    memory_->lse.bytes = out.lse;
    RowTally& tally = tally_->rows[row.id];
    const Comparison comparison = compare(case_.problem, memory_->args, expected);
    if (!comparison.where.empty()) {
      fail(row.id, comparison.where);
      return false;
    }
    tally.worst_error = std::max(tally.worst_error, comparison.worst);
    if (const std::string wrong = compare_counts(out.stats, expected.stats); !wrong.empty()) {
      fail(row.id, wrong);
      return false;
    }
    tally.pruned_pairs += out.stats.pruned_pairs;
    return true;
  }

  void check_family(const Family& family) {
    std::optional<Outputs> traced;
    if (family.twin != nullptr) traced = launch(*family.twin, true, true);
    std::optional<Outputs> plain;
    if (family.row != nullptr) plain = launch(*family.row, false, true);
    if (!traced && !plain) return;

    const std::string& blamed = traced ? family.twin->id : family.row->id;
    const Result<ref::Output> expected = reference(traced ? &traced->decisions : nullptr);
    if (!expected.ok()) {
      fail(blamed, expected.status().message());
      return;
    }
    if (traced && judge(*family.twin, *traced, *expected)) {
      RowTally& tally = tally_->rows[family.twin->id];
      tally.worst_decision = std::max(tally.worst_decision, expected->max_bound_used);
      ++tally.passed;
    }
    if (!plain || !judge(*family.row, *plain, *expected)) return;
    const auto same = [&](const std::optional<Outputs>& again) {
      return again && again->o == plain->o && again->lse == plain->lse;
    };
    if (!same(launch(*family.row, false, true))) {
      fail(family.row->id, "a second run gave other bits");
    } else if (!on_cuda() && prepared_ && !same(launch(*family.row, false, false))) {
      fail(family.row->id, "preparing K itself gave other bits than the prepared K");
    } else {
      ++tally_->rows[family.row->id].passed;
    }
  }

  void check_reference_row() {
    const Kernel& row = ref::reference_kernel();
    const std::optional<Outputs> out = launch(row, false, true);
    if (!out) return;
    const Result<ref::Output> expected = reference(nullptr);
    if (!expected.ok()) {
      fail(row.id, expected.status().message());
    } else if (judge(row, *out, *expected)) {
      ++tally_->rows[row.id].passed;
    }
  }

  const io::Case& case_;
  const Device& device_;
  Tally* tally_;
  std::unique_ptr<io::CaseMemory> memory_;
  std::optional<PreparedK> prepared_;
  std::unique_ptr<CudaCall> cuda_;  // with a CUDA device
};

}  // namespace

Selection select_rows(const std::string& filter, const Device& device) {
  const auto find = [](const std::string& id) -> const Kernel* {
    for (const Kernel& row : kernels())
      if (row.id == id) return &row;
    return nullptr;
  };
  constexpr std::string_view kTwin = ".trace";
  Selection out;
  for (const Kernel& row : kernels()) {
    const bool reference = row.id == ref::reference_kernel().id;
    if (row.id.find(filter) == std::string::npos) continue;
    if (!is_for(row, device)) continue;
    if (reference) {
      out.reference = true;
    } else if (!row.config.trace) {
      out.families.push_back({&row, find(row.id + std::string(kTwin))});
    } else if (const std::string base = row.id.substr(0, row.id.size() - kTwin.size());
               base.find(filter) == std::string::npos || find(base) == nullptr) {
      out.families.push_back({nullptr, &row});
    }
  }
  return out;
}

void check_case(const io::Case& c, const Device& device, const Selection& selection, Tally* tally) {
  CaseCheck(c, device, tally).run(selection);
}

}  // namespace twofour::tool
