// The softmax of one warp: scores in accumulators to probabilities in registers, with a reference
// per row instead of a running maximum.
//
// The reference m of a row is an integer in log2 units above every score it has seen when it was
// last raised, so that rescaling is exact. It is raised only when a score has outgrown it.
#pragma once

#include "cuda/sm80/products.h"
#include "cuda/tile/pair_prune.h"

namespace twofour::cuda::sm80 {

inline constexpr float kLn2 = 0.693147180559945309f;
/// Of the probabilities of a thread's row in a chunk: above it the reference is raised.
inline constexpr float kLargestSum = 1024;

/// Of the rows g and g + 8 of each row tile.
template <Config c>
using PerRow = float[c.row_tiles][2];

template <Config c>
struct Softmax : Products<c> {
  using P = Products<c>;
  using Products<c>::Products;
  using P::kKept;
  using P::kOut;
  using P::kPairs;
  using P::kScores;
  using P::kTiles;
  using P::lane;
  using P::o;
  using P::p;
  using typename P::S;
  using typename P::Score;

  float m[kTiles][2], l[kTiles][2];  // reference (log2 units), sum of this thread
  float row_scale[kTiles][2];        // of int8: from raw score to log2 units, but for the keys'

  static __device__ __forceinline__ float raw(Score score) {
    if constexpr (is_int8(c))
      return __int2float_rn(score);
    else
      return score;
  }

  /// From raw scores to log2 units.
  __device__ __forceinline__ void key_factor(PerRow<c>& f, const Item& item, int block) const {
    float scale = 1;
    if constexpr (is_int8(c))
      scale = __ldg(p.key_scale + item.kv_head * p.total_key_blocks + item.first_key_block + block);
#pragma unroll
    for (int r = 0; r < kTiles; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) f[r][h] = is_int8(c) ? row_scale[r][h] * scale : p.scale_log2;
  }

  /// What an exponent is relative to: finite also before the first key.
  __device__ __forceinline__ float reference(int r, int h) const {
    return m[r][h] == -INFINITY ? 0.0f : m[r][h];
  }

  /// Multiplies the row by 2^(old m - new m).
  __device__ __forceinline__ void move_reference(int r, int h, float to) {
    const float shift = to == -INFINITY ? 0.0f : ptx::ex2(m[r][h] - to);
    m[r][h] = to;
    l[r][h] *= shift;
#pragma unroll
    for (int i = 2 * h; i < kOut; i += 4) {
      o[r][i] *= shift;
      o[r][i + 1] *= shift;
    }
  }

  static __device__ __forceinline__ float quad_max(float x) {
    x = ptx::max_nan(x, __shfl_xor_sync(~0u, x, 1));
    return ptx::max_nan(x, __shfl_xor_sync(~0u, x, 2));
  }

  /// The largest of row h of a row tile among the registers of this thread.
  template <class T, int kCount>
  static __device__ __forceinline__ float largest_of(const T (&x)[kCount], int count, int h) {
    float largest = -INFINITY;
#pragma unroll
    for (int i = 2 * h; i < count; i += 4) {
      if constexpr (std::is_same_v<T, float>)
        largest = ptx::max_nan(largest, ptx::max_nan(x[i], x[i + 1]));
      else
        largest = ptx::max_nan(largest, ptx::max_nan(raw(x[i]), raw(x[i + 1])));
    }
    return largest;
  }

  /// Exponents of the kept scores. Below zero unless a score has outgrown the reference.
  __device__ __forceinline__ void exponents(float (&x)[kTiles][kKept],
                                            const Score (&s)[kTiles][kScores],
                                            const PerRow<c>& f) const {
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
      const float minus[2] = {-reference(r, 0), -reference(r, 1)};
#pragma unroll
      for (int i = 0; i < kKept; ++i)
        x[r][i] = fmaf(raw(s[r][i]), f[r][i / 2 % 2], minus[i / 2 % 2]);
    }
  }

