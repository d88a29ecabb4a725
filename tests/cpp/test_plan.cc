#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>

#include "plan/registry.h"
#include "support/random.h"
#include "twofour/attention.h"

namespace twofour {
namespace {

AttentionProblem small_problem(Mode mode = Mode::kScore) {
  AttentionProblem p;
  p.heads_q = 2;
  p.seqlen_q = 96;
  p.seqlen_k = 300;
  p.causal = true;
  p.sparsity = preset(mode);
  return p;
}

/// Random tensors for a problem that is not packed.
struct Data {
  std::vector<float> q, k, v, o, lse;

  explicit Data(const AttentionProblem& p) {
    test::Random random(5);
    const auto fill = [&](std::vector<float>& data, std::int64_t count) {
      data.resize(count);
      for (float& x : data) x = static_cast<float>(random.normal());
    };
    fill(q, p.batch * p.seqlen_q * p.heads_q * p.head_dim);
    fill(k, p.batch * p.seqlen_k * p.heads_kv * p.head_dim);
    fill(v, p.batch * p.seqlen_k * p.heads_kv * p.head_dim_v);
    o.assign(p.batch * p.seqlen_q * p.heads_q * p.head_dim_v, -7.0f);
    lse.assign(p.batch * p.heads_q * p.seqlen_q, -7.0f);
  }

  AttentionArgs args(const AttentionProblem& p) {
    AttentionArgs a;
    a.q = contiguous(q.data(), DType::kF32, {p.batch, p.seqlen_q, p.heads_q, p.head_dim});
    a.k = contiguous(k.data(), DType::kF32, {p.batch, p.seqlen_k, p.heads_kv, p.head_dim});
    a.v = contiguous(v.data(), DType::kF32, {p.batch, p.seqlen_k, p.heads_kv, p.head_dim_v});
    a.o = contiguous(o.data(), DType::kF32, {p.batch, p.seqlen_q, p.heads_q, p.head_dim_v});
    a.lse = contiguous(lse.data(), DType::kF32, {p.batch, p.heads_q, p.seqlen_q});
    return a;
  }

  bool untouched() const {
    for (float x : o) {
      if (x != -7.0f) return false;
    }
    for (float x : lse) {
      if (x != -7.0f) return false;
    }
    return true;
  }
};

TEST(Plan, ListsEveryRowAndChoosesTheCheapest) {
  const AttentionProblem problem = small_problem();
  const auto plan = twofour::plan(problem, *cpu_device());
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const auto rows = kernels();
  ASSERT_EQ(plan->candidates().size(), rows.size());
  EXPECT_EQ(rows.back().id, "attention.ref");
  const Candidate* chosen = nullptr;
  for (const Candidate& candidate : plan->candidates()) {
    if (candidate.chosen) {
      EXPECT_EQ(chosen, nullptr);
      chosen = &candidate;
    }
  }
  ASSERT_NE(chosen, nullptr);
  EXPECT_EQ(chosen->kernel_id, plan->kernel_id());
  EXPECT_GT(chosen->seconds, 0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Candidate& candidate = plan->candidates()[i];
    EXPECT_EQ(candidate.kernel_id, rows[i].id);
    if (candidate.why_not.empty() && !rows[i].forced_only) {
      EXPECT_LE(chosen->seconds, candidate.seconds);
    }
    EXPECT_FALSE(candidate.chosen && rows[i].forced_only);
  }
  EXPECT_EQ(plan->problem().sparsity.block, 128);
  EXPECT_GE(plan->workspace_bytes(), chosen->workspace);
}

TEST(Plan, RowIdsAreUniqueNames) {
  std::set<std::string> ids;
  for (const Kernel& row : kernels()) {
    EXPECT_TRUE(ids.insert(row.id).second) << row.id;
    EXPECT_EQ(row.id.rfind("attention.", 0), 0u) << row.id;
  }
}

TEST(Plan, ExplainIsAnAlignedTable) {
  const auto plan = twofour::plan(small_problem(), *cpu_device());
  ASSERT_TRUE(plan.ok());
  std::istringstream text(plan->explain());
  std::string line;
  std::getline(text, line);
  EXPECT_EQ(line, "attention fp32 B=1 M=96 N=300 Hq=2 Hkv=1 D=64 Dv=64 causal exact/pair128/s1/l0");
  std::getline(text, line);
  EXPECT_EQ(line.rfind("on " + cpu_device()->name + " (" + cpu_device()->arch, 0), 0u) << line;
  std::getline(text, line);
  const std::size_t end_of_time = line.find("predicted") + 9;
  EXPECT_NE(line.find("workspace"), std::string::npos);
  std::size_t marked = 0, count = 0;
  while (std::getline(text, line)) {
    EXPECT_NE(line[end_of_time - 1], ' ') << line;  // numbers end where their heading ends
    EXPECT_EQ(line[end_of_time], ' ') << line;
    EXPECT_NE(line.back(), ' ');
    marked += line.rfind("* " + plan->kernel_id() + " ", 0) == 0;
    ++count;
  }
  EXPECT_EQ(marked, 1u);
  EXPECT_EQ(count, kernels().size());
}

TEST(Plan, ARowCanBeForced) {
  const auto plan = twofour::plan(small_problem(), *cpu_device(), {"attention.ref"});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->kernel_id(), "attention.ref");
  EXPECT_TRUE(plan->candidates().back().chosen);

