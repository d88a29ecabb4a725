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

/// What the softmax of a row knows after a part of its keys, beside the unnormalised O: everything
/// is relative to 2^reference, an integer, so that parts are brought to one reference exactly.
struct PartRow {
  float reference;  // log2 units, -inf when no key of the part is live
  float sum;        // of the probabilities, 0 then
  float shift;      // of the LSE, nats (int8)
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
  int parts;                              // of the keys of a row (layout/key_parts.h)
  PartRow* part_rows;                     // [parts,B,Hq,M], with more than one part
  float* part_o;                          // [parts,B,Hq,M,Dv]
  std::int64_t rows_of_part;
};

}  // namespace twofour::cuda