  /// True when some exponent is zero, positive or NaN.
  static __device__ __forceinline__ bool any_beyond(const float (&x)[kTiles][kKept]) {
    std::uint32_t signs = ~0u;
#pragma unroll
    for (int r = 0; r < kTiles; ++r)
#pragma unroll
      for (int i = 0; i < kKept; ++i) signs &= __float_as_uint(x[r][i]);
    return static_cast<std::int32_t>(signs) >= 0;
  }

  /// A new reference above the exponents of the rows that have outgrown theirs, and the exponents
  /// relative to it.
  __device__ __forceinline__ void raise_reference(float (&x)[kTiles][kKept]) {
#pragma unroll
    for (int r = 0; r < kTiles; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float largest = quad_max(largest_of(x[r], kKept, h));
        if (m[r][h] > -INFINITY && largest < 0) continue;
        const float before = reference(r, h);
        move_reference(r, h, floorf(largest) + 1 + before);
        const float by = before - reference(r, h);
#pragma unroll
        for (int i = 2 * h; i < kKept; i += 4) {
          x[r][i] += by;
          x[r][i + 1] += by;
        }
      }
  }
  __device__ __forceinline__ bool has_no_reference() const {
    bool none = false;
#pragma unroll
    for (int r = 0; r < kTiles; ++r) none |= m[r][0] == -INFINITY || m[r][1] == -INFINITY;
    return none;
  }

  /// Probabilities of exponents, packed for the next product, added to the sums of the rows.
  template <int kCount>
  static __device__ __forceinline__ void exponentials(std::uint32_t (&prob)[kTiles][kCount / 2],
                                                      const float (&x)[kTiles][kCount],
                                                      PerRow<c>& sum) {
#pragma unroll
    for (int r = 0; r < kTiles; ++r)
#pragma unroll
      for (int i = 0; i < kCount; i += 2) {
        const float low = ptx::ex2(x[r][i]);
        const float high = ptx::ex2(x[r][i + 1]);
        sum[r][i / 2 % 2] += low + high;
        prob[r][i / 2] = ptx::pack<c.dtype>(low, high);
      }
  }

  /// The same with sums of this chunk alone.
  template <int kCount>
  static __device__ __forceinline__ void exponentials_alone(
      std::uint32_t (&prob)[kTiles][kCount / 2], const float (&x)[kTiles][kCount], PerRow<c>& sum) {
#pragma unroll
    for (int r = 0; r < kTiles; ++r) sum[r][0] = sum[r][1] = 0;
    exponentials(prob, x, sum);
  }

  /// True when a row has outgrown its reference by so much that its probabilities may not fit
  /// their type, or is NaN.
  static __device__ __forceinline__ bool outgrown(const PerRow<c>& sum) {
    bool any = false;
#pragma unroll
    for (int r = 0; r < kTiles; ++r)
      any |= !(sum[r][0] < kLargestSum) || !(sum[r][1] < kLargestSum);
    return any;
  }

  /// Own metadata words of the pruned scores of all row tiles, one after the other.
  static __device__ __forceinline__ layout::WordPair prune_own(Score (&s)[kTiles][kScores]) {
    std::uint32_t words[2] = {tile::kNoFlags, tile::kNoFlags};
    if constexpr (kPairs) {
      tile::prune_pairs<c.chunk, 0>(s[0], words);
      if constexpr (kTiles > 1) tile::prune_pairs<c.chunk, c.chunk / 16>(s[1], words);
    }
    return {words[0], words[1]};
  }
  __device__ __forceinline__ void exchange(std::uint32_t (&metadata)[2],
                                           layout::WordPair own) const {
    if constexpr (!kPairs) {
      metadata[0] = metadata[1] = 0;
    } else if constexpr (kTiles * c.chunk <= 64) {
      metadata[0] = metadata[1] = tile::exchange(tile::WordExchange(lane), own.lo);
    } else {
      const layout::WordPair words = tile::exchange(tile::ExchangeLane(lane), own);
      metadata[0] = words.lo;
      metadata[1] = words.hi;
    }
  }
};

}  // namespace twofour::cuda::sm80
