// One unit of work of the persistent kernel: a row block of one head, and the walk over its key
// blocks, plain ones first. Producer and consumers follow the same walk.
#pragma once

#include "cuda/sm90/config.h"
#include "cuda/tile/walk.h"

namespace twofour::cuda::sm90 {

/// Items in shared memory: the one being worked on and the next.
inline constexpr int kItemSlots = 2;

/// b < 0: no more items.
struct Item : Task, Walk {
  __device__ int plain_block(int i) const {
    int block = first + i;
    if (block >= pruned_begin[0]) block += pruned_end[0] - pruned_begin[0];
    if (block >= pruned_begin[1]) block += pruned_end[1] - pruned_begin[1];
    return block;
  }
  __device__ int fast_block(int i) const {
    const int left = pruned_end[0] - pruned_begin[0];
    return i < left ? pruned_begin[0] + i : pruned_begin[1] + i - left;
  }
  /// Position of row `row` of the row block.
  __device__ int position_of(int row) const {
    return row_block * static_cast<int>(layout::kRowBlock) + row;
  }
};

/// Written in place, in shared memory: the warp that does it has few registers.
__device__ inline void make_item(Item& item, const Params& p, const Config& c, int index,
                                 int row_blocks) {
  const int parts = may_split(c) ? p.parts : 1;
  const Turn turn = turn_of(p, index / parts, row_blocks);
  const Place at = place_of(p, turn.rank, static_cast<int>(layout::kRowBlock));
  static_cast<Task&>(item) = task_of(p, c, turn.head, at);
  static_cast<Walk&>(item) =
      make_walk(schedule_shape(p, c.block, at.seqlen_k), at.tile, at.position, at.seqlen_q);
  item.part = index % parts;
  if (may_split(c)) keep_part(item, item.part, parts);
}

/// A plain step without a live key for any row is skipped, by producer and consumers alike.
__device__ __forceinline__ bool is_live(const Config& c, const Item& item, StepKeys keys) {
  return keys.first < item.live_end && keys.first + c.tile > item.live_begin;
}

}  // namespace twofour::cuda::sm90
