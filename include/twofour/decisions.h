// What a run kept, refined and dropped: written by debugging rows, replayed by the reference.
#pragma once

#include <cstdint>
#include <vector>

#include "twofour/status.h"

namespace TWOFOUR_API twofour {

struct AttentionProblem;

/// Counts of the units (64 positions x half a key block) in pruned blocks of one run.
struct AttentionStats {
  std::int64_t units = 0;
  std::int64_t refined = 0;
  std::int64_t dropped = 0;
  std::int64_t pruned_pairs = 0;  // (query, key) pairs that lie in pruned blocks
  std::int64_t live_pairs = 0;    // (query, key) pairs that are live
};

enum class UnitDecision : std::uint8_t { kPlain = 0, kPruned = 1, kRefined = 2, kDropped = 3 };

/// Rows are numbered as in memory: b * M + i, or the token index when packed.
struct Decisions {
  std::int64_t heads = 0;        // Hq
  std::int64_t rows = 0;         // B * M, or Tq when packed
  std::int64_t keys = 0;         // N (longest)
  std::int64_t words = 0;        // ceil(keys / 64)
  std::int64_t half_blocks = 0;  // 2 * ceil(keys / block)
  /// Bit j of row r: key j is live, survived the pattern and its unit was not dropped.
  std::vector<std::uint64_t> kept;  // [heads, rows, words]
  /// Decision of the unit that row r and half-block u belong to (the same for all its rows).
  std::vector<UnitDecision> unit;  // [heads, rows, half_blocks]

  bool is_kept(std::int64_t head, std::int64_t row, std::int64_t key) const {
    return (kept[(head * rows + row) * words + key / 64] >> (key % 64)) & 1u;
  }
  void keep(std::int64_t head, std::int64_t row, std::int64_t key) {
    kept[(head * rows + row) * words + key / 64] |= std::uint64_t{1} << (key % 64);
  }
  UnitDecision& unit_at(std::int64_t head, std::int64_t row, std::int64_t half_block) {
    return unit[(head * rows + row) * half_blocks + half_block];
  }
  UnitDecision unit_at(std::int64_t head, std::int64_t row, std::int64_t half_block) const {
    return unit[(head * rows + row) * half_blocks + half_block];
  }
};

/// Empty decisions of the right size for a problem (block resolved by head_dim).
Decisions make_decisions(const AttentionProblem& problem);

}  // namespace twofour
