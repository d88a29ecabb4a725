// The pruned query: of each four channels the two of largest weighted magnitude.
#pragma once

#include <bit>
#include <cstdint>

#include "cuda/ptx/math.h"
#include "layout/metadata.h"

namespace twofour::cuda::tile {

/// What channels are compared by: w * |q| as bits, which order like the values for non-negative
/// floats, with NaN above infinity.
__host__ __device__ __forceinline__ std::uint32_t magnitude(float q, float w) {
  return std::bit_cast<std::uint32_t>(q * w) & 0x7FFFFFFFu;
}

/// Mask of the two largest of four; ties keep the lower channel (docs/semantics.md, rule 5).
__host__ __device__ __forceinline__ unsigned largest_two(const std::uint32_t (&m)[4]) {
  // Channel j goes before i when it is larger, or equal and lower.
  int before[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < i; ++j) {
      const bool lower_first = m[j] >= m[i];
      before[i] += lower_first;
      before[j] += !lower_first;
    }
  unsigned mask = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) mask |= static_cast<unsigned>(before[i] < 2) << i;
  return mask;
}

/// The kept two of four 16-bit channels as one register, and their nibble.
struct KeptGroup {
  std::uint32_t values;
  std::uint32_t nibble;
};
__host__ __device__ __forceinline__ KeptGroup keep_two(std::uint32_t q01, std::uint32_t q23,
                                                       const std::uint32_t (&m)[4]) {
  const std::uint32_t nibble = layout::nibble_of_mask(largest_two(m));
  const std::uint64_t all = std::uint64_t{q23} << 32 | q01;
  const auto at = [all](int channel) {
    return static_cast<std::uint32_t>(all >> (16 * channel)) & 0xFFFFu;
  };
  return {at(layout::nibble_first(nibble)) | at(layout::nibble_second(nibble)) << 16, nibble};
}

/// Of a chunk, eight channels of a row, the kept half and both nibbles.
struct KeptChunk {
  std::uint32_t values[2];
  std::uint32_t nibbles;
};
template <DType kType>
__host__ __device__ __forceinline__ KeptChunk keep_chunk(const std::uint32_t (&q)[4],
                                                         const float (&w)[8]) {
  std::uint32_t m[2][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    m[i / 2][i % 2 * 2] = magnitude(ptx::unpack_low<kType>(q[i]), w[2 * i]);
    m[i / 2][i % 2 * 2 + 1] = magnitude(ptx::unpack_high<kType>(q[i]), w[2 * i + 1]);
  }
  const KeptGroup low = keep_two(q[0], q[1], m[0]);
  const KeptGroup high = keep_two(q[2], q[3], m[1]);
  return {{low.values, high.values}, low.nibble | high.nibble << 4};
}

/// The nibbles of 64 rows in memory: a byte for each chunk, row by row.
template <int kHeadDim>
struct QueryMetadata {
  static constexpr int kRowBytes = kHeadDim / 8;
  static constexpr int kWords = kHeadDim / 64;  // of a lane; word w serves k-steps 2w and 2w + 1

  __host__ __device__ static constexpr int byte_of(int row, int chunk) {
    return row * kRowBytes + chunk;
  }
  /// Word w of a lane: 16 channels of row g, and the same of row g + 8.
  __host__ __device__ static __forceinline__ std::uint32_t word(const unsigned char* bytes,
                                                                int warp, int lane, int w) {
    const int row = 16 * warp + layout::group_of(lane);
    const int t = layout::quad_lane(lane);
    const int chunk = 4 * (2 * w + t / 2) + 2 * (t % 2);
    const auto two_bytes = [bytes, chunk](int r) -> std::uint32_t {
      return *reinterpret_cast<const unsigned short*>(bytes + byte_of(r, chunk));
    };
    return two_bytes(row) | two_bytes(row + 8) << 16;
  }
};

}  // namespace twofour::cuda::tile
