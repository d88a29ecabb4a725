#include "cpu/softmax.h"

#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/softmax.cc"
#include "cpu/simd.h"

#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/sparse_row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace twofour::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D32 = hn::ScalableTag<float>;
using V32 = hn::Vec<D32>;
constexpr std::int64_t kLanes = HWY_LANES(float);
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// 2^r on [-1/2, 1/2] as a polynomial with constant term 1, minimax: relative error 1e-7 (1.6e-7 in
// fp32).
constexpr float kExp2Coefficients[] = {1.0f,
                                       0.6931470036506653f,
                                       0.24022242426872253f,
                                       0.05550733953714371f,
                                       0.009671512059867382f,
                                       0.0013264664448797703f};

// 2^x for x <= 0: the polynomial and an exact power of two. Below -125 it gives 0, so -inf gives 0;
// NaN stays NaN.
HWY_INLINE V32 exp2_nonpositive(V32 x) {
  const D32 d;
  const hn::RebindToSigned<D32> di;
  const V32 lowest = hn::Set(d, -125.0f);
  const V32 clamped = hn::Max(lowest, x);     // in this order x86 keeps a NaN
  const V32 magic = hn::Set(d, 12582912.0f);  // 1.5 * 2^23: the sum's low bits are round(x)
  const V32 shifted = hn::Add(clamped, magic);
  const V32 r = hn::Sub(clamped, hn::Sub(shifted, magic));
  V32 p = hn::Set(d, kExp2Coefficients[5]);
  for (int i = 4; i >= 0; --i) p = hn::MulAdd(p, r, hn::Set(d, kExp2Coefficients[i]));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  const V32 power = hn::BitCast(d, hn::Add(exponent, hn::Set(di, 0x3F800000)));
  return hn::IfThenZeroElse(hn::Lt(x, lowest), hn::Mul(p, power));
}

HWY_INLINE float exp2_one(float x) { return hn::GetLane(exp2_nonpositive(hn::Set(D32(), x))); }

// Row i has seen scores up to `highest` (or NaN): raise m and bring l and o to the new reference.
// An m that is NaN stays so; everything the row adds from then on is NaN.
HWY_INLINE void raise_maximum(const RowState& state, std::int64_t i, float highest) {
  const D32 d;
  const float before = state.m[i];
  if (before != before || highest <= before) return;
  state.m[i] = highest;
  if (before == -kInfinity) return;  // l and o are still zero
  const V32 factor = hn::Set(d, exp2_one(before - highest));
  float* l = state.l + i * kSumLanes;
  hn::StoreU(hn::Mul(hn::LoadU(d, l), factor), d, l);
  float* o = state.o + i * state.ldo;
  for (std::int64_t j = 0; j < state.ldo; j += kLanes)
    hn::StoreU(hn::Mul(hn::LoadU(d, o + j), factor), d, o + j);
}

// Largest of n floats, NaN when one is NaN.
HWY_INLINE float largest(const float* HWY_RESTRICT values, std::int64_t n) {
  const D32 d;
  V32 top = hn::Set(d, -kInfinity);
  auto nan = hn::Lt(top, top);  // none
  for (std::int64_t j = 0; j < n; j += kLanes) {
    const V32 v = hn::LoadU(d, values + j);
    nan = hn::Or(nan, hn::IsNaN(v));
    top = hn::Max(v, top);
  }
  if (!hn::AllFalse(d, nan)) return std::numeric_limits<float>::quiet_NaN();
  return hn::GetLane(hn::MaxOfLanes(d, top));
}

// The exponent's reference: m, or 0 while nothing but -inf was seen (-inf - -inf is NaN).
HWY_INLINE V32 reference(float m) { return hn::Set(D32(), m == -kInfinity ? 0.0f : m); }

// Adds the kept V rows to one output row.
HWY_INLINE void add_values(float* HWY_RESTRICT o, const ValueBlock& value, const float* p,
                           const std::int32_t* offset, std::int64_t count) {
  // Eight sums at most, so that 16 registers suffice; 64 channels are 4, 8 or 16 vectors.
  constexpr int kFull = kChunk / kLanes > 8 ? 8 : kChunk / kLanes;
  constexpr std::int64_t kStep = kFull * kLanes;
  const float* v = value.data;
  std::int64_t left = value.channels;
  for (; left > 0; left -= kChunk, v += value.chunk_stride, o += kChunk) {
    const std::int64_t width = left < kChunk ? left : kChunk;
    std::int64_t j = 0;
    for (; j + kStep <= width; j += kStep)
      sparse_row<kFull, 0, true>(o + j, 0, p, offset, count, v + j, 0);
    for (; j < width; j += 16)
      sparse_row<16 / kLanes, 0, true>(o + j, 0, p, offset, count, v + j, 0);
  }
}

// Rows whose exponentials are computed together, before any of their values is added: enough to
// hide the latency of one row's exponential behind the others'.
constexpr std::int64_t kPairRows = 8;
constexpr std::int64_t kMaxPairs = 128;

