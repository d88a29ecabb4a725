// The tensor-core products of one warp: its query rows against a chunk of keys, and the
// probabilities of a chunk against its values. Every fragment of K and V that ldmatrix brings is
// used for all row tiles of the warp.
#pragma once

#include <type_traits>
#include <utility>

#include "cuda/ptx/mma.h"
#include "cuda/sm80/query.h"
#include "cuda/sm80/shared.h"
#include "layout/pair_scores.h"

namespace twofour::cuda::sm80 {

template <Config c>
struct Products {
  using S = Shared<c>;
  using Pairs = layout::PairTile<c.chunk>;
  using Score = std::conditional_t<is_int8(c), std::int32_t, float>;
  static constexpr bool kPairs = c.score == ScorePattern::kPair;
  static constexpr int kTiles = c.row_tiles;
  static constexpr int kScores = c.chunk / 2;  // of a thread, a row tile and a chunk
  static constexpr int kKept = kPairs ? kScores / 2 : kScores;
  static constexpr int kOut = c.head_dim / 2;  // of a thread and a row tile
  static constexpr int kChunks = c.tile / c.chunk;
  /// k-steps of 32 bytes of q. Codes fit registers, as the kept half does; all of q does not beside
  /// O and the scores, unless the head is small.
  static constexpr int kQuerySteps = c.head_dim * S::kElement / 32;
  static constexpr bool kQueryInRegisters = is_int8(c) || (!is_nm24(c) && c.head_dim == 64);

  const Params& p;
  std::uint32_t shared;  // window address
  int warp, lane;
  std::uint32_t query_lane;  // offset of this lane's row and chunk for ldmatrix of q
  std::uint32_t key_lane;    // of keys: row l % 8, chunk l / 8, in the first half
  std::uint32_t pair_lane;   // of values in pair order

  float o[kTiles][kOut];
  std::uint32_t q[kQueryInRegisters ? kTiles : 1][kQueryInRegisters ? kQuerySteps : 1][4];
  std::conditional_t<is_nm24(c), PrunedQuery<c>, int> pruned;

  __device__ Products(const Params& params, std::uint32_t smem)
      : p(params),
        shared(smem),
        // Warp-uniform by construction, and known to be by the compiler.
        warp(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0)),
        lane(threadIdx.x % 32) {
    query_lane = S::Query::offset(lane % 16, lane / 16);
    key_lane = S::Key::offset(lane % 8, lane / 8);
    pair_lane = S::Value::offset(lane % 8 / 2 + 4 * (lane / 8) + lane % 2 * (c.tile / 2), 0);
  }

  // ---- q

  __device__ __forceinline__ void query_fragment(std::uint32_t (&a)[4], int r, int step) const {
    const std::uint32_t at = shared + S::kQueries + 16 * (kTiles * warp + r) * S::Query::kPitch;
    ptx::ldmatrix_x4(a, S::Query::further(at + query_lane, 2 * step));
  }
  __device__ __forceinline__ void keep_query() {
    if constexpr (kQueryInRegisters)
#pragma unroll
      for (int r = 0; r < kTiles; ++r)
#pragma unroll
        for (int step = 0; step < kQuerySteps; ++step) query_fragment(q[r][step], r, step);
  }

  // ---- S = Q K'

  /// Of n-block `n` and 64 bytes `at` of its eight keys, B of two k-steps (of one when it is
  /// sparse). `first` is the tile row of the n-block.
  __device__ __forceinline__ void key_fragment(std::uint32_t (&b)[4], std::uint32_t keys, int first,
                                               int at) const {
    const bool second_half = first >= c.tile / 2;
    const std::uint32_t lane_at =
        second_half ? key_lane ^ (S::Key::permutation(0, true) << 4) : key_lane;
    ptx::ldmatrix_x4(b, S::Key::further(keys + lane_at + first * S::Key::kPitch, 4 * at));
  }

