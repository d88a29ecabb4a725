// Loading the 64 query rows of a warpgroup: from global memory into the shared tiles that the
// products read, pruned or quantised on the way. Each warp handles its own 16 rows.
#pragma once

#include "cuda/ptx/async.h"
#include "cuda/ptx/math.h"
#include "cuda/ptx/shared.h"
#include "cuda/sm90/item.h"
#include "cuda/sm90/shared.h"
#include "cuda/tile/quantise_query.h"
#include "cuda/tile/select_channels.h"

namespace twofour::cuda::sm90 {

template <Config c>
struct QueryLoader {
  using S = Shared<c>;
  static constexpr int kChunks = c.head_dim / 8;    // 16 bytes each, in a row
  static constexpr int kRowsAtOnce = 32 / kChunks;  // of a warp
  static constexpr int kPasses = 16 / kRowsAtOnce;

  const Params& p;
  const Item& item;
  unsigned char* memory;  // shared, generic
  std::uint32_t shared;   // shared, window address
  int warpgroup, warp, lane;

  /// Fills the tiles of this warp's rows. Afterwards fence_proxy_async and a barrier of the
  /// warpgroup.
  __device__ void run() const {
    const int chunk = lane % kChunks;
    const bool chunk_exists = 8 * chunk < p.head_dim;
    const auto* base = static_cast<const unsigned short*>(p.q.data) + item.b * p.q.batch +
                       item.head * p.q.head + std::int64_t{item.first_row_q} * p.q.row + 8 * chunk;
    const int first = item.position_of(64 * warpgroup + 16 * warp) - item.position;
    uint4 q[kPasses];
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = first + pass * kRowsAtOnce + lane / kChunks;
      q[pass] = make_uint4(0, 0, 0, 0);
      if (chunk_exists && row >= 0 && row < item.seqlen_q)
        q[pass] = __ldg(reinterpret_cast<const uint4*>(base + row * p.q.row));
    }
    const float* side =
        is_int8(c) ? p.key_mean + (std::int64_t{item.kv_head} * p.batch + item.b) * c.head_dim
                   : p.weights + item.kv_head * p.head_dim;
    float channel[8];  // the mean of K, or the weight of q'
    if constexpr (is_int8(c) || is_nm24(c)) {
      const bool given = chunk_exists && (is_int8(c) || p.weights != nullptr);
#pragma unroll
      for (int i = 0; i < 8; ++i) channel[i] = given ? __ldg(side + 8 * chunk + i) : 1.0f;
    }
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = 16 * warp + pass * kRowsAtOnce + lane / kChunks;
      if constexpr (is_int8(c)) {
        quantise(q[pass], channel, row, chunk);
      } else {
        const uint4 flipped = tile::times_sign(q[pass], p.scale);
        ptx::store_shared(shared + S::kQueries + warpgroup * S::Query::kTileBytes +
                              S::Query::offset({row, 8 * chunk}),
                          flipped);
        if constexpr (is_nm24(c)) prune(flipped, channel, row, chunk);
      }
    }
  }

 private:
  __device__ void prune(uint4 q, const float (&w)[8], int row, int chunk) const {
    const std::uint32_t word[4] = {q.x, q.y, q.z, q.w};
    const tile::KeptChunk kept = tile::keep_chunk<c.dtype>(word, w);
    ptx::store_shared(shared + S::kPruned + warpgroup * S::PrunedQuery::kTileBytes +
                          S::PrunedQuery::offset({row, 4 * chunk}),
                      make_uint2(kept.values[0], kept.values[1]));
    memory[S::kMetadata + warpgroup * S::kMetadataBytes +
           tile::QueryMetadata<c.head_dim>::byte_of(row, chunk)] =
        static_cast<unsigned char>(kept.nibbles);
  }

  __device__ void quantise(uint4 q, const float (&mean)[8], int row, int chunk) const {
    const tile::QuantisedChunk chunk_codes =
        tile::quantise_chunk<c.dtype, kChunks>(q, mean, p.scale);
    ptx::store_shared(shared + S::kQueries + warpgroup * S::Query::kTileBytes +
                          S::Query::offset({row, 8 * chunk}),
                      chunk_codes.codes);
    if (chunk == 0) {
      auto* scales = reinterpret_cast<float*>(memory + S::kRowScale);
      auto* shifts = reinterpret_cast<float*>(memory + S::kRowShift);
      scales[64 * warpgroup + row] = chunk_codes.scale;
      shifts[64 * warpgroup + row] = chunk_codes.dot * p.scale;
    }
  }
};

/// Metadata words of the pruned query for this lane: word w serves k-steps 2w and 2w + 1.
template <Config c>
__device__ __forceinline__ void load_query_metadata(std::uint32_t (&words)[c.head_dim / 64],
                                                    const unsigned char* memory, int warpgroup,
                                                    int warp, int lane) {
  using S = Shared<c>;
#pragma unroll
  for (int w = 0; w < c.head_dim / 64; ++w)
    words[w] = tile::QueryMetadata<c.head_dim>::word(
        memory + S::kMetadata + warpgroup * S::kMetadataBytes, warp, lane, w);
}

}  // namespace twofour::cuda::sm90
