// The tensor-core products of one consumer warpgroup: descriptors, issue, and the rings of stages
// that they read.
#pragma once

#include <utility>

#include "cuda/ptx/async.h"
#include "cuda/ptx/wgmma.h"
#include "cuda/sm90/item.h"
#include "cuda/sm90/shared.h"
#include "layout/pair_scores.h"

namespace twofour::cuda::sm90 {

// Named barriers: 0 is __syncthreads.
inline constexpr int kBarrierConsumers = 1;
inline constexpr int kBarrierWarpgroup = 2;  // and the two after it
inline constexpr int kBarrierTurn = 5;       // and the two after it

/// P of a step, as the A operand of the next product.
template <Config c>
struct Probabilities {
  static constexpr int kKept = c.tile / 2 / (c.score == ScorePattern::kPair ? 2 : 1);
  std::uint32_t packed[kKept / 2];
  layout::WordPair metadata;  // of pairs
};

template <Config c>
struct Products {
  using S = Shared<c>;
  using Tile = layout::PairTile<c.tile>;
  using Score = std::conditional_t<is_int8(c), std::int32_t, float>;
  static constexpr int kScores = c.tile / 2;  // of a thread in a step
  static constexpr int kOut = c.head_dim / 2;
  static constexpr bool kPairs = c.score == ScorePattern::kPair;
  static constexpr int kKept = Probabilities<c>::kKept;
  static constexpr int kStepsPerBlock = c.block / c.tile;

  const Params& p;
  unsigned char* memory;  // shared, generic
  std::uint32_t shared;   // shared, window address
  int warpgroup, warp, lane;

  Ring<c.stages> key_ring, value_ring;
  float o[kOut];
  std::uint32_t query_metadata[c.head_dim / 64];

  __device__ Products(const Params& params, unsigned char* smem, std::uint32_t smem_address, int wg,
                      int thread)
      : p(params),
        memory(smem),
        shared(smem_address),
        warpgroup(wg),
        warp(thread / 32),
        lane(thread % 32) {}

  // ---- products

  // Descriptors differ in their start address alone, so one register gives them all.
  template <class Tile_, int kStep, bool kTransposed = false>
  __device__ __forceinline__ std::uint64_t descriptor(std::uint32_t at,
                                                      layout::Swizzle swizzle) const {
    constexpr auto make = [](layout::Swizzle z) {
      if constexpr (kTransposed)
        return layout::mn_major_descriptor<Tile_, kStep>(0, 0, z).encode();
      else
        return layout::k_major_descriptor<Tile_, kStep>(0, 0, z).encode();
    };
    return make(swizzle) + ((shared + at) >> 4);
  }
  __device__ __forceinline__ std::uint64_t query_descriptor() const {
    return descriptor<typename S::Query, 256 / S::kQueryBits>(
        S::kQueries + warpgroup * S::Query::kTileBytes, S::kSwizzle);
  }
  __device__ __forceinline__ std::uint64_t pruned_descriptor() const {
    return descriptor<typename S::PrunedQuery, 16>(
        S::kPruned + warpgroup * S::PrunedQuery::kTileBytes, S::kPrunedSwizzle);
  }
  __device__ __forceinline__ std::uint64_t key_descriptor() const {
    return descriptor<typename S::Key, 256 / S::kQueryBits>(
        S::kKeys + key_ring.stage * S::Key::kTileBytes, S::kSwizzle);
  }
  __device__ __forceinline__ std::uint64_t value_descriptor() const {
    return descriptor<typename S::Value, 16, true>(
        S::kValues + value_ring.stage * S::Value::kTileBytes, layout::Swizzle::k128B);
  }

  /// S = Q K' with all of q, of the key stage the ring is at, or of `kKeys` keys of it from row
  /// `first` on, a multiple of 8.
  template <int kKeys = c.tile>
  __device__ __forceinline__ void issue_full_scores(Score (&s)[kKeys / 2], int first = 0) {
    const std::uint64_t k = key_descriptor() + first * S::Key::kRowBytes / 16;
    const std::uint64_t query = query_descriptor();
    constexpr int kStep = 256 / S::kQueryBits;  // channels of a product: 32 bytes
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < c.head_dim / kStep; ++step) {
      const int byte = 32 * step;
      const int at_q =
          byte / S::Query::kRowBytes * S::Query::kPanelBytes + byte % S::Query::kRowBytes;
      const int at_k = byte / S::Key::kRowBytes * S::Key::kPanelBytes + byte % S::Key::kRowBytes;
      ptx::WgmmaShared<is_int8(c) ? DType::kI8 : c.dtype, kKeys>::run(s, query + at_q / 16,
                                                                      k + at_k / 16, step > 0);
    }
    ptx::wgmma_commit();
  }

