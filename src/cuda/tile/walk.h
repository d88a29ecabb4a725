// The walk of one row block over its key blocks, plain ones and then fast ones (docs/semantics.md,
// rules 3 and 6), and the place of a row tile in a call: what kernels of all architectures share.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <climits>
#include <cstdint>

#include "cuda/call_params.h"
#include "layout/schedule.h"

namespace twofour::cuda {

#ifndef __CUDACC__  // host tests include this too
using std::max;
using std::min;
#endif

/// Heads that are worked on together, so that their K and V stay in the L2 cache.
inline constexpr int kHeadsTogether = 4;

__host__ __device__ inline layout::ScheduleShape schedule_shape(const CallParams& p, int block,
                                                                int seqlen_k) {
  layout::ScheduleShape shape;
  shape.seqlen_k = seqlen_k;
  shape.block = block;
  shape.causal = p.causal;
  shape.window = p.window;
  shape.sink_blocks = p.sink_blocks;
  shape.local_blocks = p.local_blocks;
  return shape;
}

/// The key blocks of one row block.
struct Walk {
  int row_block;                       // positions 192 * row_block and on
  int live_begin, live_end;            // keys that some existing row of the row block sees
  int first, last;                     // key blocks with live pairs
  int pruned_begin[2], pruned_end[2];  // the two runs that the fast body serves, in [first, last)

  __host__ __device__ int fast_blocks() const {
    return pruned_end[0] - pruned_begin[0] + pruned_end[1] - pruned_begin[1];
  }
  __host__ __device__ int plain_blocks() const { return last - first - fast_blocks(); }
  __host__ __device__ bool is_fast(int block) const {
    return (block >= pruned_begin[0] && block < pruned_end[0]) ||
           (block >= pruned_begin[1] && block < pruned_end[1]);
  }
  __host__ __device__ bool is_plain(int block) const {
    return block >= first && block < last && !is_fast(block);
  }
  /// The lowest plain or fast block from `block` on, INT_MAX when there is none.
  __host__ __device__ int next_plain(int block) const {
    block = max(block, first);
    for (int run = 0; run < 2; ++run)
      if (block >= pruned_begin[run] && block < pruned_end[run]) block = pruned_end[run];
    return block < last ? block : INT_MAX;
  }
  __host__ __device__ int next_fast(int block) const {
    for (int run = 0; run < 2; ++run) {
      const int next = max(block, pruned_begin[run]);
      if (next < pruned_end[run]) return next;
    }
    return INT_MAX;
  }
};

/// `position` is that of row 0 of the sequence.
__host__ __device__ inline Walk make_walk(const layout::ScheduleShape& shape, int row_block,
                                          int position, int seqlen_q) {
  constexpr int kRows = static_cast<int>(layout::kRowBlock);
  Walk walk{};
  walk.row_block = row_block;
  const int lowest = max(row_block * kRows, position);
  const int highest = min(row_block * kRows + kRows - 1, position + seqlen_q - 1);
  if (lowest > highest) return walk;  // no row of it exists
  const layout::RowBlockSchedule s = layout::schedule_row_block(shape, row_block);
  walk.live_begin = static_cast<int>(shape.live_keys(lowest).begin);
  walk.live_end = static_cast<int>(shape.live_keys(highest).end);
  walk.first = static_cast<int>(s.first);
  walk.last = static_cast<int>(s.last);
  // kind() is kPruned in [full_begin, full_end) above the sinks and beside the diagonal.
  const int low = max(static_cast<int>(max(s.full_begin, s.sink_end)), walk.first);
  const int high = max(low, min(static_cast<int>(s.full_end), walk.last));
  walk.pruned_begin[0] = low;
  walk.pruned_end[0] = max(low, min(high, static_cast<int>(s.diag_begin)));
  walk.pruned_begin[1] = min(high, max(walk.pruned_end[0], static_cast<int>(s.diag_end)));
  walk.pruned_end[1] = high;
  return walk;
}

/// Leaves part `part` of `parts` of the key blocks, the same number in each but for rounding. What
/// is live, fast or plain was decided for all of them.
__host__ __device__ inline void keep_part(Walk& walk, int part, int parts) {
  const int blocks = walk.last - walk.first;  // at most 2^24, times kMaxKeySplits fits
  const int first = walk.first + blocks * part / parts;
  const int last = walk.first + blocks * (part + 1) / parts;
  for (int run = 0; run < 2; ++run) {
    walk.pruned_begin[run] = min(max(walk.pruned_begin[run], first), last);
    walk.pruned_end[run] = min(max(walk.pruned_end[run], first), last);
  }
  walk.first = first;
  walk.last = last;
}

/// Rows of the registry whose work on a row block may be split: units that decide look back at all
/// keys before them, and debugging rows show what those they stand for decide in one part.
template <class Config>
constexpr bool may_split(const Config& c) {
  return !c.decides() && !c.trace;
}

/// The sequence of a row tile, and which tile of it.
struct Place {
  int b;
  int seqlen_q, seqlen_k;
  int first_row_q, first_row_k;  // of a packed call, else 0
  int tile;                      // positions rows * tile and on
  int position;                  // of row 0 of the sequence
};

/// Row tiles of `rows` positions in the whole call, of one head. Packed: p.row_blocks counts them.
__device__ inline int total_row_tiles(const CallParams& p, int rows) {
  if (p.packed) return p.row_blocks[p.batch];
  const int first =
      static_cast<int>(layout::first_position(p.causal, p.align, p.seqlen_q, p.seqlen_k));
  const int lowest = static_cast<int>(layout::floor_div(first, rows));
  const int highest =
      static_cast<int>(layout::floor_div(first + std::int64_t{p.seqlen_q} - 1, rows));
  return p.batch * (highest - lowest + 1);
}

/// Of row tile `rank` among all of the call.
__device__ inline Place place_of(const CallParams& p, int rank, int rows) {
  Place at{};
  if (p.packed) {
    int low = 0, high = p.batch;  // the last sequence that starts at or before `rank`
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (p.row_blocks[middle] <= rank)
        low = middle;
      else
        high = middle;
    }
    at.b = low;
    rank -= p.row_blocks[low];
    at.first_row_q = p.cu_seqlens_q[low];
    at.first_row_k = p.cu_seqlens_k[low];
    at.seqlen_q = p.cu_seqlens_q[low + 1] - at.first_row_q;
    at.seqlen_k = p.cu_seqlens_k[low + 1] - at.first_row_k;
  } else {
    at.b = rank % p.batch;
    rank /= p.batch;
    at.seqlen_q = p.seqlen_q;
    at.seqlen_k = p.seqlen_k;
  }
  at.position =
      static_cast<int>(layout::first_position(p.causal, p.align, at.seqlen_q, at.seqlen_k));
  at.tile = rank + static_cast<int>(layout::floor_div(at.position, rows));
  return at;
}

