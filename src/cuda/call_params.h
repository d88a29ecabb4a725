// What a launch of attention tells the kernels of every architecture.
#pragma once

#include <cstdint>

#include "twofour/attention.h"

namespace twofour::cuda {

/// Strides in elements.
struct Rows {
  void* data = nullptr;
  std::int64_t batch = 0;
  std::int64_t row = 0;
  std::int64_t head = 0;
};

/// One call. Sequences of a packed call are found through the two prefix arrays.
struct CallParams {
  Rows q, o;
  float* lse;  // [B,Hq,M] by strides, or null
  std::int64_t lse_batch, lse_head, lse_row;
  int batch, heads_q, heads_kv, group;  // group = heads_q / heads_kv
  int head_dim, head_dim_v;
  int seqlen_q, seqlen_k;
  bool packed;
  const std::int32_t* cu_seqlens_q;  // [B+1]
  const std::int32_t* cu_seqlens_k;  // [B+1]
  const std::int32_t* row_blocks;    // [B+1], packed: row tiles before each sequence
  const std::int32_t* key_blocks;    // [B+1], packed: key blocks before each sequence
  bool causal;
  Align align;
  Window window;
  int sink_blocks, local_blocks;
  float scale;             // of scores, nats
  float scale_log2;        // |scale| * log2(e)
  const float* weights;    // [Hkv,D] of nm24, or null
  const float* key_scale;  // [Hkv, key blocks] of int8
  const float* key_mean;   // [Hkv,B,D]
  std::int64_t total_key_blocks;
  float refine_log2, drop_log2;
  unsigned long long* stats;              // AttentionStats, or null
  unsigned long long* kept;               // trace: [Hq, rows, words]
  unsigned char* unit;                    // trace: [Hq, rows, half-blocks]
  std::int64_t rows, words, half_blocks;  // of the trace
};

}  // namespace twofour::cuda