// The kept weights and V rows of one row.
struct Kept {
  HWY_ALIGN float p[kMaxPairs];
  HWY_ALIGN std::int32_t offset[kMaxPairs];
};

// Prunes row i: the larger of each pair into kept.p, the place of its V row into kept.offset.
HWY_INLINE void prune_pairs(Kept& kept, const RowState& state, std::int64_t i, const float* s,
                            std::int64_t half, std::int64_t width) {
  const D32 d;
  const hn::RebindToSigned<D32> di;
  const auto step = hn::Set(di, static_cast<std::int32_t>(kLanes * kChunk));
  const auto partner = hn::Set(di, static_cast<std::int32_t>(half * kChunk));
  const V32 m = hn::Set(d, state.m[i]);
  auto within = hn::Eq(hn::Zero(d), hn::Zero(d));  // all
  auto row = hn::ShiftLeft<6>(hn::Iota(di, 0));    // rows of 64 floats
  for (std::int64_t j = 0; j < width; j += kLanes) {
    const V32 a = hn::LoadU(d, s + j);
    const V32 b = hn::LoadU(d, s + half + j);
    // b wins when it is larger, or NaN against a number; a tie or a NaN in a keeps a.
    const auto b_wins = hn::And(hn::Not(hn::Le(b, a)), hn::Eq(a, a));
    const V32 larger = hn::IfThenElse(b_wins, b, a);
    within = hn::And(within, hn::Le(larger, m));
    hn::Store(larger, d, kept.p + j);
    hn::Store(hn::IfThenElse(hn::RebindMask(di, b_wins), hn::Add(row, partner), row), di,
              kept.offset + j);
    row = hn::Add(row, step);
  }
  if (HWY_UNLIKELY(!hn::AllTrue(d, within))) raise_maximum(state, i, largest(kept.p, width));
}

// values[0..width) = exp2(value - m), added to l.
HWY_INLINE void exponentiate(float* HWY_RESTRICT values, const RowState& state, std::int64_t i,
                             std::int64_t width) {
  const D32 d;
  const V32 ref = reference(state.m[i]);
  float* HWY_RESTRICT l = state.l + i * kSumLanes;
  V32 sum = hn::LoadU(d, l);
  for (std::int64_t j = 0; j < width; j += kLanes) {
    const V32 p = exp2_nonpositive(hn::Sub(hn::LoadU(d, values + j), ref));
    hn::StoreU(p, d, values + j);
    sum = hn::Add(sum, p);
  }
  hn::StoreU(sum, d, l);
}

void dense_rows(const RowState& state, float* scores, std::int64_t lds, std::int64_t rows,
                std::int64_t width) {
  const D32 d;
  for (std::int64_t i = 0; i < rows; ++i) {
    float* HWY_RESTRICT s = scores + i * lds;
    const V32 m = hn::Set(d, state.m[i]);
    auto within = hn::Le(hn::LoadU(d, s), m);
    for (std::int64_t j = kLanes; j < width; j += kLanes)
      within = hn::And(within, hn::Le(hn::LoadU(d, s + j), m));
    if (HWY_UNLIKELY(!hn::AllTrue(d, within))) raise_maximum(state, i, largest(s, width));
    exponentiate(s, state, i, width);
  }
}

void pair_rows(const RowState& state, const float* scores, std::int64_t lds,
               const ValueBlock& value, std::int64_t half, std::int64_t rows, std::int64_t width) {
  Kept kept[kPairRows];
  for (std::int64_t first = 0; first < rows; first += kPairRows) {
    const std::int64_t count = rows - first < kPairRows ? rows - first : kPairRows;
    for (std::int64_t i = 0; i < count; ++i)
      prune_pairs(kept[i], state, first + i, scores + (first + i) * lds, half, width);
    for (std::int64_t i = 0; i < count; ++i) exponentiate(kept[i].p, state, first + i, width);
    for (std::int64_t i = 0; i < count; ++i)
      add_values(state.o + (first + i) * state.ldo, value, kept[i].p, kept[i].offset, width);
  }
}

bool any_reaches(const float* m, float margin, const float* scores, std::int64_t lds,
                 std::int64_t half, std::int64_t rows, std::int64_t width) {
  const D32 d;
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* HWY_RESTRICT s = scores + i * lds;
    const V32 limit = hn::Set(d, m[i] - margin);
    auto below = hn::Eq(hn::Zero(d), hn::Zero(d));  // all
    for (std::int64_t j = 0; j < width; j += kLanes) {
      below = hn::And(below, hn::Lt(hn::LoadU(d, s + j), limit));
      below = hn::And(below, hn::Lt(hn::LoadU(d, s + half + j), limit));
    }
    if (!hn::AllTrue(d, below)) return true;
  }
  return false;
}

constexpr SoftmaxOps kSoftmaxOps{&dense_rows, &pair_rows, &any_reaches};

}  // namespace HWY_NAMESPACE
}  // namespace twofour::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace twofour::cpu {
const SoftmaxOps* softmax_ops(std::int64_t target) { TWOFOUR_FIND_TABLE(target, kSoftmaxOps) }
}  // namespace twofour::cpu
#endif
