// Hand-made scores: what a row sees of a key is written down, not drawn.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attention_case.h"
#include "ref/attention.h"

namespace twofour::test {

inline std::vector<std::int64_t> kept_keys(const Decisions& decisions, std::int64_t head,
                                           std::int64_t row) {
  std::vector<std::int64_t> keys;
  for (std::int64_t j = 0; j < decisions.keys; ++j) {
    if (decisions.is_kept(head, row, j)) keys.push_back(j);
  }
  return keys;
}

/// begin, begin + 1, ... end - 1.
inline std::vector<std::int64_t> range(std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> keys;
  for (std::int64_t j = begin; j < end; ++j) keys.push_back(j);
  return keys;
}

/// Runs the reference and fails the test when it refuses.
inline ref::Output run_reference(AttentionCase& c, const ref::Options& options = {}) {
  Result<ref::Output> out = ref::attention(c.problem, c.args(), options);
  EXPECT_TRUE(out.ok()) << out.status().message();
  return out.ok() ? *std::move(out) : ref::Output{};
}

/// One sequence and head of head_dim 8 with scale 1. Every query is (1,1,1,0, 0,0,0,0), so that a
/// score is the sum of a key's channels 0 to 2, and a pruned query (which keeps the lower of equal
/// channels) sees channels 0 and 1 alone. Marked rows see channel 4 as well.
class ScoreCase {
 public:
  ScoreCase(std::int64_t seqlen_q, std::int64_t seqlen_k, const std::string& sparsity)
      : ScoreCase(problem_of(seqlen_q, seqlen_k, sparsity)) {}

  explicit ScoreCase(const AttentionProblem& problem) : c(zero_case(problem)) {
    for (std::int64_t i = 0; i < problem.seqlen_q; ++i) {
      for (std::int64_t h = 0; h < problem.heads_q; ++h) {
        for (std::int64_t d : {0, 1, 2}) c.q.set(0, i, h, d, 1);
      }
    }
  }

  static AttentionProblem problem_of(std::int64_t seqlen_q, std::int64_t seqlen_k,
                                     const std::string& sparsity) {
    AttentionProblem problem;
    problem.seqlen_q = seqlen_q;
    problem.seqlen_k = seqlen_k;
    problem.head_dim = problem.head_dim_v = 8;
    problem.scale = 1.0f;
    Result<Sparsity> parsed = parse_sparsity(sparsity);
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    if (parsed.ok()) problem.sparsity = *parsed;
    return problem;
  }

  void score(std::int64_t j, double value) { c.k.set(0, j, 0, 0, value); }
  void scores(std::int64_t begin, std::int64_t end, double value) {
    for (std::int64_t j = begin; j < end; ++j) score(j, value);
  }
  /// Adds to the exact score of key j, unseen by a pruned query.
  void hidden(std::int64_t j, double value) { c.k.set(0, j, 0, 2, value); }
  void mark_row(std::int64_t i) { c.q.set(0, i, 0, 4, 1); }
  /// Adds to the score of key j for marked rows.
  void marked_score(std::int64_t j, double value) { c.k.set(0, j, 0, 4, value); }
  void v(std::int64_t j, double value) { c.v.set(0, j, 0, 0, value); }

  ref::Output run() { return run_reference(c); }

  AttentionCase c;
};

}  // namespace twofour::test
