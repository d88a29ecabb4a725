// Online softmax over score tiles, and the fused prune + exponential + P.V of the pair pattern.
//
// Scores are in log2 units (scale * log2(e) is folded into the query), so m is too. A row's state
// is its maximum m, kSumLanes partial sums l, and its output accumulator.
#pragma once

#include <cstdint>

namespace twofour::cpu {

inline constexpr std::int64_t kSumLanes = 16;  // partial sums a row; unused lanes stay 0
inline constexpr std::int64_t kChunk = 64;     // output channels a pass; V rows are this long

/// Accumulators of a tile of rows.
struct RowState {
  float* o;  // [rows, ldo], ldo = chunks * 64
  float* m;  // [rows]
  float* l;  // [rows, kSumLanes]
  std::int64_t ldo;
};

/// One V block, converted: chunk c holds channels 64c .. 64c+63 as [keys][64].
struct ValueBlock {
  const float* data;
  std::int64_t chunk_stride;  // floats between chunks
  std::int64_t channels;      // multiple of 16
};

struct SoftmaxOps {
  /// Turns scores[i][0..width) into exp2(s - m) in place, raising m and rescaling l and o when a
  /// larger score is found. width is a multiple of 16.
  void (*dense_rows)(const RowState& state, float* scores, std::int64_t lds, std::int64_t rows,
                     std::int64_t width);

  /// Of scores[i][j] and scores[i][j + half] keeps the larger for j < width, and adds
  /// exp2(kept - m) times its V row: row j of `value`, or row j + half.
  void (*pair_rows)(const RowState& state, const float* scores, std::int64_t lds,
                    const ValueBlock& value, std::int64_t half, std::int64_t rows,
                    std::int64_t width);

  /// True when some scores[i][s * half + j] (s in {0,1}, j < width) is not < m[i] - margin; NaN is
  /// not less than anything.
  bool (*any_reaches)(const float* m, float margin, const float* scores, std::int64_t lds,
                      std::int64_t half, std::int64_t rows, std::int64_t width);
};

/// The table of a Highway target bit (cpu/targets.h), or null when it is not built.
const SoftmaxOps* softmax_ops(std::int64_t target);

}  // namespace twofour::cpu
