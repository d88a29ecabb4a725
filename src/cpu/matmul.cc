#include "cpu/matmul.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/matmul.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "cpu/simd.h"

#include "cpu/sparse_row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace twofour::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D32 = hn::ScalableTag<float>;
using V32 = hn::Vec<D32>;
constexpr std::int64_t kLanes = HWY_LANES(float);
// 32 vector registers take 16 accumulators and their operands, 16 take 8.
constexpr int kAccumulators = (HWY_TARGET & (HWY_AVX3 | HWY_NEON)) ? 16 : 8;

template <int R, int C>
HWY_INLINE void gemm_tile(float* HWY_RESTRICT c, std::int64_t ldc, const float* HWY_RESTRICT a,
                          std::int64_t lda, const float* HWY_RESTRICT b, std::int64_t ldb,
                          std::int64_t depth, bool accumulate) {
  const D32 d;
  V32 acc[R][C];
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < C; ++j)
      acc[i][j] = accumulate ? hn::LoadU(d, c + i * ldc + j * kLanes) : hn::Zero(d);
  for (std::int64_t k = 0; k < depth; ++k) {
    V32 bk[C];
    for (int j = 0; j < C; ++j) bk[j] = hn::Load(d, b + k * ldb + j * kLanes);
    for (int i = 0; i < R; ++i) {
      const V32 aik = hn::Set(d, a[i * lda + k]);
      for (int j = 0; j < C; ++j) acc[i][j] = hn::MulAdd(aik, bk[j], acc[i][j]);
    }
  }
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < C; ++j) hn::StoreU(acc[i][j], d, c + i * ldc + j * kLanes);
}

template <int C>
HWY_INLINE void gemm_columns(float* c, std::int64_t ldc, const float* a, std::int64_t lda,
                             const float* b, std::int64_t ldb, std::int64_t rows,
                             std::int64_t depth, bool accumulate) {
  constexpr int kRows = kAccumulators / C > 8 ? 8 : kAccumulators / C;
  std::int64_t i = 0;
  for (; i + kRows <= rows; i += kRows)
    gemm_tile<kRows, C>(c + i * ldc, ldc, a + i * lda, lda, b, ldb, depth, accumulate);
  for (; i < rows; ++i)
    gemm_tile<1, C>(c + i * ldc, ldc, a + i * lda, lda, b, ldb, depth, accumulate);
}

void gemm(float* c, std::int64_t ldc, const float* a, std::int64_t lda, const float* b,
          std::int64_t ldb, std::int64_t rows, std::int64_t depth, std::int64_t cols,
          bool accumulate) {
  constexpr int kWide = kAccumulators / 4;
  std::int64_t j = 0;
  for (; j + kWide * kLanes <= cols; j += kWide * kLanes)
    gemm_columns<kWide>(c + j, ldc, a, lda, b + j, ldb, rows, depth, accumulate);
  if constexpr (kWide > 2) {
    for (; j + 2 * kLanes <= cols; j += 2 * kLanes)
      gemm_columns<2>(c + j, ldc, a, lda, b + j, ldb, rows, depth, accumulate);
  }
  for (; j < cols; j += kLanes)
    gemm_columns<1>(c + j, ldc, a, lda, b + j, ldb, rows, depth, accumulate);
}

// C vectors of each quarter, for all rows.
template <int C>
HWY_INLINE void sparse_rows_tile(float* c, std::int64_t ldc, std::int64_t c_delta,
                                 const float* coef, const std::int32_t* offset, std::int64_t count,
                                 const float* panel, std::int64_t delta, std::int64_t rows) {
  for (std::int64_t i = 0; i < rows; ++i)
    sparse_row<C, C, false>(c + i * ldc, c_delta, coef + i * count, offset + i * count, count,
                            panel, delta);
}

void sparse_rows(float* c, std::int64_t ldc, std::int64_t c_delta, const float* coef,
                 const std::int32_t* offset, std::int64_t count, const float* panel,
                 std::int64_t delta, std::int64_t rows, std::int64_t width) {
  constexpr std::int64_t kWide = kAccumulators / 2 > 4 ? 4 : kAccumulators / 2;
  std::int64_t j = 0;
  for (; j + kWide * kLanes <= width; j += kWide * kLanes)
    sparse_rows_tile<kWide>(c + j, ldc, c_delta, coef, offset, count, panel + j, delta, rows);
  switch ((width - j) / kLanes) {
    case 3:
      return sparse_rows_tile<3>(c + j, ldc, c_delta, coef, offset, count, panel + j, delta, rows);
    case 2:
      return sparse_rows_tile<2>(c + j, ldc, c_delta, coef, offset, count, panel + j, delta, rows);
    case 1:
      return sparse_rows_tile<1>(c + j, ldc, c_delta, coef, offset, count, panel + j, delta, rows);
    default:
      return;
  }
}

