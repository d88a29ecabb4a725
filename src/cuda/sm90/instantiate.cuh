// Compiles the rows of one head_dim: a translation unit each, so that they compile side by side.
#pragma once

#include <array>
#include <utility>

#include "cuda/sm90/attention.cuh"
#include "cuda/sm90/kernels.h"

namespace twofour::cuda::sm90 {

template <int kRow, int kHeadDim>
Compiled compile_row() {
  if constexpr (kRows[kRow].head_dim == kHeadDim)
    return {reinterpret_cast<const void*>(&attention_kernel<kRow>),
            Shared<kRows[kRow]>::kAllocated};
  else
    return {};
}

template <int kHeadDim, int... kRow>
std::array<Compiled, kRowCount> compile_rows(std::integer_sequence<int, kRow...>) {
  return {compile_row<kRow, kHeadDim>()...};
}

template <int kHeadDim>
Compiled compiled_row(int row) {
  static const auto rows = compile_rows<kHeadDim>(std::make_integer_sequence<int, kRowCount>());
  return rows[row];
}

}  // namespace twofour::cuda::sm90
