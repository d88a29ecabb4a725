// Preparing K on the device: launches, in the order of the stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "layout/schedule.h"
#include "twofour/status.h"
#include "twofour/tensor.h"

namespace twofour::cuda {

/// Where the sequences of a call lie; packed ones are read from the device.
struct Sequences {
  bool packed = false;
  int batch = 1;
  int seqlen_q = 0, seqlen_k = 0;              // packed: the longest
  const std::int32_t* cu_seqlens_q = nullptr;  // [B+1]
  const std::int32_t* cu_seqlens_k = nullptr;  // [B+1]
  std::int32_t* row_blocks = nullptr;          // [B+1], packed: row tiles before each sequence
  std::int32_t* key_blocks = nullptr;          // [B+1], packed: key blocks before each sequence
  bool causal = false;
  Align align = Align::kBottomRight;
  Window window;
  int block = 128;
  int row_tile = static_cast<int>(layout::kRowBlock);  // aligned runs of so many positions
};

/// Channels that the kernels pad Q, K and V to, of the wider of head_dim and head_dim_v.
constexpr int padded_head_dim(const AttentionProblem& p) {
  return p.head_dim <= 64 && p.head_dim_v <= 64 ? 64 : 128;
}

/// The sequences of a call, without row_blocks and key_blocks.
Sequences sequences_of(const AttentionProblem& problem, const AttentionArgs& args);

/// Fills row_blocks and key_blocks of a packed call.
Status count_blocks(const Sequences& sequences, cudaStream_t stream);

/// K and its int8 form (docs/semantics.md, rule 5).
struct QuantisedKeys {
  const void* k = nullptr;  // [B,N,Hkv,D] by strides in elements
  DType dtype = DType::kF16;
  std::int64_t batch_stride = 0, row_stride = 0, head_stride = 0;
  int heads = 1, head_dim = 64;
  int padded_dim = 64;    // of codes and mean: 64 or 128, zero beyond head_dim
  std::int64_t rows = 0;  // B * N, or the packed total
  std::int64_t total_blocks = 0;
  std::int8_t* codes = nullptr;  // [Hkv, rows, padded]
  float* scale = nullptr;        // [Hkv, total_blocks]
  float* mean = nullptr;         // [Hkv, B, padded]
  float* partial = nullptr;      // [Hkv, B, mean_chunks, padded + 1], scratch
};

/// Keys whose sum is one partial of the mean.
inline constexpr int kMeanKeys = 512;
constexpr int mean_chunks(std::int64_t seqlen_k) {
  return static_cast<int>((seqlen_k + kMeanKeys - 1) / kMeanKeys);
}

/// The keys of a call, without total_blocks and the memory that quantise_keys writes.
QuantisedKeys keys_of(const AttentionProblem& problem, const AttentionArgs& args);

Status quantise_keys(const Sequences& sequences, const QuantisedKeys& keys, cudaStream_t stream);

}  // namespace twofour::cuda
