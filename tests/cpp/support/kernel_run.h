// Running a row of the registry on a case, and judging what it wrote against the reference.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "attention_case.h"
#include "plan/registry.h"
#include "ref/attention.h"

namespace twofour::test {

/// Sets an environment variable for as long as it lives.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) {
    const char* old = std::getenv(name);
    had_ = old != nullptr;
    if (had_) old_ = old;
    setenv(name, value.c_str(), 1);
  }
  ~ScopedVariable() {
    if (had_) {
      setenv(name_, old_.c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
  bool had_ = false;
  std::string old_;
};

/// What one launch wrote.
struct KernelOutput {
  Status status;
  Tensor o;
  std::vector<float> lse;
  AttentionStats stats;
  Decisions decisions;
};

/// Plans the case on one row of the registry and runs it with outputs that start as NaN.
inline KernelOutput run_kernel(AttentionCase& c, const std::string& id, const Device& device,
                               bool trace = false, Layout layout = Layout::kContiguous) {
  KernelOutput out;
  AttentionProblem problem = c.problem;
  problem.trace = trace;
  problem.has_prepared_k = c.prepared != nullptr;
  Result<Plan> planned = plan(problem, device, {id});
  if (!planned.ok()) {
    out.status = planned.status();
    return out;
  }
  const AttentionProblem& p = problem;
  const std::int64_t rows = p.packed ? p.total_q : p.batch * p.seqlen_q;
  out.o =
      Tensor(p.dtype,
             p.packed ? std::array<std::int64_t, 4>{1, rows, p.heads_q, p.head_dim_v}
                      : std::array<std::int64_t, 4>{p.batch, p.seqlen_q, p.heads_q, p.head_dim_v},
             layout, p.packed);
  out.lse.assign(rows * p.heads_q, std::numeric_limits<float>::quiet_NaN());
  AttentionArgs args = c.args();
  args.o = out.o.view();
  args.lse = p.packed ? contiguous(out.lse.data(), DType::kF32, {p.heads_q, rows})
                      : contiguous(out.lse.data(), DType::kF32, {p.batch, p.heads_q, p.seqlen_q});
  args.stats = &out.stats;
  if (trace) {
    out.decisions = make_decisions(problem);
    args.decisions = &out.decisions;
  }
  std::vector<std::byte> workspace(planned->workspace_bytes(), std::byte{0xFF});
  out.status = planned->run(args, workspace.data(), workspace.size());
  return out;
}

inline void expect_counts(const AttentionStats& got, const AttentionStats& expected) {
  EXPECT_EQ(got.units, expected.units);
  EXPECT_EQ(got.refined, expected.refined);
  EXPECT_EQ(got.dropped, expected.dropped);
  EXPECT_EQ(got.pruned_pairs, expected.pruned_pairs);
  EXPECT_EQ(got.live_pairs, expected.live_pairs);
}

/// Half the distance between neighbours of an output dtype near x: what storing x may lose.
inline double storing_error(DType dtype, double x) {
  const double relative = dtype == DType::kF16 ? 0x1p-11 : dtype == DType::kBF16 ? 0x1p-8 : 0x1p-24;
  const double smallest = dtype == DType::kF16 ? 0x1p-25 : 0x1p-130;
  return 1.01 * (relative * std::fabs(x) + smallest);
}

/// How well a kernel agreed with the reference.
struct Agreement {
  std::int64_t compared = 0;
  double worst_share = 0;  // of an element's bound
  double sum_of_squares = 0;
};

inline void compare_element(double got, double expected, double bound, const std::string& where,
                            Agreement* agreement) {
  if (std::isnan(expected) || std::isinf(expected)) {
    EXPECT_TRUE(std::isnan(expected) ? std::isnan(got) : got == expected)
        << where << ": expected " << expected << ", got " << got;
    return;
  }
  if (std::isinf(bound)) return;  // beyond the range of fp32
  ++agreement->compared;
  const double difference = std::fabs(got - expected);
  if (!(difference <= bound)) {
    ADD_FAILURE() << where << ": expected " << expected << " within " << bound << ", got " << got;
    return;
  }
  if (bound > 0) agreement->worst_share = std::max(agreement->worst_share, difference / bound);
  agreement->sum_of_squares += difference * difference;
}

/// Compares every row that no non-finite key or value may have spread to.
inline Agreement compare_with_reference(const AttentionCase& c, const KernelOutput& got,
                                        const ref::Output& expected) {
  Agreement agreement;
  const AttentionProblem& p = c.problem;
  const std::int64_t rows = p.packed ? p.total_q : p.batch * p.seqlen_q;
  const std::int64_t per_batch = p.packed ? rows : p.seqlen_q;
  for (std::int64_t row = 0; row < rows && !testing::Test::HasFailure(); ++row) {
    const std::int64_t b = row / per_batch, i = row % per_batch;
    for (std::int64_t h = 0; h < p.heads_q; ++h) {
      if (expected.tainted[h * rows + row]) continue;
      const std::string where = "head " + std::to_string(h) + " row " + std::to_string(row);
      for (std::int64_t d = 0; d < p.head_dim_v; ++d) {
        const std::int64_t at = (row * p.heads_q + h) * p.head_dim_v + d;
        compare_element(got.o.get(b, i, h, d), expected.o[at],
                        expected.o_bound[at] + storing_error(p.dtype, expected.o[at]),
                        where + " o[" + std::to_string(d) + "]", &agreement);
      }
      const std::int64_t at = (b * p.heads_q + h) * per_batch + i;
      compare_element(got.lse[at], expected.lse[at],
                      expected.lse_bound[at] + storing_error(DType::kF32, expected.lse[at]),
                      where + " lse", &agreement);
    }
  }
  return agreement;
}

}  // namespace twofour::test
