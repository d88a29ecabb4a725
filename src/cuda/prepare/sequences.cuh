// One sequence of a call, on the device.
#pragma once

#include "cuda/prepare/keys.h"

namespace twofour::cuda {

struct Sequence {
  int seqlen_q, seqlen_k;
  std::int64_t first_row_k;  // in memory: b * N, or cu_seqlens_k[b]
  std::int64_t first_block;  // key blocks of the sequences before
  layout::KeyRange live;     // keys that some row sees
};

__device__ inline Sequence sequence_at(const Sequences& all, int b) {
  Sequence s;
  if (all.packed) {
    s.seqlen_q = all.cu_seqlens_q[b + 1] - all.cu_seqlens_q[b];
    s.seqlen_k = all.cu_seqlens_k[b + 1] - all.cu_seqlens_k[b];
    s.first_row_k = all.cu_seqlens_k[b];
    s.first_block = all.key_blocks[b];
  } else {
    s.seqlen_q = all.seqlen_q;
    s.seqlen_k = all.seqlen_k;
    s.first_row_k = std::int64_t{b} * all.seqlen_k;
    s.first_block = b * layout::ceil_div(all.seqlen_k, all.block);
  }
  layout::ScheduleShape shape;
  shape.seqlen_k = s.seqlen_k;
  shape.causal = all.causal;
  shape.window = all.window;
  const std::int64_t first = layout::first_position(all.causal, all.align, s.seqlen_q, s.seqlen_k);
  if (s.seqlen_q > 0)
    s.live = {shape.live_keys(first).begin, shape.live_keys(first + s.seqlen_q - 1).end};
  return s;
}

}  // namespace twofour::cuda