  /// S = Q K' with the kept half of q.
  __device__ __forceinline__ void issue_pruned_scores(Score (&s)[kScores]) {
    if constexpr (!is_nm24(c)) {
      issue_full_scores(s);
    } else {
      const std::uint64_t k = key_descriptor();
      const std::uint64_t query = pruned_descriptor();
      ptx::wgmma_fence();
      sparse_scores(s, query, k, std::make_integer_sequence<int, c.head_dim / 32>());
      ptx::wgmma_commit();
    }
  }
  template <int... kStep>
  __device__ __forceinline__ void sparse_scores(Score (&s)[kScores], std::uint64_t query,
                                                std::uint64_t k,
                                                std::integer_sequence<int, kStep...>) {
    (ptx::WgmmaSparseShared<c.dtype, c.tile>::template run<kStep % 2>(
         s, query + 32 * kStep / 16, k + (kStep / 2 * S::Key::kPanelBytes + kStep % 2 * 64) / 16,
         query_metadata[kStep / 2], kStep > 0),
     ...);
  }

  __device__ __forceinline__ void issue_values(const Probabilities<c>& prob, bool commit = true) {
    if constexpr (kPairs)
      issue_sparse_values(prob.packed, prob.metadata);
    else
      issue_dense_values(prob.packed);
    if (commit) ptx::wgmma_commit();
  }

  /// O += P V, P dense over the keys of the step in their order, or over `kKeys` of them.
  template <int kKeys = c.tile>
  __device__ __forceinline__ void issue_dense_values(const std::uint32_t (&prob)[kKeys / 4],
                                                     int first = 0) {
    const std::uint64_t v = value_descriptor() + first * S::Value::kRowBytes / 16;
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
      ptx::WgmmaRegisters<c.dtype, c.head_dim>::run(o, prob + 4 * step,
                                                    v + step * 16 * S::Value::kRowBytes / 16, true);
  }

  /// O += P V, P the kept half, V in pair order.
  __device__ __forceinline__ void issue_sparse_values(const std::uint32_t (&prob)[kKept / 2],
                                                      const layout::WordPair& metadata) {
    const std::uint64_t v = value_descriptor();
    ptx::wgmma_fence();
    sparse_values(prob, metadata, v, std::make_integer_sequence<int, Tile::kSteps>());
  }
  template <int... kStep>
  __device__ __forceinline__ void sparse_values(const std::uint32_t (&prob)[kKept / 2],
                                                const layout::WordPair& metadata, std::uint64_t v,
                                                std::integer_sequence<int, kStep...>) {
    (ptx::WgmmaSparseRegisters<c.dtype, c.head_dim>::template run<Tile::selector_of_step(kStep)>(
         o, prob + 4 * kStep, v + kStep * 32 * S::Value::kRowBytes / 16,
         Tile::word_of_step(kStep) == 0 ? metadata.lo : metadata.hi),
     ...);
  }

  // ---- stages

  __device__ __forceinline__ void wait_key() {
    ptx::mbarrier_wait(shared + S::key_full(key_ring.stage), key_ring.parity);
  }
  __device__ __forceinline__ void release_key() {
    if (warp == 0 && lane == 0) ptx::mbarrier_arrive(shared + S::key_empty(key_ring.stage));
    key_ring.next();
  }
  __device__ __forceinline__ void wait_value() {
    ptx::mbarrier_wait(shared + S::value_full(value_ring.stage), value_ring.parity);
  }
  __device__ __forceinline__ void release_value() {
    if (warp == 0 && lane == 0) ptx::mbarrier_arrive(shared + S::value_empty(value_ring.stage));
    value_ring.next();
  }

  // ---- turns
  // Warpgroups issue their products in turn, so that one computes exponentials while another
  // multiplies.

  __device__ __forceinline__ void await_turn() {
    if constexpr (c.turns) ptx::named_barrier_sync(kBarrierTurn + warpgroup, 256);
  }
  __device__ __forceinline__ void pass_turn() {
    if constexpr (c.turns)
      ptx::named_barrier_arrive(kBarrierTurn + (warpgroup + 1) % kWarpgroups, 256);
  }
};

}  // namespace twofour::cuda::sm90
