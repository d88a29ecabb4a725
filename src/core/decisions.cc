#include "core/decisions.h"

namespace twofour {

Decisions decisions_shape(const AttentionProblem& problem) {
  const std::int64_t block = resolved(problem.sparsity, problem.head_dim).block;
  Decisions shape;
  shape.heads = problem.heads_q;
  shape.rows = problem.packed ? problem.total_q : problem.batch * problem.seqlen_q;
  shape.keys = problem.seqlen_k;
  shape.words = (problem.seqlen_k + 63) / 64;
  shape.half_blocks = 2 * ((problem.seqlen_k + block - 1) / block);
  return shape;
}

Decisions make_decisions(const AttentionProblem& problem) {
  Decisions decisions = decisions_shape(problem);
  const auto rows = static_cast<std::size_t>(decisions.heads * decisions.rows);
  decisions.kept.resize(rows * decisions.words);
  decisions.unit.resize(rows * decisions.half_blocks);
  return decisions;
}

}  // namespace twofour
