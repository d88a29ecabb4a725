// Scores to probabilities, part one: of each pair the larger, and which it was as 2:4 metadata.
//
// The accumulator of a tile of kTile keys holds a pair in registers r and r + kPartner of one
// thread (src/layout/pair_scores.h). The same functions run on the host against the emulator.
#pragma once

#include <cstdint>

#include "cuda/ptx/math.h"
#include "layout/pair_scores.h"

namespace twofour::cuda::tile {

/// What a lane needs for the metadata exchange: how far its nibbles move, and which bytes it sends.
struct ExchangeLane {
  int shift;           // 4 on even lanes of a quad: their odd nibbles travel
  std::uint32_t keep;  // nibbles that stay in the exchange with lane ^ 1
  std::uint32_t send;  // byte selectors of the exchange with lane ^ 2
  std::uint32_t receive_lo;
  std::uint32_t receive_hi;

  __host__ __device__ explicit ExchangeLane(int lane)
      : shift(lane & 1 ? 0 : 4),
        keep(lane & 1 ? 0xF0F0F0F0u : 0x0F0F0F0Fu),
        send(lane & 2 ? 0x6240u : 0x7351u),
        receive_lo(lane & 2 ? 0x3614u : 0x6240u),
        receive_hi(lane & 2 ? 0x3715u : 0x7250u) {}
};

/// Step one of the exchange, layout::exchange_send and exchange_receive with distance 1.
__host__ __device__ __forceinline__ std::uint32_t send_nibbles(const ExchangeLane& lane,
                                                               layout::WordPair w) {
  constexpr std::uint32_t kEven = 0x0F0F0F0Fu;
  return ((w.lo >> lane.shift) & kEven) | ((w.hi << (4 - lane.shift)) & ~kEven);
}
__host__ __device__ __forceinline__ layout::WordPair receive_nibbles(const ExchangeLane& lane,
                                                                     layout::WordPair w,
                                                                     std::uint32_t received) {
  return {(w.lo & lane.keep) | ((received << lane.shift) & ~lane.keep),
          (w.hi & lane.keep) | ((received >> (4 - lane.shift)) & ~lane.keep)};
}

/// Step two, distance 2.
__host__ __device__ __forceinline__ std::uint32_t send_bytes(const ExchangeLane& lane,
                                                             layout::WordPair w) {
  return ptx::permute(w.lo, w.hi, lane.send);
}
__host__ __device__ __forceinline__ layout::WordPair receive_bytes(const ExchangeLane& lane,
                                                                   layout::WordPair w,
                                                                   std::uint32_t received) {
  return {ptx::permute(w.lo, received, lane.receive_lo),
          ptx::permute(w.hi, received, lane.receive_hi)};
}

/// The exchange of one word alone, the `lo` of a pair.
struct WordExchange {
  int rotate;          // of what lane ^ 1 sent
  std::uint32_t keep;  // nibbles that stay
  std::uint32_t pick;  // bytes of the own word and of what lane ^ 2 sent

  __host__ __device__ explicit WordExchange(int lane)
      : rotate(lane & 1 ? 28 : 4),
        keep(lane & 1 ? 0xF0F0F0F0u : 0x0F0F0F0Fu),
        pick(lane & 2 ? 0x3715u : 0x6240u) {}

  __host__ __device__ __forceinline__ std::uint32_t nibbles(std::uint32_t w,
                                                            std::uint32_t received) const {
    return (w & keep) | (ptx::rotate_left(received, rotate) & ~keep);
  }
  __host__ __device__ __forceinline__ std::uint32_t bytes(std::uint32_t w,
                                                          std::uint32_t received) const {
    return ptx::permute(w, received, pick);
  }
};

#ifdef __CUDACC__
/// Step one between the lanes of a quad.
__device__ __forceinline__ layout::WordPair exchange_nibbles(const ExchangeLane& lane,
                                                             layout::WordPair w) {
  return receive_nibbles(lane, w, __shfl_xor_sync(~0u, send_nibbles(lane, w), 1));
}
/// Both steps.
__device__ __forceinline__ layout::WordPair exchange(const ExchangeLane& lane, layout::WordPair w) {
  w = exchange_nibbles(lane, w);
  return receive_bytes(lane, w, __shfl_xor_sync(~0u, send_bytes(lane, w), 2));
}
__device__ __forceinline__ std::uint32_t exchange(const WordExchange& lane, std::uint32_t w) {
  w = lane.nibbles(w, __shfl_xor_sync(~0u, w, 1));
  return lane.bytes(w, __shfl_xor_sync(~0u, w, 2));
}
#endif

/// Adds the flags of two pairs of one column, rows g and g + 8, to the own metadata word of their
/// n-block. `first - second` is negative exactly when the second is kept: for finite scores of an
/// accumulator, which never holds -0; NaN keeps the first, and its row is NaN either way.
__host__ __device__ __forceinline__ std::uint32_t add_flags(std::uint32_t word,
                                                            std::uint32_t difference_g,
                                                            std::uint32_t difference_g8, int block,
                                                            int column) {
  const std::uint32_t signs = ptx::permute(difference_g, difference_g8, 0xFFBB);
  return word | (signs & (0x00010001u << (4 * (block % 4) + 2 * column)));
}

/// The larger of two scores of an accumulator, and the bits of their difference, whose sign says
/// which it was. Scores of an int8 product compare as they are: a pair shares the row's and the key
/// block's scale.
__host__ __device__ __forceinline__ float larger(float a, float b) { return ptx::max_nan(a, b); }
__host__ __device__ __forceinline__ std::int32_t larger(std::int32_t a, std::int32_t b) {
  return a < b ? b : a;
}
__host__ __device__ __forceinline__ std::uint32_t difference(float a, float b) {
  return std::bit_cast<std::uint32_t>(a - b);
}
__host__ __device__ __forceinline__ std::uint32_t difference(std::int32_t a, std::int32_t b) {
  return static_cast<std::uint32_t>(a - b);
}

/// Own metadata words without flags: each group keeps the first of both pairs.
inline constexpr std::uint32_t kNoFlags = 0x88888888u;

/// Prunes the accumulator, fp32 or s32, in place: register r < kPartner becomes the larger of r and
/// r + kPartner. Adds to the own metadata words, before the exchange, those of n-blocks kFirst on.
template <int kTile, int kFirst, class Score>
__host__ __device__ __forceinline__ void prune_pairs(Score (&s)[kTile / 2],
                                                     std::uint32_t (&words)[2]) {
  using Tile = layout::PairTile<kTile>;
  static_assert(kFirst + Tile::kBlocks <= 8);
#pragma unroll
  for (int block = 0; block < Tile::kBlocks; ++block) {
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      const int g = 4 * block + column;
      const int g8 = g + 2;
      const Score a = s[g], b = s[g + Tile::kPartner];
      const Score a8 = s[g8], b8 = s[g8 + Tile::kPartner];
      words[(kFirst + block) / 4] = add_flags(words[(kFirst + block) / 4], difference(a, b),
                                              difference(a8, b8), kFirst + block, column);
      s[g] = larger(a, b);
      s[g8] = larger(a8, b8);
    }
  }
}
template <int kTile, class Score>
__host__ __device__ __forceinline__ layout::WordPair prune_pairs(Score (&s)[kTile / 2]) {
  std::uint32_t words[2] = {kNoFlags, kNoFlags};
  prune_pairs<kTile, 0>(s, words);
  return {words[0], words[1]};
}

}  // namespace twofour::cuda::tile
