// The products of attention on the CPU, as function tables per instruction set.
//
// All matrices are fp32 row-major in 64-byte aligned memory; widths are multiples of 16 floats.
#pragma once

#include <cstdint>

namespace twofour::cpu {

struct MatmulOps {
  /// c[i][j] = (accumulate ? c[i][j] : 0) + sum_k a[i][k] b[k][j]
  void (*gemm)(float* c, std::int64_t ldc, const float* a, std::int64_t lda, const float* b,
               std::int64_t ldb, std::int64_t rows, std::int64_t depth, std::int64_t cols,
               bool accumulate);

  /// Scores of one half-block from a pruned query. Per row i:
  /// c[i*ldc + s*c_delta + j] = sum_k coef[i*count + k] * panel[offset[i*count + k] + s*delta + j]
  /// for both quarters s and j < width.
  void (*sparse_rows)(float* c, std::int64_t ldc, std::int64_t c_delta, const float* coef,
                      const std::int32_t* offset, std::int64_t count, const float* panel,
                      std::int64_t delta, std::int64_t rows, std::int64_t width);

  /// c[i][j] = scale[i] * key_scale * (sum over 4-channel groups of (q_u8 - 128) * k_s8), where
  /// `panel` is [groups][width][4] int8 and `bias` holds -128 * sum of the key's codes.
  /// Only for machines with VNNI, null elsewhere: fp32 codes in gemm give the same integers.
  void (*gemm_int8)(float* c, std::int64_t ldc, const std::uint8_t* q, std::int64_t ldq,
                    const float* scale, float key_scale, const std::int8_t* panel,
                    const std::int32_t* bias, std::int64_t rows, std::int64_t groups,
                    std::int64_t width);
};

/// The table of a Highway target bit (cpu/targets.h), or null when it is not built.
const MatmulOps* matmul_ops(std::int64_t target);

}  // namespace twofour::cpu
