// The change of basis of Q and K (docs/semantics.md, rule 5): launches, in the order of the stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "twofour/status.h"
#include "twofour/tensor.h"

namespace twofour::cuda {

/// Rows and the basis they go to: out = x T, summed in fp32 and rounded once, half to even.
struct TransformedRows {
  // [B,N,H,D] by strides in elements; 16-byte aligned, strides in whole chunks of 8 elements.
  const void* x = nullptr;
  DType dtype = DType::kF16;
  std::int64_t batch_stride = 0, row_stride = 0, head_stride = 0;
  std::int64_t batch = 1, rows = 0;  // rows of a sequence; packed: one of all rows
  int heads = 1;
  int heads_per_kv = 1;      // head h goes by T of h / heads_per_kv; 1 for K
  int head_dim = 64;         // a multiple of 8, up to 128
  const float* t = nullptr;  // [Hkv,D,D]
  void* out = nullptr;       // [B,N,H,D] contiguous, dtype of x; 16-byte aligned, apart from x
  void* split = nullptr;     // scratch of transform_split_bytes, 16-byte aligned
};

/// Scratch for T as parts of 16 bits. One scratch serves the calls of a stream one after another.
std::size_t transform_split_bytes(int heads_kv, int head_dim);

Status transform_rows(const TransformedRows& rows, cudaStream_t stream);

}  // namespace twofour::cuda