  const auto unknown = twofour::plan(small_problem(), *cpu_device(), {"attention.fast"});
  EXPECT_EQ(unknown.status().code(), Code::kNotFound);
  EXPECT_EQ(unknown.status().message().rfind("kernel: expected one of ", 0), 0u);
  EXPECT_NE(unknown.status().message().find("got \"attention.fast\""), std::string::npos);
  EXPECT_NE(unknown.status().message().find("attention.ref"), std::string::npos);
  // The closest of the device come first; what the user wrote keeps the message on one line.
  EXPECT_EQ(twofour::plan(small_problem(), *cpu_device(), {"attention.cpu.int8.pairs\n"})
                .status()
                .message()
                .find("kernel: expected one of the ids that `twofour info` lists, such as "
                      "attention.cpu.int8.pair, "),
            0u);
  const std::string zero("attention.ref\0x", 15);
  const auto message = [&](const std::string& id) {
    return twofour::plan(small_problem(), *cpu_device(), {id}).status().message();
  };
  EXPECT_TRUE(message(zero).ends_with("got \"attention.ref\\x00x\"")) << message(zero);
  EXPECT_LT(message(std::string(1 << 20, 'a')).size(), 600u);
}

TEST(Plan, TheEnvironmentForcesARowUnlessTheCallDoes) {
  setenv("TWOFOUR_KERNEL", "attention.ref", 1);
  EXPECT_EQ(twofour::plan(small_problem(), *cpu_device())->kernel_id(), "attention.ref");
  setenv("TWOFOUR_KERNEL", "attention.fast", 1);
  const auto unknown = twofour::plan(small_problem(), *cpu_device());
  EXPECT_EQ(unknown.status().code(), Code::kNotFound);
  EXPECT_EQ(unknown.status().message().rfind("TWOFOUR_KERNEL: expected one of ", 0), 0u);
  EXPECT_TRUE(twofour::plan(small_problem(), *cpu_device(), {"attention.ref"}).ok());
  setenv("TWOFOUR_KERNEL", "attention.cpu.int8.none", 1);
  const auto unfit = twofour::plan(small_problem(), *cpu_device());
  EXPECT_EQ(unfit.status().message().rfind("TWOFOUR_KERNEL attention.cpu.int8.none cannot", 0), 0u);
  setenv("TWOFOUR_KERNEL", "no such name", 1);
  const auto bad = twofour::plan(small_problem(), *cpu_device());
  EXPECT_EQ(bad.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(bad.status().message().rfind("TWOFOUR_KERNEL: ", 0), 0u);
  unsetenv("TWOFOUR_KERNEL");
}

TEST(Plan, AutoIsTheFirstModeThatRunsAndDenseWhereShort) {
  AttentionProblem problem = small_problem(Mode::kRefined);  // not read
  const Device device = *cpu_device();
  const auto chosen = [&](std::int64_t m, std::int64_t n, const char* kernel = "") {
    problem.seqlen_q = m;
    problem.seqlen_k = n;
    const auto plan = plan_auto(problem, device, {kernel});
    return plan.ok() ? to_string(plan->problem().sparsity) : plan.status().message();
  };
  EXPECT_EQ(chosen(64, 1024), "int8/pair128/s1/l0");
  EXPECT_EQ(chosen(63, 1024), "exact/none");
  EXPECT_EQ(chosen(64, 1023), "exact/none");
  // A kernel asked for by name leaves what it can serve.
  EXPECT_EQ(chosen(64, 1024, "attention.cpu.exact.pair"), "exact/pair128/s1/l0");
  EXPECT_EQ(chosen(64, 1024, "attention.cpu.exact.none"), "exact/none");
  EXPECT_EQ(chosen(64, 1024, "attention.cpu.nm24.pair").rfind("kernel attention.cpu.nm24", 0), 0u);
}

TEST(Plan, AnEmptyPlanAnswersEverything) {
  const Plan empty;
  EXPECT_EQ(empty.kernel_id(), "");
  EXPECT_EQ(empty.problem().seqlen_k, 0);
  EXPECT_TRUE(empty.candidates().empty());
  EXPECT_EQ(empty.workspace_bytes(), 0u);
  EXPECT_EQ(empty.explain(), "");
  EXPECT_EQ(empty.run({}, nullptr, 0).code(), Code::kInvalidArgument);
}

TEST(Plan, ARefusalIsShortAndBeginsWithTheRowsOfTheDevice) {
  // Only the reference takes such a head, and it only runs when asked for by name.
  AttentionProblem problem = small_problem();
  problem.head_dim = 12;
  const auto plan = twofour::plan(problem, *cpu_device());
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), Code::kUnsupported);
  std::map<std::string, int> elsewhere;
  for (const Kernel& row : kernels())
    if (row.arch != "cpu" && row.arch != "any")
      ++elsewhere[row.why_not(row, problem, *cpu_device())];
  std::string expected =
      "no kernel serves this problem: refused, unsupported: head_dim 12, supported are the "
      "multiples of 8 from 8 to 256 (attention.cpu.*, 24 rows); runs only when asked for by name "
      "(attention.ref)";
  for (const auto& [reason, count] : elsewhere)
    expected += "; refused, " + reason + " (attention.*, " + std::to_string(count) + " rows)";
  EXPECT_EQ(plan.status().message(), expected);
}

