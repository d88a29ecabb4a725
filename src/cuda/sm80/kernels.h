// The compiled kernels by row number, and what a launch of each needs.
#pragma once

#include <utility>

#include "cuda/sm80/config.h"

namespace twofour::cuda::sm80 {

struct Compiled {
  const void* kernel = nullptr;  // attention_kernel<row>
  int fixed_bytes = 0;           // of shared memory
  int stage_bytes = 0;
};

template <int kRow>
Compiled compiled_row();  // attention.cu

template <int... kRow>
Compiled compiled_row(std::integer_sequence<int, kRow...>, int row) {
  static constexpr Compiled (*kAll[])() = {&compiled_row<kRow>...};
  return kAll[row]();
}
inline Compiled compiled(int row) {
  return compiled_row(std::make_integer_sequence<int, kRowCount>(), row);
}

}  // namespace twofour::cuda::sm80
