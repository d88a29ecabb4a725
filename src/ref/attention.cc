#include "ref/attention.h"

#include <algorithm>
#include <cmath>

#include "ref/attention_decide.h"
#include "ref/attention_inputs.h"
#include "ref/attention_operands.h"
#include "ref/attention_pattern.h"
#include "ref/attention_schedule.h"
#include "ref/attention_softmax.h"

namespace twofour::ref {
namespace {

/// Everything about one row while its row block is worked on.
struct Row {
  std::int64_t i = 0;  // in the sequence
  std::int64_t position = 0;
  std::int64_t number = 0;  // in memory order
  Query query;
  Maximum m;                  // rule 6
  std::vector<Score> scores;  // [N], of the pairs that were computed
  std::vector<std::int64_t> kept;
};

/// One head of one sequence. Rows of different heads or sequences never meet.
class HeadRun {
 public:
  HeadRun(const Inputs& inputs, const Sequence& s, std::int64_t head, const PreparedK* prepared,
          const Options& options, Output* out)
      : inputs_(inputs),
        sparsity_(inputs.problem().sparsity),
        s_(s),
        head_(head),
        kv_head_(head / inputs.queries_per_kv_head()),
        replay_(options.replay),
        weights_(options.weights),
        out_(out),
        keys_(make_keys(inputs, s, kv_head_, prepared)),
        values_(make_values(inputs, s, kv_head_)),
        finite_(finite_keys()),
        groups_(groups_of(sparsity_.score, sparsity_.block)) {}

  Status run() {
    if (s_.seqlen_q == 0) return {};
    const std::int64_t last = s_.first_position + s_.seqlen_q - 1;
    for (std::int64_t r = floor_quotient(s_.first_position, kRowBlockPositions);
         r <= floor_quotient(last, kRowBlockPositions); ++r) {
      Status status = run_row_block(r);
      if (!status.ok()) return status;
    }
    return {};
  }

  const AttentionStats& stats() const { return stats_; }
  double bound_used() const { return bound_used_; }
  std::int64_t doubtful_groups() const { return doubtful_groups_; }

 private:
  Status run_row_block(std::int64_t row_block) {
    std::vector<Row> rows = rows_of(row_block);
    const std::vector<Block> kinds = block_schedule(inputs_, s_, head_, row_block);
    tainted_ = is_tainted(rows, kinds);
    for (const Row& row : rows) out_->tainted[head_ * inputs_.rows() + row.number] = tainted_;

    // Rule 6: plain blocks first, then units in ascending order.
    for (std::size_t block = 0; block < kinds.size(); ++block) {
      if (kinds[block] == Block::kPlain) {
        for (Row& row : rows) run_plain(row, static_cast<std::int64_t>(block));
      }
    }
    for (std::size_t block = 0; block < kinds.size(); ++block) {
      if (kinds[block] != Block::kPruned) continue;
      Status status = run_pruned(rows, static_cast<std::int64_t>(block));
      if (!status.ok()) return status;
    }
    for (Row& row : rows) {
      Status status = check_the_rest(row, kinds);
      if (!status.ok()) return status;
      finish(row);
    }
    return {};
  }

  std::vector<Row> rows_of(std::int64_t row_block) {
    std::vector<Row> rows;
    for (std::int64_t i = 0; i < s_.seqlen_q; ++i) {
      const std::int64_t position = s_.first_position + i;
      if (floor_quotient(position, kRowBlockPositions) != row_block) continue;
      Row row;
      row.i = i;
      row.position = position;
      row.number = s_.first_row + i;
      row.query = make_query(inputs_, s_, i, head_, keys_);
      row.scores.resize(s_.seqlen_k);
      doubtful_groups_ += row.query.doubtful_groups;
      rows.push_back(std::move(row));
    }
    return rows;
  }

  std::int64_t block_end(std::int64_t block) const {
    return std::min((block + 1) * sparsity_.block, s_.seqlen_k);
  }

  /// Rule 9: a non-finite key or value that is live for some row; in int8 also any key that shares
  /// a scale with one.
  bool is_tainted(const std::vector<Row>& rows, const std::vector<Block>& kinds) const {
    for (std::int64_t j = 0; j < s_.seqlen_k; ++j) {
      const std::int64_t block = j / sparsity_.block;
      if (kinds[block] == Block::kEmpty) continue;
      const bool live = std::any_of(rows.begin(), rows.end(), [&](const Row& row) {
        return inputs_.live(s_, head_, row.i, j);
      });
      if (!live) continue;
      if (!finite_[j] || (!keys_.scale.empty() && !std::isfinite(keys_.scale[block]))) return true;
    }
    return false;
  }

