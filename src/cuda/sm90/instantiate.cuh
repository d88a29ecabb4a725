// Compiles the rows that a file is for.
#pragma once

#include <utility>

#include "cuda/sm90/attention.cuh"
#include "cuda/sm90/kernels.h"

namespace twofour::cuda::sm90 {

/// `Chosen` is a constexpr predicate of a Config; other rows stay null.
template <auto kChosen, int kRow>
Compiled compile_row() {
  if constexpr (kChosen(kRows[kRow]))
    return {reinterpret_cast<const void*>(&attention_kernel<kRow>),
            Shared<kRows[kRow]>::kAllocated};
  else
    return {};
}

template <auto kChosen, int... kRow>
std::array<Compiled, kRowCount> compile_rows(std::integer_sequence<int, kRow...>) {
  return {compile_row<kChosen, kRow>()...};
}

template <auto kChosen>
Compiled compiled_row(int row) {
  static const auto rows = compile_rows<kChosen>(std::make_integer_sequence<int, kRowCount>());
  return rows[row];
}

}  // namespace twofour::cuda::sm90
