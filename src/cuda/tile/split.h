// fp32 as a sum of 16-bit parts, so that tensor cores multiply by it as exactly as fp32 would.
//
// Each part is what is left, rounded: two of fp16 hold 22 bits, three of bf16 hold 24. The
// differences are exact in fp32. fp16 has few exponents, so that its columns are scaled first.
#pragma once

#include <bit>
#include <cstdint>

#include "cuda/ptx/math.h"

namespace twofour::cuda::tile {

template <DType kType>
inline constexpr int kSplitParts = kType == DType::kF16 ? 2 : 3;

/// Powers of two, each the other's inverse: entries are multiplied by `up` before they are split,
/// products by `down`.
struct ColumnScale {
  float up = 1, down = 1;
};

/// For a column whose largest magnitude is this. fp16: brings it to [2^14, 2^15), and then no more
/// than 2^-25 is lost of any entry. Both powers stay normal: a column below 2^-112 is brought
/// less far, and its products with fp16 round to zero anyway. bf16 has the exponents of fp32.
template <DType kType>
__host__ __device__ __forceinline__ ColumnScale column_scale(float largest) {
  if constexpr (kType == DType::kBF16) return {};
  const auto exponent = static_cast<int>(std::bit_cast<std::uint32_t>(largest) >> 23);
  if (exponent == 255) return {};  // not finite, and so are all products
  const int up = exponent < 15 ? 253 : 268 - exponent;
  return {std::bit_cast<float>(static_cast<std::uint32_t>(up) << 23),
          std::bit_cast<float>(static_cast<std::uint32_t>(254 - up) << 23)};
}

/// Two scaled entries as packed parts, the largest part first.
template <DType kType>
__host__ __device__ __forceinline__ void split_pair(float low, float high,
                                                    std::uint32_t (&parts)[kSplitParts<kType>]) {
  for (int p = 0; p < kSplitParts<kType>; ++p) {
    parts[p] = ptx::pack<kType>(low, high);
    low -= ptx::unpack_low<kType>(parts[p]);
    high -= ptx::unpack_high<kType>(parts[p]);
  }
}

}  // namespace twofour::cuda::tile
