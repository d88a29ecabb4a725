// One sparse row times a dense matrix, in registers. Included once per instruction set.
//
// The inner loop of both sparse products: each kept coefficient is one broadcast and A + B
// multiply-adds that read the matrix straight from memory. With four sums or fewer the even and the
// odd coefficients get sums of their own: eight chains keep two multiply-add units busy (+5 % on
// an Intel Xeon; nothing on Zen 4, which has one). More rows at a time measured slower.

#if defined(TWOFOUR_CPU_SPARSE_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TWOFOUR_CPU_SPARSE_ROW_INL_H_
#undef TWOFOUR_CPU_SPARSE_ROW_INL_H_
#else
#define TWOFOUR_CPU_SPARSE_ROW_INL_H_
#endif

#include <cstdint>

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace twofour::cpu {
namespace HWY_NAMESPACE {

/// out[0 .. A) and out[out_delta ..+ B) vectors (+)= sum_k coef[k] * base[offset[k] ...], the
/// second segment `delta` floats after the first. `count` is even.
template <int A, int B, bool kAccumulate>
HWY_INLINE void sparse_row(float* HWY_RESTRICT out, std::int64_t out_delta,
                           const float* HWY_RESTRICT coef, const std::int32_t* HWY_RESTRICT offset,
                           std::int64_t count, const float* HWY_RESTRICT base, std::int64_t delta) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<float> d;
  constexpr std::int64_t kLanes = HWY_LANES(float);
  constexpr int kSums = A + B <= 4 ? 2 : 1;
  hn::Vec<decltype(d)> lo[kSums][A], hi[kSums][B > 0 ? B : 1];
  for (int u = 0; u < kSums; ++u) {
    for (int j = 0; j < A; ++j)
      lo[u][j] = kAccumulate && u == 0 ? hn::LoadU(d, out + j * kLanes) : hn::Zero(d);
    for (int j = 0; j < B; ++j)
      hi[u][j] = kAccumulate && u == 0 ? hn::LoadU(d, out + out_delta + j * kLanes) : hn::Zero(d);
  }
  for (std::int64_t k = 0; k < count; k += kSums) {
    for (int u = 0; u < kSums; ++u) {
      const auto c = hn::Set(d, coef[k + u]);
      const float* HWY_RESTRICT source = base + offset[k + u];
      for (int j = 0; j < A; ++j)
        lo[u][j] = hn::MulAdd(c, hn::Load(d, source + j * kLanes), lo[u][j]);
      for (int j = 0; j < B; ++j)
        hi[u][j] = hn::MulAdd(c, hn::Load(d, source + delta + j * kLanes), hi[u][j]);
    }
  }
  if constexpr (kSums == 2) {
    for (int j = 0; j < A; ++j) lo[0][j] = hn::Add(lo[0][j], lo[1][j]);
    for (int j = 0; j < B; ++j) hi[0][j] = hn::Add(hi[0][j], hi[1][j]);
  }
  for (int j = 0; j < A; ++j) hn::StoreU(lo[0][j], d, out + j * kLanes);
  for (int j = 0; j < B; ++j) hn::StoreU(hi[0][j], d, out + out_delta + j * kLanes);
}

}  // namespace HWY_NAMESPACE
}  // namespace twofour::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard
