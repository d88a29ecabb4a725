#include "cpu/convert.h"

#include <cmath>

#include "core/half.h"
#include "cpu/select.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/convert.cc"
#include "cpu/simd.h"

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace twofour::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D32 = hn::ScalableTag<float>;
using V32 = hn::Vec<D32>;
constexpr std::int64_t kLanes = HWY_LANES(float);

// SSE4 has no half conversions, and Highway's stand-ins for them do not round to nearest.
constexpr bool kHardwareHalf = HWY_TARGET != HWY_SSE4;

void load_row(float* dst, const void* src, DType dtype, std::int64_t n) {
  const D32 d;
  std::int64_t j = 0;
  if (dtype == DType::kF32) {
    const auto* values = static_cast<const float*>(src);
    for (; j + kLanes <= n; j += kLanes) hn::StoreU(hn::LoadU(d, values + j), d, dst + j);
  } else if (dtype == DType::kBF16) {
    const hn::Rebind<std::uint16_t, D32> d16;
    const hn::RebindToUnsigned<D32> du;
    const auto* bits = static_cast<const std::uint16_t*>(src);
    for (; j + kLanes <= n; j += kLanes)
      hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, bits + j)))), d,
                 dst + j);
  } else if constexpr (kHardwareHalf) {
    const hn::Rebind<hwy::float16_t, D32> d16;
    const auto* halves = static_cast<const hwy::float16_t*>(src);
    for (; j + kLanes <= n; j += kLanes)
      hn::StoreU(hn::PromoteTo(d, hn::LoadU(d16, halves + j)), d, dst + j);
  }
  for (; j < n; ++j) dst[j] = load_float(src, dtype, j);
}

void store_row(void* dst, DType dtype, const float* src, float factor, std::int64_t n) {
  const D32 d;
  const V32 f = hn::Set(d, factor);
  std::int64_t j = 0;
  if (dtype == DType::kF32) {
    auto* out = static_cast<float*>(dst);
    for (; j + kLanes <= n; j += kLanes) hn::StoreU(hn::Mul(hn::LoadU(d, src + j), f), d, out + j);
  } else if (dtype == DType::kF16) {
    if constexpr (kHardwareHalf) {
      const hn::Rebind<hwy::float16_t, D32> d16;
      auto* out = static_cast<hwy::float16_t*>(dst);
      for (; j + kLanes <= n; j += kLanes)
        hn::StoreU(hn::DemoteTo(d16, hn::Mul(hn::LoadU(d, src + j), f)), d16, out + j);
    }
  }
  if (dtype == DType::kBF16) {  // integer arithmetic, which the compiler vectorises by itself
    auto* out = static_cast<std::uint16_t*>(dst);
    for (; j < n; ++j) out[j] = f32_to_bf16(src[j] * factor);
  }
  for (; j < n; ++j) store_float(dst, dtype, j, src[j] * factor);
}

HWY_INLINE V32 centred(const float* x, const float* mean, std::int64_t j) {
  const D32 d;
  const V32 value = hn::LoadU(d, x + j);
  return mean ? hn::Sub(value, hn::LoadU(d, mean + j)) : value;
}

void quantise_row(std::int8_t* codes, const float* x, const float* mean, float scale,
                  std::int64_t n) {
  const D32 d;
  const V32 divisor = hn::Set(d, scale);
  const hn::Rebind<std::int8_t, D32> d8;
  std::int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    const V32 code =
        hn::Clamp(hn::Div(centred(x, mean, j), divisor), hn::Set(d, -127.0f), hn::Set(d, 127.0f));
    hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(code)), d8, codes + j);
  }
  for (; j < n; ++j) {
    const float code = (x[j] - (mean ? mean[j] : 0.0f)) / scale;
    // NaN fails every comparison and becomes 0: converting it would be undefined.
    codes[j] = code >= -127.0f && code <= 127.0f ? static_cast<std::int8_t>(std::nearbyint(code))
                                                 : static_cast<std::int8_t>(code > 127.0f    ? 127
                                                                            : code < -127.0f ? -127
                                                                                             : 0);
  }
}

float amax_row(const float* x, const float* mean, std::int64_t n) {
  const D32 d;
  V32 top = hn::Zero(d);
  bool nan = false;
  std::int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    const V32 value = hn::Abs(centred(x, mean, j));
    nan |= !hn::AllFalse(d, hn::IsNaN(value));
    top = hn::Max(top, value);
  }
  float result = hn::GetLane(hn::MaxOfLanes(d, top));
  for (; j < n; ++j) {
    const float value = std::fabs(x[j] - (mean ? mean[j] : 0.0f));
    nan |= value != value;
    result = value > result ? value : result;
  }
  return nan ? std::nanf("") : result;
}

void select_channels(float* coef, std::int32_t* offset, const float* x, const float* w,
                     float factor, std::int64_t width, std::int64_t n) {
  const D32 d;
  const hn::RebindToSigned<D32> di;
  const V32 f = hn::Set(d, factor);
  const auto lane = hn::Iota(di, 0);
  // Which lanes are the lower index of the pairs (c, c^1), and of (c, c^2) and (c, c^3).
  const auto lower1 = hn::Eq(hn::And(lane, hn::Set(di, 1)), hn::Zero(di));
  const auto lower2 = hn::Eq(hn::And(lane, hn::Set(di, 2)), hn::Zero(di));
  std::int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    const V32 value = hn::LoadU(d, x + j);
    V32 weight = hn::Abs(value);
    if (w) weight = hn::Mul(weight, hn::LoadU(d, w + j));
    // The bits of non-negative floats order as integers; all NaN become one largest value.
    const auto key = hn::IfThenElse(hn::RebindMask(di, hn::IsNaN(weight)), hn::Set(di, 0x7FFFFFFF),
                                    hn::BitCast(di, weight));
    auto beats = [&](auto other, auto lower) HWY_ATTR {
      return hn::Or(hn::Gt(key, other), hn::And(hn::Eq(key, other), lower));
    };
    const auto a = beats(hn::Shuffle2301(key), lower1);
    const auto b = beats(hn::Shuffle1032(key), lower2);
    const auto c = beats(hn::Shuffle0123(key), lower2);
    const auto kept = hn::Or(hn::And(a, b), hn::And(c, hn::Or(a, b)));
    hn::CompressStore(hn::Mul(value, f), hn::RebindMask(d, kept), d, coef + j / 2);
    const auto row = hn::Mul(hn::Add(lane, hn::Set(di, static_cast<std::int32_t>(j))),
                             hn::Set(di, static_cast<std::int32_t>(width)));
    hn::CompressStore(row, kept, di, offset + j / 2);
  }
  for (; j < n; j += 4) {
    float weight[4];
    for (int c = 0; c < 4; ++c) weight[c] = std::fabs(x[j + c]) * (w ? w[j + c] : 1.0f);
    const unsigned kept = best_two_of_four(weight[0], weight[1], weight[2], weight[3]);
    for (int c = 0, at = 0; c < 4; ++c) {
      if (!(kept >> c & 1)) continue;
      coef[j / 2 + at] = x[j + c] * factor;
      offset[j / 2 + at++] = static_cast<std::int32_t>((j + c) * width);
    }
  }
}

constexpr ConvertOps kConvertOps{&load_row, &store_row, &quantise_row, &amax_row, &select_channels};

}  // namespace HWY_NAMESPACE
}  // namespace twofour::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace twofour::cpu {
const ConvertOps* convert_ops(std::int64_t target) { TWOFOUR_FIND_TABLE(target, kConvertOps) }
}  // namespace twofour::cpu
#endif
