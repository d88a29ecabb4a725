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

__host__ __device__ __forceinline__ bool majority(bool a, bool b, bool c) {
  return (a && b) || (a && c) || (b && c);
}

/// The kept two of four 16-bit channels as one register, and their nibble.
struct KeptGroup {
  std::uint32_t values;
  std::uint32_t nibble;
};

/// The two of largest magnitude m; ties keep the lower channel (docs/semantics.md, rule 5).
__host__ __device__ __forceinline__ KeptGroup keep_two(std::uint32_t q01, std::uint32_t q23,
                                                       const std::uint32_t (&m)[4]) {
  // A channel is kept that goes before two others: it is larger, or equal and lower.
  const bool p01 = m[0] >= m[1], p02 = m[0] >= m[2], p03 = m[0] >= m[3];
  const bool p12 = m[1] >= m[2], p13 = m[1] >= m[3], p23 = m[2] >= m[3];
  const bool keep0 = majority(p01, p02, p03), keep1 = majority(!p01, p12, p13);
  const bool keep2 = majority(!p02, !p12, p23), keep3 = majority(!p03, !p13, !p23);
  // Byte selectors of the first and the second kept channel.
  const std::uint32_t first = keep0 ? 0x0010u : keep1 ? 0x0032u : 0x0054u;
  const std::uint32_t second = keep3 ? 0x7600u : keep2 ? 0x5400u : 0x3200u;
  const std::uint32_t selector = first | second;
  return {ptx::permute(q01, q23, selector), (selector >> 1 & 3) | (selector >> 7 & 12)};
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
