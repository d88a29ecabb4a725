// Splitting over keys: what a work item leaves of its part of the keys, and how the parts of a row
// become one (docs/semantics.md, rule 10).
#pragma once

#include <cmath>

#include "cuda/ptx/math.h"
#include "cuda/tile/walk.h"

namespace twofour::cuda::tile {

/// Row i of the sequence, which is half h (g or g + 8) of an accumulator `o`: this thread has two
/// of each eight channels. The four threads of a row fill 32 bytes at a time.
template <int kOut>
__device__ __forceinline__ void store_part_row(const CallParams& p, const Task& task, int i,
                                               const PartRow& row, const float (&o)[kOut], int h,
                                               int quad_lane) {
  const std::int64_t at =
      task.part * p.rows_of_part + (std::int64_t{task.b} * p.heads_q + task.head) * p.seqlen_q + i;
  if (quad_lane == 0) p.part_rows[at] = row;
  float* const to = p.part_o + at * p.head_dim_v + 2 * quad_lane;
#pragma unroll
  for (int chunk = 0; chunk < kOut / 4; ++chunk)
    if (8 * chunk < p.head_dim_v)
      *reinterpret_cast<float2*>(to + 8 * chunk) =
          make_float2(o[4 * chunk + 2 * h], o[4 * chunk + 2 * h + 1]);
}

/// What a part counts for: nothing when none of its keys has weight, whatever its O is then.
__host__ __device__ inline float part_weight(const PartRow& row, float reference) {
  return row.sum == 0 ? 0.0f : ptx::ex2(row.reference - reference);
}

/// All parts of a row, `stride` apart, in their order.
__host__ __device__ inline PartRow combined_row(const PartRow* rows, int parts,
                                                std::int64_t stride) {
  PartRow all{-INFINITY, 0, rows[0].shift};
  for (int part = 0; part < parts; ++part)
    if (const PartRow& row = rows[part * stride]; row.sum != 0)
      all.reference = ptx::max_nan(all.reference, row.reference);
  for (int part = 0; part < parts; ++part) {
    const PartRow& row = rows[part * stride];
    all.sum += row.sum * part_weight(row, all.reference);
  }
  return all;
}

/// Natural logarithm of the sum of exponentials.
__host__ __device__ inline float part_lse(const PartRow& row) {
  constexpr float kLn2 = 0.693147180559945309f;
  return row.sum == 0 ? -INFINITY : (row.reference + log2f(row.sum)) * kLn2 + row.shift;
}

/// Eight channels of a row: number `index` of p.rows_of_part x head_dim_v / 8, channels first.
template <DType kType>
__host__ __device__ inline void combine_chunk(const CallParams& p, std::int64_t index) {
  const int chunks = p.head_dim_v / 8;
  const std::int64_t row = index / chunks, rows = p.rows_of_part;
  const int chunk = static_cast<int>(index - row * chunks);
  const PartRow all = combined_row(p.part_rows + row, p.parts, rows);
  float o[8] = {};
  for (int part = 0; part < p.parts; ++part) {
    const std::int64_t at = part * rows + row;
    const PartRow& own = p.part_rows[at];
    if (own.sum == 0) continue;
    const float weight = part_weight(own, all.reference);
    const auto* from = reinterpret_cast<const float4*>(p.part_o + at * p.head_dim_v + 8 * chunk);
    const float4 low = from[0], high = from[1];
    const float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int d = 0; d < 8; ++d) o[d] = fmaf(x[d], weight, o[d]);
  }
  const float inverse = all.sum == 0 ? 0.0f : 1.0f / all.sum;
  const std::int64_t cell = row / p.seqlen_q, i = row - cell * p.seqlen_q;
  const std::int64_t b = cell / p.heads_q, head = cell - b * p.heads_q;
  auto* to = static_cast<unsigned short*>(p.o.data) + b * p.o.batch + head * p.o.head +
             i * p.o.row + 8 * chunk;
  *reinterpret_cast<uint4*>(to) = make_uint4(ptx::pack<kType>(o[0] * inverse, o[1] * inverse),
                                             ptx::pack<kType>(o[2] * inverse, o[3] * inverse),
                                             ptx::pack<kType>(o[4] * inverse, o[5] * inverse),
                                             ptx::pack<kType>(o[6] * inverse, o[7] * inverse));
  if (chunk == 0 && p.lse != nullptr)
    p.lse[b * p.lse_batch + head * p.lse_head + i * p.lse_row] = part_lse(all);
}

}  // namespace twofour::cuda::tile
