// One unit of work of the persistent kernel: a row block of one head, and the walk over its key
// blocks, plain ones first (docs/semantics.md, rules 3 and 6). Producer and consumers follow the
// same walk.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>

#include "cuda/sm90/config.h"

namespace twofour::cuda::sm90 {

#ifndef __CUDACC__  // host tests include this too
using std::max;
using std::min;
#endif

/// Heads that are worked on together, so that their K and V stay in the L2 cache.
inline constexpr int kHeadsTogether = 4;

/// Items in shared memory: the one being worked on and the next.
inline constexpr int kItemSlots = 2;

struct Item {
  int b, head, kv_head;  // b < 0: no more items
  int seqlen_q, seqlen_k;
  int first_row_q;         // of the sequence in packed memory, else 0
  int key_row, key_batch;  // where its keys start, in the coordinates of the tensor maps
  int value_row, value_batch;
  int trace_row;                       // first row of the sequence in the numbering of Decisions
  int position;                        // of row 0 of the sequence
  int row_block;                       // positions 192 * row_block and on
  int first_key_block;                 // of the sequence among all, for the scales of int8
  int live_begin, live_end;            // keys that some existing row of the row block sees
  int first, last;                     // key blocks with live pairs
  int pruned_begin[2], pruned_end[2];  // the two runs that the fast body serves, in [first, last)

  __device__ int plain_blocks() const { return last - first - fast_blocks(); }
  __device__ int fast_blocks() const {
    return pruned_end[0] - pruned_begin[0] + pruned_end[1] - pruned_begin[1];
  }
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

__device__ inline layout::ScheduleShape schedule_shape(const Params& p, const Config& c,
                                                       int seqlen_k) {
  layout::ScheduleShape shape;
  shape.seqlen_k = seqlen_k;
  shape.block = c.block;
  shape.causal = p.causal;
  shape.window = p.window;
  shape.sink_blocks = p.sink_blocks;
  shape.local_blocks = p.local_blocks;
  return shape;
}

/// Row blocks of the whole call, of one head.
__device__ inline int total_row_blocks(const Params& p) {
  if (p.packed) return p.row_blocks[p.batch];
  const int first =
      static_cast<int>(layout::first_position(p.causal, p.align, p.seqlen_q, p.seqlen_k));
  const int lowest = static_cast<int>(layout::floor_div(first, layout::kRowBlock));
  const int highest =
      static_cast<int>(layout::floor_div(first + std::int64_t{p.seqlen_q} - 1, layout::kRowBlock));
  return p.batch * (highest - lowest + 1);
}

/// The item of number `index`: later row blocks, which have more keys under causality, come first.
__device__ inline Item make_item(const Params& p, const Config& c, int index, int row_blocks) {
  Item item;
  const int per_group = row_blocks * kHeadsTogether;
  const int head_group = index / per_group;
  const int in_group = index - head_group * per_group;
  const int heads = min(kHeadsTogether, p.heads_q - head_group * kHeadsTogether);
  int rank = row_blocks - 1 - in_group / heads;
  item.head = head_group * kHeadsTogether + in_group % heads;
  item.kv_head = item.head / p.group;
  if (p.packed) {
    int low = 0, high = p.batch;  // the last sequence that starts at or before `rank`
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (p.row_blocks[middle] <= rank)
        low = middle;
      else
        high = middle;
    }
    item.b = low;
    rank -= p.row_blocks[low];
    item.first_row_q = p.cu_seqlens_q[low];
    item.trace_row = item.first_row_q;
    item.key_row = item.value_row = p.cu_seqlens_k[low];
    item.key_batch = item.value_batch = 0;
    item.seqlen_q = p.cu_seqlens_q[low + 1] - item.first_row_q;
    item.seqlen_k = p.cu_seqlens_k[low + 1] - item.key_row;
    item.first_key_block = p.key_blocks[low];
  } else {
    item.b = rank % p.batch;
    rank /= p.batch;
    item.first_row_q = 0;
    item.trace_row = item.b * p.seqlen_q;
    item.value_row = 0;
    item.value_batch = item.b;
    // int8 codes are numbered through the whole call.
    item.key_row = c.qk == QKProduct::kInt8 ? item.b * p.seqlen_k : 0;
    item.key_batch = c.qk == QKProduct::kInt8 ? 0 : item.b;
    item.seqlen_q = p.seqlen_q;
    item.seqlen_k = p.seqlen_k;
    item.first_key_block = item.b * static_cast<int>(layout::ceil_div(p.seqlen_k, c.block));
  }
  item.position =
      static_cast<int>(layout::first_position(p.causal, p.align, item.seqlen_q, item.seqlen_k));
  item.row_block = rank + static_cast<int>(layout::floor_div(item.position, layout::kRowBlock));

  const layout::ScheduleShape shape = schedule_shape(p, c, item.seqlen_k);
  const layout::RowBlockSchedule s = layout::schedule_row_block(shape, item.row_block);
  const int lowest = max(item.position_of(0), item.position);
  const int highest = min(item.position_of(static_cast<int>(layout::kRowBlock) - 1),
                          item.position + item.seqlen_q - 1);
  item.live_begin = static_cast<int>(shape.live_keys(lowest).begin);
  item.live_end = static_cast<int>(shape.live_keys(highest).end);
  item.first = static_cast<int>(s.first);
  item.last = static_cast<int>(s.last);
  // kind() is kPruned in [full_begin, full_end) above the sinks and beside the diagonal.
  const int low = max(static_cast<int>(max(s.full_begin, s.sink_end)), item.first);
  const int high = max(low, min(static_cast<int>(s.full_end), item.last));
  item.pruned_begin[0] = low;
  item.pruned_end[0] = max(low, min(high, static_cast<int>(s.diag_begin)));
  item.pruned_begin[1] = min(high, max(item.pruned_end[0], static_cast<int>(s.diag_end)));
  item.pruned_end[1] = high;
  return item;
}

/// First key of step `half` of a plain block; `second` is where the other half of the step's keys
/// starts. Plain steps are contiguous; fast steps are half-blocks, or the block when the step is.
struct StepKeys {
  int first;
  int second;
};
__device__ __forceinline__ StepKeys plain_step(const Config& c, int block, int half) {
  const int first = block * c.block + half * c.tile;
  return {first, first + c.tile / 2};
}
__device__ __forceinline__ StepKeys fast_step(const Config& c, int block, int half) {
  if (c.score == ScorePattern::kNone) return plain_step(c, block, half);
  const int first = block * c.block + half * (c.tile / 2);
  return {first, first + c.block / 2};
}

/// A plain step without a live key for any row is skipped, by producer and consumers alike.
__device__ __forceinline__ bool is_live(const Config& c, const Item& item, StepKeys keys) {
  return keys.first < item.live_end && keys.first + c.tile > item.live_begin;
}

}  // namespace twofour::cuda::sm90
