// The work of one CTA: a tile of query rows of one head, which may hold rows of two row blocks, and
// the steps over the keys that either needs.
#pragma once

#include "cuda/sm80/config.h"
#include "cuda/tile/walk.h"

namespace twofour::cuda::sm80 {

/// Row blocks that a row tile touches at most.
inline constexpr int kWalks = 2;

struct Item {
  int b, head, kv_head;
  int seqlen_q, seqlen_k;
  int first_row_q;      // of the sequence in packed memory, else 0
  int first_row_k;      // the same of its keys; of int8 codes, which are numbered through the call
  int trace_row;        // first row of the sequence in the numbering of Decisions
  int position;         // of row 0 of the sequence
  int first_position;   // of row 0 of the tile
  int first_key_block;  // of the sequence among all, for the scales of int8
  int key_batch;        // of K in memory; 0 where rows are numbered through the call
  int value_batch, first_row_v;
  Walk walk[kWalks];

  __host__ __device__ int position_of(int row) const { return first_position + row; }
  /// Row `row` of the tile as a row of the sequence; it exists from 0 to seqlen_q.
  __host__ __device__ int row_of_sequence(int row) const { return first_position + row - position; }
};

__device__ inline Item make_item(const Params& p, const Config& c, int index, int row_tiles) {
  constexpr int kRowBlock = static_cast<int>(layout::kRowBlock);
  const Turn turn = turn_of(p, index, row_tiles);
  const Place at = place_of(p, turn.rank, c.rows());
  Item item{};
  item.b = at.b;
  item.head = turn.head;
  item.kv_head = turn.head / p.group;
  item.seqlen_q = at.seqlen_q;
  item.seqlen_k = at.seqlen_k;
  item.first_row_q = at.first_row_q;
  item.first_row_k = item.first_row_v = at.first_row_k;
  item.trace_row = p.packed ? at.first_row_q : at.b * p.seqlen_q;
  item.position = at.position;
  item.first_position = at.tile * c.rows();
  item.first_key_block = p.packed ? p.key_blocks[at.b]
                                  : at.b * static_cast<int>(layout::ceil_div(at.seqlen_k, c.block));
  item.key_batch = item.value_batch = p.packed ? 0 : at.b;
  if (is_int8(c) && !p.packed) {
    item.first_row_k = at.b * p.seqlen_k;
    item.key_batch = 0;
  }
  const layout::ScheduleShape shape = schedule_shape(p, c.block, item.seqlen_k);
  const int row_block = static_cast<int>(layout::floor_div(item.first_position, kRowBlock));
  for (int i = 0; i < kWalks; ++i)
    item.walk[i] = make_walk(shape, row_block + i, item.position, item.seqlen_q);
  // The tile may end before the second one.
  if ((row_block + 1) * kRowBlock >= item.first_position + c.rows()) item.walk[1] = Walk{};
  return item;
}

// ---- steps -------------------------------------------------------------------------------------

constexpr int steps_of_block(const Config& c) { return c.block / c.tile; }

__host__ __device__ constexpr StepKeys plain_step(const Config& c, int block, int half) {
  const int first = block * c.block + half * c.tile;
  return {first, first + c.tile / 2};
}
__host__ __device__ constexpr StepKeys fast_step(const Config& c, int block, int half) {
  if (!prunes_scores(c)) return plain_step(c, block, half);
  const int first = block * c.block + half * (c.tile / 2);
  return {first, first + c.block / 2};
}

/// A plain step without a live key for any row of a row block.
__host__ __device__ inline bool is_live(const Config& c, const Walk& walk, int block, int half) {
  const StepKeys keys = plain_step(c, block, half);
  return walk.is_plain(block) && keys.first < walk.live_end &&
         keys.first + c.tile > walk.live_begin;
}

/// A place in the steps of an item: all that are plain for some row block, then all that are fast
/// for some. A block that is plain for one and fast for the other comes twice.
template <Config c>
struct Cursor {
  int block = -1;
  int half = steps_of_block(c) - 1;
  bool fast = false;

  __host__ __device__ bool done() const { return block == INT_MAX; }
  __host__ __device__ StepKeys keys() const {
    return fast ? fast_step(c, block, half) : plain_step(c, block, half);
  }
  __host__ __device__ void next(const Item& item) {
    do {
      if (++half < steps_of_block(c)) continue;
      half = 0;
      block = fast ? min(item.walk[0].next_fast(block + 1), item.walk[1].next_fast(block + 1))
                   : min(item.walk[0].next_plain(block + 1), item.walk[1].next_plain(block + 1));
      if (block == INT_MAX && !fast) {
        fast = true;
        block = min(item.walk[0].next_fast(0), item.walk[1].next_fast(0));
      }
    } while (!fast && !is_live(c, item.walk[0], block, half) &&
             !is_live(c, item.walk[1], block, half));
  }
};

}  // namespace twofour::cuda::sm80
