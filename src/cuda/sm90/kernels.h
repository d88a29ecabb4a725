// The compiled kernels by row number, and what a launch of each needs.
#pragma once

#include "cuda/sm90/config.h"

namespace twofour::cuda::sm90 {

struct Compiled {
  const void* kernel = nullptr;  // attention_kernel<row>; null: the row is in another file
  int shared_bytes = 0;
};

// A file each, so that they compile side by side.
Compiled compiled_fp16_d64(int row);
Compiled compiled_fp16_d128(int row);
Compiled compiled_bf16_d64(int row);
Compiled compiled_bf16_d128(int row);
Compiled compiled_fp16_d64_trace(int row);
Compiled compiled_fp16_d128_trace(int row);
Compiled compiled_bf16_d64_trace(int row);
Compiled compiled_bf16_d128_trace(int row);

inline Compiled compiled(int row) {
  const Config& c = kRows[row];
  if (c.dtype == DType::kF16 && c.head_dim == 64)
    return c.trace ? compiled_fp16_d64_trace(row) : compiled_fp16_d64(row);
  if (c.dtype == DType::kF16)
    return c.trace ? compiled_fp16_d128_trace(row) : compiled_fp16_d128(row);
  if (c.head_dim == 64) return c.trace ? compiled_bf16_d64_trace(row) : compiled_bf16_d64(row);
  return c.trace ? compiled_bf16_d128_trace(row) : compiled_bf16_d128(row);
}

}  // namespace twofour::cuda::sm90