  /// First tile row of an n-block of a chunk. Fast chunks of pairs are first keys, then partners.
  template <bool kContiguous>
  static __device__ __forceinline__ int key_row(int chunk, int n) {
    if (kContiguous || !kPairs) return c.chunk * chunk + 8 * n;
    return n < c.chunk / 16 ? c.chunk / 2 * chunk + 8 * n
                            : c.tile / 2 + c.chunk / 2 * chunk + 8 * (n - c.chunk / 16);
  }

  /// With all of q.
  template <bool kContiguous>
  __device__ __forceinline__ void full_scores(Score (&s)[kTiles][kScores], std::uint32_t keys,
                                              int chunk) const {
    clear(s);
#pragma unroll
    for (int pair = 0; pair < (kQuerySteps + 1) / 2; ++pair) {
      const int steps = 2 * pair + 1 < kQuerySteps ? 2 : 1;
      std::uint32_t a[kTiles][2][4];
#pragma unroll
      for (int r = 0; r < kTiles; ++r)
#pragma unroll
        for (int i = 0; i < steps; ++i)
          if constexpr (kQueryInRegisters)
            copy(a[r][i], q[r][2 * pair + i]);
          else
            query_fragment(a[r][i], r, 2 * pair + i);
#pragma unroll
      for (int n = 0; n < c.chunk / 8; ++n) {
        std::uint32_t b[4];
        key_fragment(b, keys, key_row<kContiguous>(chunk, n), pair);
#pragma unroll
        for (int i = 0; i < steps; ++i)
#pragma unroll
          for (int r = 0; r < kTiles; ++r)
            multiply(block_of(s[r], n), a[r][i], b[2 * i], b[2 * i + 1]);
      }
    }
  }

  /// With the kept half of q.
  __device__ __forceinline__ void pruned_scores(Score (&s)[kTiles][kScores], std::uint32_t keys,
                                                int chunk) const {
    if constexpr (!is_nm24(c)) {
      full_scores<false>(s, keys, chunk);
    } else {
      clear(s);
      sparse_scores(s, keys, chunk, std::make_integer_sequence<int, c.head_dim / 32>());
    }
  }
  template <int... kStep>
  __device__ __forceinline__ void sparse_scores(Score (&s)[kTiles][kScores], std::uint32_t keys,
                                                int chunk,
                                                std::integer_sequence<int, kStep...>) const {
    (sparse_step<kStep>(s, keys, chunk), ...);
  }
  template <int kStep>
  __device__ __forceinline__ void sparse_step(Score (&s)[kTiles][kScores], std::uint32_t keys,
                                              int chunk) const {
#pragma unroll
    for (int n = 0; n < c.chunk / 8; ++n) {
      std::uint32_t b[4];
      key_fragment(b, keys, key_row<false>(chunk, n), kStep);
#pragma unroll
      for (int r = 0; r < kTiles; ++r)
        ptx::mma_sp_m16n8k32<c.dtype, kStep % 2>(
            block_of(s[r], n), pruned.a[r][kStep], b,
            kStep / 2 == 0 ? pruned.metadata[r].lo : pruned.metadata[r].hi);
    }
  }

  // ---- O += P V

