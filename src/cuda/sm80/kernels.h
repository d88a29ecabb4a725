// The compiled kernels by row number, and what a launch of each needs.
#pragma once

#include "cuda/sm80/config.h"

namespace twofour::cuda::sm80 {

struct Compiled {
  const void* kernel = nullptr;  // attention_kernel<row>; null: the row is in another file
  int fixed_bytes = 0;           // of shared memory
  int stage_bytes = 0;
};

// A file each, so that they compile side by side.
Compiled compiled_fp16_d64(int row);
Compiled compiled_fp16_d96(int row);
Compiled compiled_fp16_d128(int row);
Compiled compiled_bf16_d64(int row);
Compiled compiled_bf16_d96(int row);
Compiled compiled_bf16_d128(int row);
Compiled compiled_fp16_trace(int row);
Compiled compiled_bf16_trace(int row);

inline Compiled compiled(int row) {
  const Config& c = kRows[row];
  const bool fp16 = c.dtype == DType::kF16;
  if (c.trace) return fp16 ? compiled_fp16_trace(row) : compiled_bf16_trace(row);
  if (c.head_dim == 64) return fp16 ? compiled_fp16_d64(row) : compiled_bf16_d64(row);
  if (c.head_dim == 96) return fp16 ? compiled_fp16_d96(row) : compiled_bf16_d96(row);
  return fp16 ? compiled_fp16_d128(row) : compiled_bf16_d128(row);
}

}  // namespace twofour::cuda::sm80