  /// For every key: are all channels of K and V finite?
  std::vector<bool> finite_keys() const {
    std::vector<bool> finite(s_.seqlen_k, true);
    for (std::int64_t j = 0; j < s_.seqlen_k; ++j) {
      for (std::int64_t d = 0; d < inputs_.problem().head_dim; ++d) {
        if (!std::isfinite(inputs_.k(s_, j, kv_head_, d))) finite[j] = false;
      }
      for (std::int64_t d = 0; d < inputs_.problem().head_dim_v; ++d) {
        if (!std::isfinite(inputs_.v(s_, j, kv_head_, d))) finite[j] = false;
      }
    }
    return finite;
  }

  /// Rule 3: nothing pruned, masked pair by pair, all channels of the query.
  void run_plain(Row& row, std::int64_t block) {
    for (std::int64_t j = block * sparsity_.block; j < block_end(block); ++j) {
      if (!inputs_.live(s_, head_, row.i, j)) continue;
      row.scores[j] = score_of(inputs_, row.query, keys_, j, false);
      row.m.cover(row.scores[j]);
      keep(row, j);
      ++stats_.live_pairs;
    }
  }

  Status run_pruned(std::vector<Row>& rows, std::int64_t block) {
    stats_.live_pairs += static_cast<std::int64_t>(rows.size()) * sparsity_.block;
    stats_.pruned_pairs += static_cast<std::int64_t>(rows.size()) * sparsity_.block;
    // Rule 2: a unit is an aligned run of 64 positions by a half-block.
    for (std::size_t begin = 0; begin < rows.size();) {
      std::vector<Row*> unit;
      const std::int64_t run = floor_quotient(rows[begin].position, kUnitPositions);
      for (; begin < rows.size(); ++begin) {
        if (floor_quotient(rows[begin].position, kUnitPositions) != run) break;
        unit.push_back(&rows[begin]);
      }
      UnitDecision decision[2];
      for (int half : {0, 1}) {
        Status status = run_unit(unit, block, half, &decision[half]);
        if (!status.ok()) return status;
      }
      for (Row* row : unit) {
        Status status = run_pattern(*row, block, decision);
        if (!status.ok()) return status;
      }
    }
    return {};
  }

  std::vector<std::int64_t> keys_of(std::int64_t block, int half) const {
    std::vector<std::int64_t> keys;
    for (std::int64_t j = 0; j < sparsity_.block; ++j) {
      if (half_block(j, sparsity_.block) == half) keys.push_back(block * sparsity_.block + j);
    }
    return keys;
  }

  /// Computes the scores of one unit for its rows; rules 6 to 8.
  Status run_unit(const std::vector<Row*>& unit, std::int64_t block, int half,
                  UnitDecision* decision) {
    const std::vector<std::int64_t> keys = keys_of(block, half);
    const bool pruned_query = sparsity_.qk == QKProduct::kNm24;
    std::vector<Vote> votes;
    for (Row* row : unit) {
      votes.push_back({row->number, compute(*row, keys, pruned_query), row->m});
    }
    const std::int64_t half_number = 2 * block + half;
    *decision = decide_unit(sparsity_, votes);
    if (replay_) {
      *decision = replay_->unit_at(head_, unit.front()->number, half_number);
      Status status = check_replayed_unit(unit, votes, half_number, *decision);
      if (!status.ok()) return status;
    }
    const bool refined = *decision == UnitDecision::kRefined;
    for (std::size_t n = 0; n < unit.size(); ++n) {
      unit[n]->m.cover(refined ? compute(*unit[n], keys, false) : votes[n].unit);
      out_->decisions.unit_at(head_, unit[n]->number, half_number) = *decision;
    }
    ++stats_.units;
    stats_.refined += refined;
    stats_.dropped += *decision == UnitDecision::kDropped;
    return {};
  }

  Maximum compute(Row& row, const std::vector<std::int64_t>& keys, bool pruned_query) {
    Maximum maximum;
    for (std::int64_t j : keys) {
      row.scores[j] = score_of(inputs_, row.query, keys_, j, pruned_query);
      maximum.cover(row.scores[j]);
    }
    return maximum;
  }

