// Scalar conversions between the 16-bit formats and float, and typed element access.
// Round to nearest even; NaN stays NaN; the vector code in src/cpu gives the same bits.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "twofour/tensor.h"

namespace twofour {

constexpr float f16_to_f32(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half & 0x8000u} << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1Fu;
  const std::uint32_t mantissa = half & 0x3FFu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24 is exact in float
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

constexpr std::uint16_t f32_to_f16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint16_t sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return sign | 0x7E00u;   // NaN
  if (magnitude >= 0x477FF000u) return sign | 0x7C00u;  // rounds to infinity
  if (magnitude < 0x38800000u) {                        // subnormal: let the FPU round
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(shifted) - 0x3F000000u);
  }
  const std::uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return sign | static_cast<std::uint16_t>((rounded - 0x38000000u) >> 13);
}

constexpr float bf16_to_f32(std::uint16_t value) {
  return std::bit_cast<float>(std::uint32_t{value} << 16);
}

constexpr std::uint16_t f32_to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

/// Element `index` of an fp32, fp16 or bf16 array as float.
inline float load_float(const void* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::kF16:
      return f16_to_f32(static_cast<const std::uint16_t*>(data)[index]);
    case DType::kBF16:
      return bf16_to_f32(static_cast<const std::uint16_t*>(data)[index]);
    default:
      return static_cast<const float*>(data)[index];
  }
}

inline void store_float(void* data, DType dtype, std::int64_t index, float value) {
  switch (dtype) {
    case DType::kF16:
      static_cast<std::uint16_t*>(data)[index] = f32_to_f16(value);
      break;
    case DType::kBF16:
      static_cast<std::uint16_t*>(data)[index] = f32_to_bf16(value);
      break;
    default:
      static_cast<float*>(data)[index] = value;
  }
}

/// `value` rounded to the format and back.
inline float round_to(DType dtype, float value) {
  if (dtype == DType::kF16) return f16_to_f32(f32_to_f16(value));
  if (dtype == DType::kBF16) return bf16_to_f32(f32_to_bf16(value));
  return value;
}

}  // namespace twofour