/// Work items of the call: the parts of a row tile of a head follow each other.
__device__ inline int work_items(const CallParams& p, int row_tiles) {
  return row_tiles * p.heads_q * p.parts;
}

/// Of item `index`, counted without parts: later row tiles, which have more keys under causality,
/// come first.
struct Turn {
  int head;
  int rank;  // of the row tile
};
__device__ inline Turn turn_of(const CallParams& p, int index, int row_tiles) {
  const int per_group = row_tiles * kHeadsTogether;
  const int head_group = index / per_group;
  const int in_group = index - head_group * per_group;
  const int heads = min(kHeadsTogether, p.heads_q - head_group * kHeadsTogether);
  return {head_group * kHeadsTogether + in_group % heads, row_tiles - 1 - in_group / heads};
}

/// A sequence of the call and a head: what the work on any of its row tiles needs to know.
struct Task {
  int b, head, kv_head;
  int seqlen_q, seqlen_k;
  int first_row_q;             // of the sequence in packed memory, else 0
  int key_row, key_batch;      // where its keys start; codes of int8 are numbered through the call
  int value_row, value_batch;  // and its values
  int trace_row;               // first row of the sequence in the numbering of Decisions
  int position;                // of row 0 of the sequence
  int first_key_block;         // of the sequence among all, for the scales of int8
  int part;                    // of the keys
};
template <class Config>
__device__ inline Task task_of(const CallParams& p, const Config& c, int head, const Place& at) {
  Task task;
  task.b = at.b;
  task.head = head;
  task.kv_head = head / p.group;
  task.seqlen_q = at.seqlen_q;
  task.seqlen_k = at.seqlen_k;
  task.first_row_q = at.first_row_q;
  task.key_row = task.value_row = at.first_row_k;
  task.key_batch = task.value_batch = p.packed ? 0 : at.b;
  if (c.qk == QKProduct::kInt8 && !p.packed) {
    task.key_row = at.b * p.seqlen_k;
    task.key_batch = 0;
  }
  task.trace_row = p.packed ? at.first_row_q : at.b * p.seqlen_q;
  task.position = at.position;
  task.first_key_block = p.packed ? p.key_blocks[at.b]
                                  : at.b * static_cast<int>(layout::ceil_div(at.seqlen_k, c.block));
  task.part = 0;
  return task;
}

/// Keys of step `half` of a block: the first half of them starts at `first`, the other at `second`.
/// Plain steps are contiguous; fast steps are half-blocks, or the block when the step is.
struct StepKeys {
  int first;
  int second;
};
template <class Config>
__host__ __device__ __forceinline__ StepKeys plain_step(const Config& c, int block, int half) {
  const int first = block * c.block + half * c.tile;
  return {first, first + c.tile / 2};
}
template <class Config>
__host__ __device__ __forceinline__ StepKeys fast_step(const Config& c, int block, int half) {
  if (c.score == ScorePattern::kNone) return plain_step(c, block, half);
  const int first = block * c.block + half * (c.tile / 2);
  return {first, first + c.block / 2};
}

}  // namespace twofour::cuda
