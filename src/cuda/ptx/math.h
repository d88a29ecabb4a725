// One wrapper per arithmetic instruction that C++ has no name for. On the host the same functions
// compute the same results, so that register code can be tested without a GPU.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "twofour/tensor.h"

namespace twofour::cuda::ptx {

/// 2^x, ex2.approx.ftz: two units in the last place; 2^-inf = 0.
__host__ __device__ __forceinline__ float ex2(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::exp2(x);
#endif
}

/// The larger; NaN when either is.
__host__ __device__ __forceinline__ float max_nan(float a, float b) {
#ifdef __CUDA_ARCH__
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
#else
  return a != a || b != b ? NAN : (a < b ? b : a);
#endif
}

/// Bytes of {b, a} picked by the nibbles of the selector; a nibble with bit 3 set gives the
/// byte's sign bit eight times.
__host__ __device__ __forceinline__ std::uint32_t permute(std::uint32_t a, std::uint32_t b,
                                                          std::uint32_t selector) {
#ifdef __CUDA_ARCH__
  std::uint32_t y;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(selector));
  return y;
#else
  const std::uint64_t bytes = std::uint64_t{b} << 32 | a;
  std::uint32_t y = 0;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t pick = selector >> (4 * i) & 0xF;
    std::uint32_t byte = static_cast<std::uint32_t>(bytes >> (8 * (pick & 7)) & 0xFF);
    if (pick & 8) byte = byte & 0x80 ? 0xFF : 0;
    y |= byte << (8 * i);
  }
  return y;
#endif
}

__host__ __device__ __forceinline__ std::uint32_t rotate_left(std::uint32_t x, int by) {
#ifdef __CUDA_ARCH__
  return __funnelshift_l(x, x, by);
#else
  return std::rotl(x, by);
#endif
}

/// Two values rounded to nearest even and packed, `low` in the low half.
template <DType kType>
__host__ __device__ __forceinline__ std::uint32_t pack(float low, float high) {
  static_assert(kType == DType::kF16 || kType == DType::kBF16);
#ifdef __CUDA_ARCH__
  std::uint32_t y;
  if constexpr (kType == DType::kF16)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
#else
  if constexpr (kType == DType::kF16)
    return std::uint32_t{std::bit_cast<std::uint16_t>(__float2half_rn(low))} |
           std::uint32_t{std::bit_cast<std::uint16_t>(__float2half_rn(high))} << 16;
  else
    return std::uint32_t{std::bit_cast<std::uint16_t>(__float2bfloat16_rn(low))} |
           std::uint32_t{std::bit_cast<std::uint16_t>(__float2bfloat16_rn(high))} << 16;
#endif
}

/// The halves of a packed register as fp32.
template <DType kType>
__host__ __device__ __forceinline__ float unpack_low(std::uint32_t packed) {
  const auto bits = static_cast<std::uint16_t>(packed);
  if constexpr (kType == DType::kF16) return __half2float(std::bit_cast<__half>(bits));
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}
template <DType kType>
__host__ __device__ __forceinline__ float unpack_high(std::uint32_t packed) {
  return unpack_low<kType>(packed >> 16);
}

}  // namespace twofour::cuda::ptx
