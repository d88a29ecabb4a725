// What a debugging row writes: the keys a row kept, and the decision of its unit.
#pragma once

#include "cuda/sm90/item.h"
#include "cuda/sm90/shared.h"
#include "layout/pair_scores.h"
#include "twofour/decisions.h"

namespace twofour::cuda::sm90 {

template <Config c>
struct Trace {
  const Params& p;
  const Item& item;
  int row;  // of the row block: row g of this thread; row g + 8 is its second
  int lane;

  /// Row h of this thread in the numbering of Decisions, or -1 when it is not one of the call.
  __device__ std::int64_t number(int h) const {
    const int i = item.position_of(row + 8 * h) - item.position;
    return i >= 0 && i < item.seqlen_q ? item.trace_row + std::int64_t{i} : -1;
  }

  __device__ void keep(int h, int key) const {
    const std::int64_t r = number(h);
    if (r < 0) return;
    atomicOr(p.kept + (item.head * p.rows + r) * p.words + key / 64, 1ull << (key % 64));
  }

  /// Register i of a plain step.
  __device__ void keep_plain(int i, int first_key) const {
    keep(i / 2 % 2, first_key + i / 4 * 8 + layout::quad_lane(lane) * 2 + i % 2);
  }

  /// All kept keys of a fast step; `own` are the flags before the exchange.
  __device__ void keep_fast(StepKeys key, layout::WordPair own) const {
    using Tile = layout::PairTile<c.tile>;
    const int column = layout::quad_lane(lane) * 2;
    for (int i = 0; i < c.tile / 2; ++i) {
      const int h = i / 2 % 2, in_tile = i / 4 * 8 + column + i % 2;
      if (c.score == ScorePattern::kNone) {
        keep(h, key.first + in_tile);
      } else if (i < Tile::kPartner) {
        const int block = i / 4;
        const std::uint32_t word = block < 4 ? own.lo : own.hi;
        const bool second = word >> (Tile::own_shift(block, h) + 2 * (i % 2)) & 1;
        keep(h, (second ? key.second : key.first) + in_tile);
      }
    }
  }

  __device__ void decide(int block, int half, UnitDecision decision) const {
    if (layout::quad_lane(lane) != 0) return;
    const int units = 2 * c.tile / c.block;  // half-blocks in a step
    for (int h = 0; h < 2; ++h) {
      const std::int64_t r = number(h);
      if (r < 0) continue;
      unsigned char* at = p.unit + (item.head * p.rows + r) * p.half_blocks + 2 * block;
      for (int u = 0; u < units; ++u)
        at[units == 2 ? u : half] = static_cast<unsigned char>(decision);
    }
  }
};

}  // namespace twofour::cuda::sm90
