// The compiled kernels by row number, and what a launch of each needs.
#pragma once

#include "cuda/sm90/config.h"

namespace twofour::cuda::sm90 {

struct Compiled {
  const void* kernel = nullptr;  // attention_kernel<row>; null: the row is of another head_dim
  int shared_bytes = 0;
};

Compiled compiled_d64(int row);
Compiled compiled_d128(int row);

inline Compiled compiled(int row) {
  return kRows[row].head_dim == 64 ? compiled_d64(row) : compiled_d128(row);
}

}  // namespace twofour::cuda::sm90
