// The softmax of one consumer warpgroup: scores in accumulators to probabilities in registers, with
// a reference per row instead of a running maximum.
//
// The reference m of a row is an integer in log2 units above every score it has seen when it was
// last raised, so that rescaling is exact. It is raised only when scores have outgrown it by far:
// the sums of the rows, which are needed anyway, tell.
#pragma once

#include "cuda/sm90/products.h"
#include "cuda/tile/pair_prune.h"

namespace twofour::cuda::sm90 {

inline constexpr float kLn2 = 0.693147180559945309f;

/// Of the probabilities that a thread adds up in a step: below it each of them fits fp16.
inline constexpr float kLargestSum = 1024;

template <Config c>
struct Softmax : Products<c> {
  using P = Products<c>;
  using Products<c>::Products;
  using P::kKept;
  using P::kOut;
  using P::kPairs;
  using P::kScores;
  using P::lane;
  using P::o;
  using P::p;
  using typename P::S;
  using typename P::Score;

  float m[2], l[2];  // rows g and g + 8: reference (log2 units), sum of this thread
  float factor[2];   // from raw score to log2 units; int8: times the key block's scale

  static __device__ __forceinline__ float raw(Score score) {
    if constexpr (is_int8(c))
      return __int2float_rn(score);
    else
      return score;
  }

  __device__ __forceinline__ void key_factor(float (&f)[2], const Item& item, int block) const {
    f[0] = factor[0];
    f[1] = factor[1];
    if constexpr (is_int8(c)) {
      const float scale =
          __ldg(p.key_scale + item.kv_head * p.total_key_blocks + item.first_key_block + block);
      f[0] *= scale;
      f[1] *= scale;
    }
  }

  /// What an exponent is relative to: finite also before the first key.
  __device__ __forceinline__ float reference(int row) const {
    return m[row] == -INFINITY ? 0.0f : m[row];
  }

  /// Multiplies the row by 2^(old m - new m). Nothing may be in flight.
  __device__ __forceinline__ void move_reference(int row, float to) {
    const float shift = to == -INFINITY ? 0.0f : ptx::ex2(m[row] - to);
    m[row] = to;
    l[row] *= shift;
#pragma unroll
    for (int i = 0; i < kOut; i += 4) {
      o[i + 2 * row] *= shift;
      o[i + 2 * row + 1] *= shift;
    }
  }

  static __device__ __forceinline__ float quad_max(float x) {
    x = ptx::max_nan(x, __shfl_xor_sync(~0u, x, 1));
    return ptx::max_nan(x, __shfl_xor_sync(~0u, x, 2));
  }

  /// The largest kept score of each row, in log2 units.
  static __device__ __forceinline__ void row_maxima(float (&largest)[2], const Score (&s)[kScores],
                                                    const float (&f)[2]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      largest[row] = -INFINITY;
#pragma unroll
      for (int i = 2 * row; i < kKept; i += 4)
        largest[row] = ptx::max_nan(largest[row], ptx::max_nan(raw(s[i]), raw(s[i + 1])));
      largest[row] = quad_max(largest[row]) * f[row];
    }
  }

  /// Exponents of the kept scores. Below zero unless a score has outgrown the reference.
  __device__ __forceinline__ void exponents(float (&x)[kKept], const Score (&s)[kScores],
                                            const float (&f)[2]) const {
    const float minus[2] = {-reference(0), -reference(1)};
#pragma unroll
    for (int i = 0; i < kKept; ++i) x[i] = fmaf(raw(s[i]), f[i / 2 % 2], minus[i / 2 % 2]);
  }

  /// A new reference above the exponents of the rows that have outgrown theirs, and the exponents
  /// relative to it. Nothing may be in flight.
  __device__ __forceinline__ void raise_reference(float (&x)[kKept]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float largest = -INFINITY;
#pragma unroll
      for (int i = 2 * row; i < kKept; i += 4)
        largest = ptx::max_nan(largest, ptx::max_nan(x[i], x[i + 1]));
      largest = quad_max(largest);
      if (m[row] > -INFINITY && largest < 0) continue;
      const float before = reference(row);
      move_reference(row, floorf(largest) + 1 + before);
      const float by = before - reference(row);
#pragma unroll
      for (int i = 2 * row; i < kKept; i += 4) {
        x[i] += by;
        x[i + 1] += by;
      }
    }
  }

  /// Probabilities in place of exponents, and the sums of a thread's rows.
  template <int kCount>
  static __device__ __forceinline__ void exponentials(float (&x)[kCount], float (&sum)[2]) {
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      x[i] = ptx::ex2(x[i]);
      x[i + 1] = ptx::ex2(x[i + 1]);
      sum[i / 2 % 2] += x[i] + x[i + 1];
    }
  }

  /// True when a row has outgrown its reference by so much that its probabilities may not fit
  /// their type, or is NaN.
  static __device__ __forceinline__ bool outgrown(const float (&sum)[2]) {
    return !(sum[0] < kLargestSum) || !(sum[1] < kLargestSum);
  }

  /// Probabilities as the A operand of the next product.
  template <int kCount>
  static __device__ __forceinline__ void pack(std::uint32_t (&prob)[kCount / 2],
                                              const float (&x)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) prob[i / 2] = ptx::pack<c.dtype>(x[i], x[i + 1]);
  }

  /// Prunes S. Of the metadata exchange one step remains, for after the products that read the last
  /// metadata have retired.
  __device__ __forceinline__ layout::WordPair prune(Score (&s)[kScores], std::uint32_t& received,
                                                    layout::WordPair& own) const {
    layout::WordPair words{};
    if constexpr (kPairs) {
      const tile::ExchangeLane to(lane);
      own = tile::prune_pairs<c.tile>(s);
      words = tile::exchange_nibbles(to, own);
      received = __shfl_xor_sync(~0u, tile::send_bytes(to, words), 2);
    }
    return words;
  }
  __device__ __forceinline__ void finish_metadata(layout::WordPair& out, layout::WordPair words,
                                                  std::uint32_t received) const {
    if constexpr (kPairs) {
      // Pins the last step behind the wait before it.
      asm volatile("" : "+r"(words.lo), "+r"(words.hi), "+r"(received));
      out = tile::receive_bytes(tile::ExchangeLane(lane), words, received);
    }
  }
};

}  // namespace twofour::cuda::sm90