  /// P dense over tile rows `first` and on; `live` masks B: values of dead keys may be anything.
  template <bool kMasked>
  __device__ __forceinline__ void dense_values(const std::uint32_t (&prob)[kTiles][kScores / 2],
                                               std::uint32_t values, int first,
                                               const std::uint32_t (&live)[c.chunk / 8]) {
#pragma unroll
    for (int step = 0; step < c.chunk / 16; ++step) {
      const int row = first + 16 * step;
      // Matrices: keys 0-7 and 8-15 of one n-block, then of the next.
      const std::uint32_t in_tile =
          S::Value::permutation(lane % 8, row >= c.tile / 2) ^ (lane / 16);
      const std::uint32_t at = values + (row + lane % 16) * S::Value::kPitch + (in_tile << 4);
#pragma unroll
      for (int n = 0; n < c.head_dim / 8; n += 2) {
        std::uint32_t b[4];
        ptx::ldmatrix_x4_trans(b, S::Value::further(at, n));
        if constexpr (kMasked)
#pragma unroll
          for (int i = 0; i < 4; ++i) b[i] &= live[2 * step + i % 2];
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int r = 0; r < kTiles; ++r) {
            const std::uint32_t a[4] = {prob[r][4 * step], prob[r][4 * step + 1],
                                        prob[r][4 * step + 2], prob[r][4 * step + 3]};
            ptx::mma_m16n8k16<c.dtype>(block_of(o[r], n + i), a, b[2 * i], b[2 * i + 1]);
          }
      }
    }
  }

  /// P the kept half, V in pair order: first key, partner, next key, its partner.
  __device__ __forceinline__ void pair_values(const std::uint32_t (&prob)[kTiles][kKept / 2],
                                              const std::uint32_t (&metadata)[2],
                                              std::uint32_t values, int chunk) {
    pair_steps(prob, metadata, values, chunk, std::make_integer_sequence<int, Pairs::kSteps>());
  }
  template <int... kStep>
  __device__ __forceinline__ void pair_steps(const std::uint32_t (&prob)[kTiles][kKept / 2],
                                             const std::uint32_t (&metadata)[2],
                                             std::uint32_t values, int chunk,
                                             std::integer_sequence<int, kStep...>) {
    (pair_step<kStep>(prob, metadata, values, chunk, std::make_integer_sequence<int, kTiles>()),
     ...);
  }
  template <int kStep, int... kTile>
  __device__ __forceinline__ void pair_step(const std::uint32_t (&prob)[kTiles][kKept / 2],
                                            const std::uint32_t (&metadata)[2],
                                            std::uint32_t values, int chunk,
                                            std::integer_sequence<int, kTile...>) {
    const std::uint32_t at =
        values + pair_lane + (c.chunk / 2 * chunk + 16 * kStep) * S::Value::kPitch;
#pragma unroll
    for (int n = 0; n < c.head_dim / 8; ++n) {
      std::uint32_t b[4];
      ptx::ldmatrix_x4_trans(b, S::Value::further(at, n));
      (pair_product<kTile, kStep>(prob[kTile], metadata, b, n), ...);
    }
  }
  template <int kTile, int kStep>
  __device__ __forceinline__ void pair_product(const std::uint32_t (&prob)[kKept / 2],
                                               const std::uint32_t (&metadata)[2],
                                               const std::uint32_t (&b)[4], int n) {
    const std::uint32_t a[4] = {prob[4 * kStep], prob[4 * kStep + 1], prob[4 * kStep + 2],
                                prob[4 * kStep + 3]};
    // Row tiles follow one another in the n-blocks of the metadata.
    constexpr int kAt = kTile * Pairs::kSteps + kStep;
    ptx::mma_sp_m16n8k32<c.dtype, kAt % 2>(block_of(o[kTile], n), a, b, metadata[kAt / 2]);
  }

 private:
  template <class T, int kCount>
  static __device__ __forceinline__ T (&block_of(T (&registers)[kCount], int n))[4] {
    return reinterpret_cast<T(&)[4]>(registers[4 * n]);
  }
  static __device__ __forceinline__ void copy(std::uint32_t (&to)[4],
                                              const std::uint32_t (&from)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = from[i];
  }
  static __device__ __forceinline__ void clear(Score (&s)[kTiles][kScores]) {
#pragma unroll
    for (int r = 0; r < kTiles; ++r)
#pragma unroll
      for (int i = 0; i < kScores; ++i) s[r][i] = 0;
  }
  static __device__ __forceinline__ void multiply(float (&d)[4], const std::uint32_t (&a)[4],
                                                  std::uint32_t b0, std::uint32_t b1) {
    ptx::mma_m16n8k16<c.dtype>(d, a, b0, b1);
  }
  static __device__ __forceinline__ void multiply(std::int32_t (&d)[4], const std::uint32_t (&a)[4],
                                                  std::uint32_t b0, std::uint32_t b1) {
    ptx::mma_m16n8k32_s8(d, a, b0, b1);
  }
};

}  // namespace twofour::cuda::sm80
