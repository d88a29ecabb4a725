// Chunks of eight channels of a query row on their way to shared memory: the sign of the scale, and
// the codes of the int8 product (docs/semantics.md, rule 5).
#pragma once

#include <cstdint>

#include "cuda/ptx/math.h"
#include "cuda/tile/codes.h"

namespace twofour::cuda::tile {

/// Kernels scale by |scale| and keep the larger raw score, so the sign goes into q.
__device__ __forceinline__ uint4 times_sign(uint4 q, float scale) {
  if (scale > 0) return q;
  if (scale == 0) return make_uint4(0, 0, 0, 0);
  constexpr std::uint32_t kSigns = 0x80008000u;
  return make_uint4(q.x ^ kSigns, q.y ^ kSigns, q.z ^ kSigns, q.w ^ kSigns);
}

struct QuantisedChunk {
  uint2 codes;
  float scale;  // of the row
  float dot;    // of the row with the mean of K
};

/// A row lies in kLanes neighbouring lanes.
template <DType kType, int kLanes>
__device__ __forceinline__ QuantisedChunk quantise_chunk(uint4 q, const float (&mean)[8],
                                                         float sign) {
  const std::uint32_t word[4] = {q.x, q.y, q.z, q.w};
  float value[8];
  float largest = 0, dot = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    value[2 * i] = ptx::unpack_low<kType>(word[i]);
    value[2 * i + 1] = ptx::unpack_high<kType>(word[i]);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    largest = ptx::max_nan(largest, fabsf(value[i]));
    dot = fmaf(value[i], mean[i], dot);
  }
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    largest = ptx::max_nan(largest, __shfl_xor_sync(~0u, largest, distance));
    dot += __shfl_xor_sync(~0u, dot, distance);
  }
  float scale = __fdiv_rn(largest, 127.0f);
  if (scale == 0) scale = 1;
  if (!(largest < INFINITY)) scale = NAN;
  if (sign == 0 || !(largest < INFINITY)) return {make_uint2(0, 0), scale, dot};
  const Codes codes = quantise(value, sign < 0 ? -scale : scale);
  return {make_uint2(codes.word[0], codes.word[1]), scale, dot};
}

}  // namespace twofour::cuda::tile
