// The block schedule: which key blocks a row block skips, computes plainly, or prunes.
//
// Pure arithmetic of four integers per row block (docs/semantics.md, rules 1 to 3); boolean masks
// are judged on top of it by whoever holds the mask.
#pragma once

#include <algorithm>
#include <cstdint>

#include "twofour/attention.h"

namespace twofour::layout {

inline constexpr std::int64_t kRowBlock = 192;  // positions in a row block
inline constexpr std::int64_t kUnitRows = 64;   // positions in a unit

enum class BlockKind : std::uint8_t { kEmpty, kPlain, kPruned };

constexpr std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  return a / b - ((a % b != 0) && ((a < 0) != (b < 0)));
}
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return -floor_div(-a, b); }

/// Keys [begin, end) that position p sees by causality and window alone.
struct KeyRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  constexpr bool empty() const { return begin >= end; }
  friend constexpr bool operator==(const KeyRange&, const KeyRange&) = default;
};

/// What the schedule of one sequence depends on.
struct ScheduleShape {
  std::int64_t seqlen_k = 0;
  int block = 128;
  bool causal = false;
  Window window;
  int sink_blocks = 0;
  int local_blocks = 0;
  bool prunes = true;  // false: nothing to prune, every live block is plain

  constexpr std::int64_t key_blocks() const { return ceil_div(seqlen_k, block); }

  constexpr KeyRange live_keys(std::int64_t position) const {
    KeyRange range{0, seqlen_k};
    if (causal) range.end = std::min(range.end, position + 1);
    // Compared before adding: a huge window must not overflow, nor at a negative position.
    if (window.left >= 0 && window.left < position) range.begin = position - window.left;
    if (window.right >= 0 && window.right < seqlen_k - position)
      range.end = std::min(range.end, position + window.right + 1);
    range.begin = std::min(range.begin, seqlen_k);
    range.end = std::max(range.end, range.begin);
    return range;
  }
};

/// Position of row 0 of a sequence: N - M with causal and bottom-right alignment, else 0.
constexpr std::int64_t first_position(bool causal, Align align, std::int64_t seqlen_q,
                                      std::int64_t seqlen_k) {
  return causal && align == Align::kBottomRight ? seqlen_k - seqlen_q : 0;
}

/// The schedule of one row block as at most four runs of key blocks:
/// live [first, last), fully live [full_begin, full_end), and within these what stays plain.
struct RowBlockSchedule {
  std::int64_t first = 0, last = 0;           // key blocks with a live pair
  std::int64_t full_begin = 0, full_end = 0;  // key blocks in which every pair is live
  std::int64_t diag_begin = 0, diag_end = 0;  // diagonal and local key blocks; all without pruning
  std::int64_t sink_end = 0;                  // key blocks below this are sinks

  constexpr BlockKind kind(std::int64_t key_block) const {
    if (key_block < first || key_block >= last) return BlockKind::kEmpty;
    const bool full = key_block >= full_begin && key_block < full_end;
    const bool diagonal = key_block >= diag_begin && key_block < diag_end;
    return full && !diagonal && key_block >= sink_end ? BlockKind::kPruned : BlockKind::kPlain;
  }
};

/// Schedule of the row block that holds positions 192 * row_block .. 192 * row_block + 191.
constexpr RowBlockSchedule schedule_row_block(const ScheduleShape& shape, std::int64_t row_block) {
  const std::int64_t lowest = row_block * kRowBlock;
  const std::int64_t highest = lowest + kRowBlock - 1;
  const std::int64_t block = shape.block;
  const KeyRange low = shape.live_keys(lowest);
  const KeyRange high = shape.live_keys(highest);
  RowBlockSchedule out;
  // Both ends of live_keys grow with the position: the union spans from the first row's first key
  // to the last row's last, the intersection from the last row's first key to the first row's last.
  const KeyRange any{low.begin, high.end};
  if (any.empty() || shape.seqlen_k <= 0) return out;
  out.first = any.begin / block;
  out.last = ceil_div(any.end, block);
  const KeyRange all{high.begin, low.end};
  if (!all.empty()) {
    out.full_begin = ceil_div(all.begin, block);
    out.full_end = std::max(out.full_begin, all.end / block);  // the ragged block is never full
  }
  if (!shape.prunes) {
    out.diag_begin = out.first;
    out.diag_end = out.last;
  } else if (shape.causal || !shape.window.open()) {
    out.diag_begin = std::max<std::int64_t>(floor_div(lowest, block) - shape.local_blocks, 0);
    out.diag_end = floor_div(highest, block) + 1;
  }
  out.sink_end = out.first + shape.sink_blocks;
  return out;
}

}  // namespace twofour::layout