TEST(Plan, ARefusalOnAnotherDeviceIsShort) {
  Device device;  // of an architecture without rows
  device.kind = DeviceKind::kCuda;
  device.arch = "sm_00";
  device.threads = 1;
  const auto plan = twofour::plan(small_problem(), device);
  ASSERT_FALSE(plan.ok());
  const std::string& message = plan.status().message();
  EXPECT_LT(message.size(), 600u);
  EXPECT_NE(message.find("runs on the CPU only (attention.cpu.*, 24 rows)"), std::string::npos)
      << message;
}

TEST(Plan, RefusalsOfManyKindsStayShort) {
  Device device;
  device.kind = DeviceKind::kCuda;
  device.arch = "sm_90";
  device.threads = 1;
  AttentionProblem problem = small_problem();
  problem.dtype = DType::kF16;
  problem.sparsity = *parse_sparsity("nm24/nm24_strided");
  for (const std::int64_t dim : {64, 128, 256}) {
    problem.head_dim = problem.head_dim_v = dim;
    const auto plan = twofour::plan(problem, device);
    ASSERT_FALSE(plan.ok());
    EXPECT_LT(plan.status().message().size(), 600u) << plan.status().message();
    EXPECT_EQ(plan.status().message().find('\n'), std::string::npos);
  }
}

