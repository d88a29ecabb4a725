// int8 codes of eight neighbouring values (docs/semantics.md, rule 5).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "cuda/ptx/math.h"

namespace twofour::cuda::tile {

/// Eight codes, the first in the lowest byte.
struct Codes {
  std::uint32_t word[2];
};

/// value / scale rounded half to even, |value| <= 127 scale. As the division gives it, at the price
/// of a product: that is off by two units in the last place, which matters beside a tie alone.
__host__ __device__ __forceinline__ Codes quantise(const float (&value)[8], float scale) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: the code in the low bits of the sum
  constexpr float kBesideTie = 1e-4f;
#ifdef __CUDA_ARCH__
  const float inverse = __frcp_rn(scale);
#else
  const float inverse = 1.0f / scale;
#endif
  std::uint32_t bits[8];
  bool tie = false;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float quotient = value[i] * inverse;
    const float shifted = quotient + kShift;
    tie |= !(std::fabs(std::fabs(quotient - (shifted - kShift)) - 0.5f) >= kBesideTie);
    bits[i] = std::bit_cast<std::uint32_t>(shifted);
  }
  if (tie) {
#pragma unroll
    for (int i = 0; i < 8; ++i) bits[i] = std::bit_cast<std::uint32_t>(value[i] / scale + kShift);
  }
  Codes codes;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t low = ptx::permute(bits[4 * i], bits[4 * i + 1], 0x0040);
    const std::uint32_t high = ptx::permute(bits[4 * i + 2], bits[4 * i + 3], 0x0040);
    codes.word[i] = ptx::permute(low, high, 0x5410);
  }
  return codes;
}

}  // namespace twofour::cuda::tile
