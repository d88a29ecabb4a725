// The pruned query: of each four channels the two of largest weighted magnitude.
#pragma once

#include <bit>
#include <cstdint>

#include "layout/metadata.h"

namespace twofour::cuda::tile {

/// What channels are compared by: w * |q| as bits, which order like the values for non-negative
/// floats, with NaN above infinity.
__host__ __device__ __forceinline__ std::uint32_t magnitude(float q, float w) {
  return std::bit_cast<std::uint32_t>(q * w) & 0x7FFFFFFFu;
}

/// Mask of the two largest of four; ties keep the lower channel (docs/semantics.md, rule 5).
__host__ __device__ __forceinline__ unsigned largest_two(const std::uint32_t (&m)[4]) {
  // Channel j goes before i when it is larger, or equal and lower.
  int before[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < i; ++j) {
      const bool lower_first = m[j] >= m[i];
      before[i] += lower_first;
      before[j] += !lower_first;
    }
  unsigned mask = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) mask |= static_cast<unsigned>(before[i] < 2) << i;
  return mask;
}

/// The kept two of four 16-bit channels as one register, and their nibble.
struct KeptGroup {
  std::uint32_t values;
  std::uint32_t nibble;
};
__host__ __device__ __forceinline__ KeptGroup keep_two(std::uint32_t q01, std::uint32_t q23,
                                                       const std::uint32_t (&m)[4]) {
  const std::uint32_t nibble = layout::nibble_of_mask(largest_two(m));
  const std::uint64_t all = std::uint64_t{q23} << 32 | q01;
  const auto at = [all](int channel) {
    return static_cast<std::uint32_t>(all >> (16 * channel)) & 0xFFFFu;
  };
  return {at(layout::nibble_first(nibble)) | at(layout::nibble_second(nibble)) << 16, nibble};
}

}  // namespace twofour::cuda::tile