TEST(Plan, ADeviceWithoutThreadsIsRefused) {
  Device device = *cpu_device();
  device.threads = 0;
  const auto plan = twofour::plan(small_problem(), device);
  EXPECT_EQ(plan.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(plan.status().message(), "device: expected at least 1 thread, got 0");
}

TEST(Plan, AContradictionIsNotPlanned) {
  AttentionProblem problem = small_problem();
  problem.heads_kv = 4;
  const auto plan = twofour::plan(problem, *cpu_device());
  EXPECT_EQ(plan.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(plan.status().message(), "heads_q: expected a multiple of heads_kv = 4, got 2");
}

TEST(Plan, AHugeWindowIsAnOpenOneForTheKeysItSees) {
  AttentionProblem problem = small_problem(Mode::kDense);
  problem.seqlen_q = 400;  // rows above the first key: p - left would overflow
  problem.window = {INT64_MAX, INT64_MAX};
  Data wide(problem), open(problem);
  ASSERT_TRUE(attention(problem, wide.args(problem)).ok());
  problem.window = {};
  ASSERT_TRUE(attention(problem, open.args(problem)).ok());
  for (std::size_t i = 0; i < open.o.size(); ++i) ASSERT_NEAR(wide.o[i], open.o[i], 1e-5);
}

TEST(Run, ErrorsWriteNothing) {
  const AttentionProblem problem = small_problem();
  for (const char* id : {"", "attention.ref"}) {
    const auto plan = twofour::plan(problem, *cpu_device(), {id});
    ASSERT_TRUE(plan.ok());
    Data data(problem);
    std::vector<std::byte> workspace(plan->workspace_bytes());
    AttentionArgs bad = data.args(problem);
    bad.v.shape[1] = 299;
    EXPECT_EQ(plan->run(bad, workspace.data(), workspace.size()).code(), Code::kInvalidArgument);
    const AttentionArgs good = data.args(problem);
    if (!workspace.empty()) {
      const Status small = plan->run(good, workspace.data(), workspace.size() - 1);
      EXPECT_EQ(small.message(), "workspace: expected at least " +
                                     std::to_string(workspace.size()) + " bytes, got " +
                                     std::to_string(workspace.size() - 1));
      const Status null = plan->run(good, nullptr, workspace.size());
      EXPECT_NE(null.message().find("got a null pointer"), std::string::npos);
      std::vector<float> room(data.v.size() + workspace.size() / 4 + 1);
      AttentionArgs shared = good;
      shared.v.data = room.data() + workspace.size() / 4;
      const Status overlap = plan->run(shared, room.data() + 1, workspace.size());
      EXPECT_EQ(overlap.message(),
                "workspace: expected memory that overlaps nothing else, got an overlap with v");
    }
    EXPECT_TRUE(data.untouched()) << id;
    EXPECT_TRUE(plan->run(good, workspace.data(), workspace.size()).ok());
    EXPECT_FALSE(data.untouched());
  }
}

TEST(Run, AnyWorkspaceAddressGivesTheSameBits) {
  const AttentionProblem problem = small_problem(Mode::kInt8);
  const auto plan = twofour::plan(problem, *cpu_device());
  ASSERT_TRUE(plan.ok());
  std::vector<float> first;
  for (const std::size_t shift : {0, 1, 17, 63}) {
    Data data(problem);
    std::vector<std::byte> workspace(plan->workspace_bytes() + shift, std::byte{0xA5});
    ASSERT_TRUE(
        plan->run(data.args(problem), workspace.data() + shift, plan->workspace_bytes()).ok());
    if (first.empty()) first = data.o;
    EXPECT_EQ(data.o, first) << shift;
  }
}

TEST(Attention, TakesShapesFromTheViews) {
  const AttentionProblem shaped = small_problem(Mode::kDense);
  Data data(shaped), forced(shaped);
  AttentionProblem bare;
  bare.causal = true;
  ASSERT_TRUE(attention(bare, data.args(shaped)).ok());
  const auto plan = twofour::plan(shaped, *cpu_device(), {"attention.ref"});
  std::vector<std::byte> workspace(plan->workspace_bytes());
  ASSERT_TRUE(plan->run(forced.args(shaped), workspace.data(), workspace.size()).ok());
  for (std::size_t i = 0; i < data.o.size(); ++i) ASSERT_NEAR(data.o[i], forced.o[i], 1e-5);

  AttentionArgs flat = data.args(shaped);
  flat.q.rank = 2;
  const Status status = attention(bare, flat);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message().rfind("q: expected shape ", 0), 0u) << status.message();
}

}  // namespace
}  // namespace twofour