#if HWY_TARGET == HWY_AVX3

// acc += sum over 4 bytes of unsigned q times signed k, per 32-bit lane. As asm, since
// VNNI is not among this target's compiler flags.
HWY_INLINE __m512i dot4(__m512i acc, __m512i q, __m512i k) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(q), "v"(k));
  return acc;
}

template <int R, int C>
HWY_INLINE void gemm_int8_tile(float* HWY_RESTRICT c, std::int64_t ldc,
                               const std::uint8_t* HWY_RESTRICT q, std::int64_t ldq,
                               const float* HWY_RESTRICT scale, float key_scale,
                               const std::int8_t* HWY_RESTRICT panel,
                               const std::int32_t* HWY_RESTRICT bias, std::int64_t groups,
                               std::int64_t width) {
  __m512i acc[R][C];
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < C; ++j) acc[i][j] = _mm512_load_si512(bias + j * 16);
  for (std::int64_t g = 0; g < groups; ++g) {
    __m512i k[C];
    for (int j = 0; j < C; ++j) k[j] = _mm512_load_si512(panel + (g * width + j * 16) * 4);
    for (int i = 0; i < R; ++i) {
      std::int32_t four;
      __builtin_memcpy(&four, q + i * ldq + g * 4, 4);
      const __m512i qi = _mm512_set1_epi32(four);
      for (int j = 0; j < C; ++j) acc[i][j] = dot4(acc[i][j], qi, k[j]);
    }
  }
  for (int i = 0; i < R; ++i) {
    const __m512 factor = _mm512_set1_ps(scale[i] * key_scale);
    for (int j = 0; j < C; ++j)
      _mm512_storeu_ps(c + i * ldc + j * 16, _mm512_mul_ps(_mm512_cvtepi32_ps(acc[i][j]), factor));
  }
}

template <int C>
HWY_INLINE void gemm_int8_columns(float* c, std::int64_t ldc, const std::uint8_t* q,
                                  std::int64_t ldq, const float* scale, float key_scale,
                                  const std::int8_t* panel, const std::int32_t* bias,
                                  std::int64_t rows, std::int64_t groups, std::int64_t width) {
  constexpr int kRows = C == 1 ? 8 : 16 / C;
  std::int64_t i = 0;
  for (; i + kRows <= rows; i += kRows)
    gemm_int8_tile<kRows, C>(c + i * ldc, ldc, q + i * ldq, ldq, scale + i, key_scale, panel, bias,
                             groups, width);
  for (; i < rows; ++i)
    gemm_int8_tile<1, C>(c + i * ldc, ldc, q + i * ldq, ldq, scale + i, key_scale, panel, bias,
                         groups, width);
}

void gemm_int8(float* c, std::int64_t ldc, const std::uint8_t* q, std::int64_t ldq,
               const float* scale, float key_scale, const std::int8_t* panel,
               const std::int32_t* bias, std::int64_t rows, std::int64_t groups,
               std::int64_t width) {
  std::int64_t j = 0;
  for (; j + 32 <= width; j += 32)
    gemm_int8_columns<2>(c + j, ldc, q, ldq, scale, key_scale, panel + j * 4, bias + j, rows,
                         groups, width);
  if (j < width)
    gemm_int8_columns<1>(c + j, ldc, q, ldq, scale, key_scale, panel + j * 4, bias + j, rows,
                         groups, width);
}

constexpr MatmulOps kMatmulOps{&gemm, &sparse_rows, &gemm_int8};
#else
constexpr MatmulOps kMatmulOps{&gemm, &sparse_rows, nullptr};
#endif

}  // namespace HWY_NAMESPACE
}  // namespace twofour::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace twofour::cpu {
const MatmulOps* matmul_ops(std::int64_t target) { TWOFOUR_FIND_TABLE(target, kMatmulOps) }
}  // namespace twofour::cpu
#endif
