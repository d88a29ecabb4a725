// Compiles the rows that a file is for.
#pragma once

#include <utility>

#include "cuda/sm80/attention.cuh"
#include "cuda/sm80/kernels.h"

namespace twofour::cuda::sm80 {

/// `Chosen` is a constexpr predicate of a Config; other rows stay null.
template <auto kChosen, int kRow>
Compiled compile_row() {
  if constexpr (kChosen(kRows[kRow])) {
    using S = Shared<kRows[kRow]>;
    return {reinterpret_cast<const void*>(&attention_kernel<kRow>), S::allocated(0),
            S::kStageBytes};
  } else {
    return {};
  }
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

}  // namespace twofour::cuda::sm80