  /// Rule 4 for one row of a pruned block.
  Status run_pattern(Row& row, std::int64_t block, const UnitDecision (&decision)[2]) {
    for (const Group& group : groups_) {
      const int half = half_block(group.keys.front(), sparsity_.block);
      const bool dropped = decision[half] == UnitDecision::kDropped;  // then for the whole group
      std::vector<std::int64_t> keys;
      std::vector<Score> scores;
      std::vector<double> values;
      for (std::int64_t in_block : group.keys) {
        keys.push_back(block * sparsity_.block + in_block);
        scores.push_back(row.scores[keys.back()]);
        values.push_back(scores.back().value);
      }
      std::vector<bool> kept = keep_largest(values, dropped ? 0 : group.keep);
      if (replay_) {
        Status status = replay_group(row, keys, scores, dropped ? 0 : group.keep, &kept);
        if (!status.ok()) return status;
      }
      for (std::size_t n = 0; n < keys.size(); ++n) {
        if (kept[n]) keep(row, keys[n]);
      }
    }
    return {};
  }

  void keep(Row& row, std::int64_t j) {
    row.kept.push_back(j);
    out_->decisions.keep(head_, row.number, j);
  }

  Status check_replayed_unit(const std::vector<Row*>& unit, const std::vector<Vote>& votes,
                             std::int64_t half_number, UnitDecision decision) {
    Place place{head_, unit.front()->number, half_number};
    for (const Row* row : unit) {
      if (replay_->unit_at(head_, row->number, half_number) == decision) continue;
      place.row = row->number;
      return {Code::kInvalidArgument,
              "replay: " + place.text() + " unit " + std::to_string(half_number) +
                  ": expected one decision for all rows of the unit, got " +
                  "another than for row " + std::to_string(unit.front()->number)};
    }
    std::vector<Vote> free = votes;
    if (tainted_) {  // anything may have spread here: only what the mode cannot do is wrong
      for (Vote& vote : free) vote.unit = vote.m = {0, -HUGE_VAL, HUGE_VAL};
    }
    return check_unit(sparsity_, free, decision, place, &bound_used_);
  }

  Status replay_group(const Row& row, const std::vector<std::int64_t>& keys,
                      std::vector<Score> scores, int expected, std::vector<bool>* kept) {
    const Place place{head_, row.number, 0};
    int count = 0;
    for (std::size_t n = 0; n < keys.size(); ++n) {
      (*kept)[n] = replay_->is_kept(head_, row.number, keys[n]);
      count += (*kept)[n];
    }
    if (count != expected) {
      return {Code::kInvalidArgument,
              "replay: " + place.text() + " group of key " + std::to_string(keys.front()) +
                  ": expected " + std::to_string(expected) + " kept, got " + std::to_string(count)};
    }
    if (tainted_) {
      for (Score& score : scores) score = {0, HUGE_VAL};
    }
    return check_group(scores, keys, *kept, place, &bound_used_);
  }

  /// Replay: outside pruned blocks the decisions are fixed, so they must be equal.
  Status check_the_rest(const Row& row, const std::vector<Block>& kinds) const {
    if (!replay_) return {};
    const Place place{head_, row.number, 0};
    for (std::int64_t j = 0; j < replay_->words * 64; ++j) {
      const bool inside = j < s_.seqlen_k;
      if (inside && kinds[j / sparsity_.block] == Block::kPruned) continue;
      const bool expected = inside && out_->decisions.is_kept(head_, row.number, j);
      if (replay_->is_kept(head_, row.number, j) == expected) continue;
      return {Code::kInvalidArgument, "replay: " + place.text() + " key " + std::to_string(j) +
                                          " in a block that is not pruned: expected " +
                                          (expected ? "kept" : "not kept") + ", got the other"};
    }
    for (std::int64_t half = 0; half < replay_->half_blocks; ++half) {
      const std::size_t block = half / 2;
      if (block < kinds.size() && kinds[block] == Block::kPruned) continue;
      if (replay_->unit_at(head_, row.number, half) == UnitDecision::kPlain) continue;
      return {Code::kInvalidArgument, "replay: " + place.text() + " unit " + std::to_string(half) +
                                          ": expected plain, got a decision"};
    }
    return {};
  }

  void finish(Row& row) {
    std::sort(row.kept.begin(), row.kept.end());
    std::vector<Score> scores;
    for (std::int64_t j : row.kept) scores.push_back(row.scores[j]);
    const AttentionProblem& problem = inputs_.problem();
    const RowResult result =
        softmax_row(values_, problem.head_dim_v, row.kept, scores, row.query, weights_);
    const std::int64_t at_o = (row.number * problem.heads_q + head_) * problem.head_dim_v;
    std::copy(result.o.begin(), result.o.end(), out_->o.begin() + at_o);
    std::copy(result.o_bound.begin(), result.o_bound.end(), out_->o_bound.begin() + at_o);
    const std::int64_t at_lse =
        problem.packed ? head_ * problem.total_q + row.number
                       : (s_.index * problem.heads_q + head_) * problem.seqlen_q + row.i;
    out_->lse[at_lse] = result.lse;
    out_->lse_bound[at_lse] = result.lse_bound;
  }

