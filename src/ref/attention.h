// The reference: attention in fp64, one plain loop per line of docs/semantics.md.
//
// Slow and meant to be read. It shares no schedule, pattern or quantisation code with the kernels,
// so that an error there cannot hide here.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/registry.h"
#include "twofour/attention.h"

namespace twofour::ref {

/// How a kernel holds the weights exp(score - max) while they multiply V: what the bounds allow for
/// besides fp32. The sum of the weights stays fp32.
struct WeightFormat {
  double rounding = 0;  // relative, of one weight
  double floor = 0;     // absolute, of one weight beside the row's largest of 1
};

/// Weights rounded once to the dtype of V, as on CUDA; their scale is at most twice the largest.
constexpr WeightFormat weights_in(DType dtype) {
  const bool fp16 = dtype == DType::kF16;
  return {fp16 ? 0x1p-11 : 0x1p-8, fp16 ? 0x1p-24 : 0};
}

struct Options {
  /// int8: the keys to use instead of args.prepared_k; null for both computes them.
  const PreparedK* prepared = nullptr;
  /// Take what was kept, refined and dropped from here, after checking that each decision is
  /// admissible within the rounding bound of docs/semantics.md ("Near ties").
  const Decisions* replay = nullptr;
  WeightFormat weights;
};

/// Rows are numbered as in Decisions: b * M + i, or the token index when packed.
struct Output {
  std::vector<double> o;    // [B,M,Hq,Dv], packed [Tq,Hq,Dv]
  std::vector<double> lse;  // [B,Hq,M], packed [Hq,Tq]; natural log
  /// How far an fp32 kernel that made the same decisions may be from `o` and `lse`, the rounding of
  /// its output aside and that of Options::weights included; infinite where fp32 overflows.
  std::vector<double> o_bound;    // as o
  std::vector<double> lse_bound;  // as lse
  /// 1 where a non-finite key or value is live for the row's row block: rule 9 lets it spread
  /// there.
  std::vector<std::uint8_t> tainted;  // [Hq, rows]
  Decisions decisions;
  AttentionStats stats;
  /// Replay: over the decisions that fp64 would have made otherwise, the largest share of its
  /// rounding bound that one used; 0 when none differed, at most 1.
  double max_bound_used = 0;
  /// nm24: groups of four channels whose selection depends on the rounding of q'. A kernel may keep
  /// other channels there, so that its unrefined scores are not comparable. Decisions do not hold
  /// these choices.
  std::int64_t ambiguous_query_groups = 0;
};

/// Computes attention as docs/semantics.md says. `args` as check_args accepts them; o, lse, stats
/// and decisions are not touched. Errors: those of validate(problem); kInvalidArgument for a
/// prepared K or decisions of the wrong size, and for the first inadmissible replayed decision,
/// naming head, row, key or unit, the two values and the bound.
Result<Output> attention(const AttentionProblem& problem, const AttentionArgs& args,
                         const Options& options = {});

/// The prepared K of rule 5, by definition: liveness pair by pair, the mean summed in fp64.
/// Errors: those of validate(problem).
Result<PreparedK> prepare_k(const AttentionProblem& problem, const AttentionArgs& args);

/// The row "attention.ref", which serves everything valid and is only ever forced.
const Kernel& reference_kernel();

}  // namespace twofour::ref
