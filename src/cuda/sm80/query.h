// The query rows of a warp: from global memory to shared, quantised on the way where the product is
// int8, and their pruned form from there to registers.
#pragma once

#include "cuda/ptx/shared.h"
#include "cuda/sm80/shared.h"
#include "cuda/tile/pair_prune.h"
#include "cuda/tile/quantise_query.h"
#include "cuda/tile/select_channels.h"

namespace twofour::cuda::sm80 {

/// Fills the rows of this warp in shared memory; other warps do not read them.
template <Config c>
__device__ inline void load_query(const Params& p, const Item& item, std::uint32_t shared, int warp,
                                  int lane) {
  using S = Shared<c>;
  constexpr int kLanesOfRow = c.head_dim == 96 ? 16 : c.head_dim / 8;
  constexpr int kRowsAtOnce = 32 / kLanesOfRow;
  constexpr int kRows = 16 * c.row_tiles;
  const int chunk = lane % kLanesOfRow;
  const bool stored = 8 * chunk < c.head_dim;
  const bool exists = 8 * chunk < p.head_dim;
  const auto* base = static_cast<const unsigned short*>(p.q.data) + item.b * p.q.batch +
                     item.head * p.q.head + std::int64_t{item.first_row_q} * p.q.row + 8 * chunk;
  float mean[8];
  if constexpr (is_int8(c)) {
    const float* of = p.key_mean + (std::int64_t{item.kv_head} * p.batch + item.b) * code_width(c);
#pragma unroll
    for (int i = 0; i < 8; ++i) mean[i] = exists ? __ldg(of + 8 * chunk + i) : 0.0f;
  }
#pragma unroll 4
  for (int pass = 0; pass < kRows / kRowsAtOnce; ++pass) {
    const int row = kRows * warp + pass * kRowsAtOnce + lane / kLanesOfRow;
    const int i = item.row_of_sequence(row);
    uint4 q = make_uint4(0, 0, 0, 0);
    if (exists && i >= 0 && i < item.seqlen_q)
      q = __ldg(reinterpret_cast<const uint4*>(base + i * p.q.row));
    if constexpr (is_int8(c)) {
      const auto quantised = tile::quantise_chunk<c.dtype, kLanesOfRow>(q, mean, p.scale);
      if (stored)
        ptx::store_shared(shared + S::kQueries + S::Query::offset(row, chunk / 2) + 8 * (chunk % 2),
                          quantised.codes);
      if (chunk == 0) {
        ptx::store_shared(shared + S::kRowScale + 4 * row, quantised.scale);
        ptx::store_shared(shared + S::kRowShift + 4 * row, quantised.dot * p.scale);
      }
    } else if (stored) {
      ptx::store_shared(shared + S::kQueries + S::Query::offset(row, chunk),
                        tile::times_sign(q, p.scale));
    }
  }
}

/// The kept half of q as A of every k-step of 32 channels, and its metadata: word w serves the
/// k-steps 2w and 2w + 1.
template <Config c>
struct PrunedQuery {
  static constexpr int kSteps = c.head_dim / 32;
  std::uint32_t a[c.row_tiles][kSteps][4];
  layout::WordPair metadata[c.row_tiles];

  __device__ __forceinline__ void prune(const Params& p, const Item& item, std::uint32_t shared,
                                        int warp, int lane) {
    using S = Shared<c>;
    const int g = layout::group_of(lane), t = layout::quad_lane(lane);
    std::uint32_t words[c.row_tiles][2] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const int channel = 32 * step + 16 * part + 4 * t;
        float w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          w[i] = p.weights != nullptr && channel < p.head_dim
                     ? __ldg(p.weights + item.kv_head * p.head_dim + channel + i)
                     : 1.0f;
#pragma unroll
        for (int r = 0; r < c.row_tiles; ++r)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int row = 16 * (c.row_tiles * warp + r) + g + 8 * h;
            const uint2 q = ptx::load_shared_uint2(
                shared + S::kQueries + S::Query::offset(row, channel / 8) + 8 * (t % 2));
            const std::uint32_t m[4] = {tile::magnitude(ptx::unpack_low<c.dtype>(q.x), w[0]),
                                        tile::magnitude(ptx::unpack_high<c.dtype>(q.x), w[1]),
                                        tile::magnitude(ptx::unpack_low<c.dtype>(q.y), w[2]),
                                        tile::magnitude(ptx::unpack_high<c.dtype>(q.y), w[3])};
            const tile::KeptGroup kept = tile::keep_two(q.x, q.y, m);
            a[r][step][h + 2 * part] = kept.values;
            const int block = 2 * step + part;
            words[r][block / 4] |= kept.nibble << (16 * h + 4 * (block % 4));
          }
      }
#pragma unroll
    for (int r = 0; r < c.row_tiles; ++r)
      metadata[r] = tile::exchange(tile::ExchangeLane(lane), {words[r][0], words[r][1]});
  }
};

}  // namespace twofour::cuda::sm80