  const Inputs& inputs_;
  const Sparsity& sparsity_;
  const Sequence s_;
  const std::int64_t head_;
  const std::int64_t kv_head_;
  const Decisions* replay_;
  const WeightFormat weights_;
  Output* out_;
  const Keys keys_;
  const std::vector<double> values_;
  const std::vector<bool> finite_;
  const std::vector<Group> groups_;
  bool tainted_ = false;
  AttentionStats stats_;
  double bound_used_ = 0;
  std::int64_t doubtful_groups_ = 0;
};

Status check_sizes(const Inputs& inputs, const PreparedK* prepared, const Decisions* replay,
                   const Decisions& expected) {
  const AttentionProblem& problem = inputs.problem();
  if (prepared) {
    std::int64_t blocks = 0;
    for (std::int64_t b = 0; b < problem.batch; ++b) {
      blocks += (inputs.sequence(b).seqlen_k + problem.sparsity.block - 1) / problem.sparsity.block;
    }
    if (prepared->block != problem.sparsity.block || prepared->heads_kv != problem.heads_kv ||
        prepared->head_dim != problem.head_dim || prepared->rows != inputs.keys() ||
        prepared->blocks != blocks) {
      return {Code::kInvalidArgument,
              "prepared_k: expected that of " + to_string(problem.sparsity) + " with " +
                  std::to_string(inputs.keys()) + " keys, got one of block " +
                  std::to_string(prepared->block) + " with " + std::to_string(prepared->rows) +
                  " keys"};
    }
  }
  if (replay &&
      (replay->kept.size() != expected.kept.size() || replay->unit.size() != expected.unit.size() ||
       replay->words != expected.words || replay->rows != expected.rows)) {
    return {Code::kInvalidArgument,
            "replay: expected decisions of " + std::to_string(expected.rows) + " rows by " +
                std::to_string(expected.keys) + " keys, got " + std::to_string(replay->rows) +
                " by " + std::to_string(replay->keys)};
  }
  return {};
}

}  // namespace

Result<Output> attention(const AttentionProblem& given, const AttentionArgs& args,
                         const Options& options) {
  Status status = validate(given);
  if (!status.ok()) return status;
  AttentionProblem problem = given;
  problem.sparsity = resolved(given.sparsity, given.head_dim);
  const Inputs inputs(problem, args);

  Output out;
  out.decisions = make_decisions(problem);
  const std::int64_t rows = inputs.rows() * problem.heads_q;
  out.o.resize(rows * problem.head_dim_v);
  out.o_bound.resize(rows * problem.head_dim_v);
  out.lse.resize(rows);
  out.lse_bound.resize(rows);
  out.tainted.resize(rows);

  PreparedK own;
  const PreparedK* prepared = nullptr;
  if (problem.sparsity.qk == QKProduct::kInt8) {
    prepared = options.prepared ? options.prepared : args.prepared_k;
    if (!prepared) {
      Result<PreparedK> made = ref::prepare_k(problem, args);
      if (!made.ok()) return made.status();
      own = *std::move(made);
      prepared = &own;
    }
  }
  status = check_sizes(inputs, prepared, options.replay, out.decisions);
  if (!status.ok()) return status;

  const std::int64_t tasks = problem.batch * problem.heads_q;
  std::vector<Status> statuses(tasks);
#pragma omp parallel for schedule(dynamic) if (tasks > 1)
  for (std::int64_t task = 0; task < tasks; ++task) {
    HeadRun run(inputs, inputs.sequence(task / problem.heads_q), task % problem.heads_q, prepared,
                options, &out);
    statuses[task] = run.run();
#pragma omp critical
    {
      out.stats.units += run.stats().units;
      out.stats.refined += run.stats().refined;
      out.stats.dropped += run.stats().dropped;
      out.stats.pruned_pairs += run.stats().pruned_pairs;
      out.stats.live_pairs += run.stats().live_pairs;
      out.max_bound_used = std::max(out.max_bound_used, run.bound_used());
      out.ambiguous_query_groups += run.doubtful_groups();
    }
  }
  for (const Status& one : statuses) {
    if (!one.ok()) return one;
  }
  return out;
}

}  // namespace twofour::ref
