// One row at a time: to and from the caller's dtypes, to int8, to its two largest of each four.
#pragma once

#include <cstdint>

#include "twofour/tensor.h"

namespace twofour::cpu {

struct ConvertOps {
  /// dst[0..n) = src[0..n) as fp32; src is fp32, fp16 or bf16.
  void (*load_row)(float* dst, const void* src, DType dtype, std::int64_t n);
  /// dst[0..n) = src[0..n) * factor, rounded to nearest even.
  void (*store_row)(void* dst, DType dtype, const float* src, float factor, std::int64_t n);
  /// codes[0..n) = round half to even of (x - mean) / scale, in -127..127. mean may be null (0).
  /// A NaN gives an unspecified code.
  void (*quantise_row)(std::int8_t* codes, const float* x, const float* mean, float scale,
                       std::int64_t n);
  /// The largest |x - mean| over n values; NaN or infinity when one is. mean may be null.
  float (*amax_row)(const float* x, const float* mean, std::int64_t n);
  /// Of each four x the two with the largest w |x| (w null: 1; rules of cpu/select.h): writes
  /// x * factor to coef[0..n/2) and (index of x) * width to offset[0..n/2). May write up to 16
  /// elements past either.
  void (*select_channels)(float* coef, std::int32_t* offset, const float* x, const float* w,
                          float factor, std::int64_t width, std::int64_t n);
};

/// The table of a Highway target bit (cpu/targets.h), or null when it is not built.
const ConvertOps* convert_ops(std::int64_t target);

}  // namespace twofour::cpu
