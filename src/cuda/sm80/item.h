// The work of one CTA: a tile of query rows of one head, which may hold rows of two row blocks, and
// the steps over the keys that either needs.
#pragma once

#include "cuda/sm80/config.h"
#include "cuda/tile/walk.h"

namespace twofour::cuda::sm80 {

/// Row blocks that a row tile touches at most.
inline constexpr int kWalks = 2;

struct Item : Task {
  const unsigned char *keys, *values;  // row 0 of the sequence, of the KV head
  int first_position;                  // of row 0 of the tile
  Walk walk[kWalks];

  __host__ __device__ int position_of(int row) const { return first_position + row; }
  /// Row `row` of the tile as a row of the sequence; it exists from 0 to seqlen_q.
  __host__ __device__ int row_of_sequence(int row) const { return first_position + row - position; }
};

__device__ inline void make_item(Item& item, const Params& p, const Config& c, int index,
                                 int row_tiles) {
  constexpr int kRowBlock = static_cast<int>(layout::kRowBlock);
  const int parts = may_split(c) ? p.parts : 1;
  const Turn turn = turn_of(p, index / parts, row_tiles);
  const Place at = place_of(p, turn.rank, c.rows());
  static_cast<Task&>(item) = task_of(p, c, turn.head, at);
  item.part = index % parts;
  const int key_bytes = c.qk == QKProduct::kInt8 ? 1 : 2;
  item.keys = static_cast<const unsigned char*>(p.k.data) +
              key_bytes * (item.key_batch * p.k.batch + item.kv_head * p.k.head +
                           std::int64_t{item.key_row} * p.k.row);
  item.values = static_cast<const unsigned char*>(p.v.data) +
                2 * (item.value_batch * p.v.batch + item.kv_head * p.v.head +
                     std::int64_t{item.value_row} * p.v.row);
  item.first_position = at.tile * c.rows();
  const layout::ScheduleShape shape = schedule_shape(p, c.block, item.seqlen_k);
  const int row_block = static_cast<int>(layout::floor_div(item.first_position, kRowBlock));
  for (int i = 0; i < kWalks; ++i) {
    item.walk[i] = make_walk(shape, row_block + i, item.position, item.seqlen_q);
    if (may_split(c)) keep_part(item.walk[i], item.part, parts);
  }
  // The tile may end before the second one.
  if ((row_block + 1) * kRowBlock >= item.first_position + c.rows()) item.walk[1] = Walk{};
}

// ---- steps -------------------------------------------------------------------------------------

constexpr int steps_of_block(const Config& c) { return c.block / c.tile; }

/// A plain step with a live key for some row of a row block.
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
  int run_end = 0;  // of fast blocks: up to here they are fast for the same row blocks

  __host__ __device__ bool done() const { return block == INT_MAX; }
  __host__ __device__ StepKeys keys() const {
    return fast ? fast_step(c, block, half) : plain_step(c, block, half);
  }
  __host__ __device__ void next(const Item& item) {
    if (fast) return next_fast(item);
    do {
      if (++half < steps_of_block(c)) continue;
      half = 0;
      block = min(item.walk[0].next_plain(block + 1), item.walk[1].next_plain(block + 1));
      if (block == INT_MAX) {
        fast = true;
        return begin_run(item, 0);
      }
    } while (!is_live(c, item.walk[0], block, half) && !is_live(c, item.walk[1], block, half));
  }
  /// Of a fast step: most often a few instructions.
  __host__ __device__ void next_fast(const Item& item) {
    if (++half < steps_of_block(c)) return;
    half = 0;
    if (++block >= run_end) begin_run(item, block);
  }

 private:
  __host__ __device__ void begin_run(const Item& item, int from) {
    block = min(item.walk[0].next_fast(from), item.walk[1].next_fast(from));
    run_end = INT_MAX;
    for (int i = 0; i < kWalks; ++i)
      for (int run = 0; run < 2; ++run)
        for (const int end : {item.walk[i].pruned_begin[run], item.walk[i].pruned_end[run]})
          if (end > block) run_end = min(run_end, end);
  }
};

}  // namespace twofour::cuda::sm80
