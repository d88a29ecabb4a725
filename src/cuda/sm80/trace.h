// What a debugging row writes: the keys a row kept, and the decision of its unit.
#pragma once

#include "cuda/sm80/item.h"
#include "layout/pair_scores.h"
#include "twofour/decisions.h"

namespace twofour::cuda::sm80 {

/// Of the rows g and g + 8 of a row tile.
template <Config c>
struct Trace {
  const Params& p;
  const Item& item;
  int row;  // of the CTA's tile: row g of this thread; row g + 8 is its second
  int lane;

  /// Row h of this thread in the numbering of Decisions, or -1 when it is not one of the call.
  __device__ std::int64_t number(int h) const {
    const int i = item.row_of_sequence(row + 8 * h);
    return i >= 0 && i < item.seqlen_q ? item.trace_row + std::int64_t{i} : -1;
  }

  __device__ __noinline__ void keep(int h, int key) const {
    const std::int64_t r = number(h);
    if (r < 0) return;
    atomicOr(p.kept + (item.head * p.rows + r) * p.words + key / 64, 1ull << (key % 64));
  }

  /// All kept keys of a fast chunk, whose first keys and partners start at `key`; `own` are the
  /// flags before the exchange, of n-blocks kFirst on.
  template <int kFirst>
  __device__ void keep_fast(StepKeys key, layout::WordPair own) const {
    using Pairs = layout::PairTile<c.chunk>;
    const int column = layout::quad_lane(lane) * 2;
#pragma unroll 1
    for (int i = 0; i < c.chunk / 2; ++i) {
      const int h = i / 2 % 2, in_tile = i / 4 * 8 + column + i % 2;
      if (!prunes_scores(c)) {
        keep(h, key.first + in_tile);
      } else if (i < Pairs::kPartner) {
        const int block = kFirst + i / 4;
        const std::uint32_t word = block < 4 ? own.lo : own.hi;
        const bool second = word >> (layout::PairTile<128>::own_shift(block, h) + 2 * (i % 2)) & 1;
        keep(h, (second ? key.second : key.first) + in_tile);
      }
    }
  }

  __device__ void decide(int block, int half, UnitDecision decision) const {
    if (layout::quad_lane(lane) != 0) return;
    for (int h = 0; h < 2; ++h) {
      const std::int64_t r = number(h);
      if (r < 0) continue;
      unsigned char* at = p.unit + (item.head * p.rows + r) * p.half_blocks + 2 * block;
      if (2 * c.tile == c.block)
        at[half] = static_cast<unsigned char>(decision);
      else
        at[0] = at[1] = static_cast<unsigned char>(decision);
    }
  }
};

}  // namespace twofour::cuda::sm80
