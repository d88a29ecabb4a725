#include "ref/everything_pruned.h"

#include <algorithm>
#include <cmath>

#include "ref/attention_operands.h"
#include "ref/attention_pattern.h"
#include "ref/attention_softmax.h"

namespace twofour::ref {
namespace {

/// The keys that row i keeps, in ascending order, with their scores.
void choose_keys(const Inputs& inputs, const Sequence& s, std::int64_t head, std::int64_t i,
                 const Query& query, const Keys& keys, std::vector<std::int64_t>* kept,
                 std::vector<Score>* kept_scores, std::int64_t* live_pairs) {
  for (std::int64_t first = 0; first < s.seqlen_k; first += 4) {
    std::vector<std::int64_t> live;
    std::vector<Score> scores;
    std::vector<double> values;
    for (std::int64_t j = first; j < std::min(first + 4, s.seqlen_k); ++j) {
      if (!inputs.live(s, head, i, j)) continue;
      live.push_back(j);
      scores.push_back(score_of(inputs, query, keys, j, false));
      values.push_back(scores.back().value);
    }
    *live_pairs += static_cast<std::int64_t>(live.size());
    const std::vector<bool> keep = keep_largest(values, 2);
    for (std::size_t n = 0; n < live.size(); ++n) {
      if (!keep[n]) continue;
      kept->push_back(live[n]);
      kept_scores->push_back(scores[n]);
    }
  }
}

}  // namespace

Result<Output> everything_pruned(const AttentionProblem& given, const AttentionArgs& args) {
  AttentionProblem problem = given;
  problem.sparsity = resolved(Sparsity{}, given.head_dim);
  Status status = validate(problem);
  if (!status.ok()) return status;
  const Inputs inputs(problem, args);
  Output out;
  out.decisions = make_decisions(problem);
  const std::int64_t rows = inputs.rows() * problem.heads_q;
  out.o.resize(rows * problem.head_dim_v);
  out.o_bound.resize(rows * problem.head_dim_v);
  out.lse.resize(rows);
  out.lse_bound.resize(rows);
  out.tainted.resize(rows);
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Sequence s = inputs.sequence(b);
    for (std::int64_t head = 0; head < problem.heads_q; ++head) {
      const std::int64_t kv_head = head / inputs.queries_per_kv_head();
      const Keys keys = make_keys(inputs, s, kv_head, nullptr);
      const std::vector<double> values = make_values(inputs, s, kv_head);
      for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
        const Query query = make_query(inputs, s, i, head, keys);
        std::vector<std::int64_t> kept;
        std::vector<Score> scores;
        choose_keys(inputs, s, head, i, query, keys, &kept, &scores, &out.stats.live_pairs);
        const std::int64_t row = s.first_row + i;
        for (std::int64_t j : kept) out.decisions.keep(head, row, j);
        const RowResult result = softmax_row(values, problem.head_dim_v, kept, scores, query);
        const std::int64_t at = (row * problem.heads_q + head) * problem.head_dim_v;
        std::copy(result.o.begin(), result.o.end(), out.o.begin() + at);
        std::copy(result.o_bound.begin(), result.o_bound.end(), out.o_bound.begin() + at);
        const std::int64_t at_lse = problem.packed
                                        ? head * problem.total_q + row
                                        : (b * problem.heads_q + head) * problem.seqlen_q + i;
        out.lse[at_lse] = result.lse;
        out.lse_bound[at_lse] = result.lse_bound;
      }
    }
  }
  return out;
}

}  // namespace twofour::ref
