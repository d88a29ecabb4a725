// The shared memory of a CTA: offsets in bytes from a 1024-byte boundary, and the barriers.
#pragma once

#include "cuda/sm90/item.h"
#include "layout/shared_tile.h"

namespace twofour::cuda::sm90 {

constexpr bool is_int8(const Config& c) { return c.qk == QKProduct::kInt8; }
constexpr bool is_nm24(const Config& c) { return c.qk == QKProduct::kNm24; }

template <Config c>
struct Shared {
  static constexpr int kQueryBits = is_int8(c) ? 8 : 16;
  static constexpr int kRowBytes = c.head_dim * kQueryBits / 8;  // of Q and K
  static constexpr layout::Swizzle kSwizzle =
      kRowBytes >= 128 ? layout::Swizzle::k128B : layout::Swizzle::k64B;
  static constexpr layout::Swizzle kPrunedSwizzle =
      c.head_dim >= 128 ? layout::Swizzle::k128B : layout::Swizzle::k64B;

  /// 64 rows of a warpgroup: all of q, and its kept half.
  using Query = layout::SharedTile<kQueryBits, 64, c.head_dim, kSwizzle>;
  using PrunedQuery = layout::SharedTile<16, 64, c.head_dim / 2, kPrunedSwizzle>;
  using Key = layout::SharedTile<kQueryBits, c.tile, c.head_dim, kSwizzle>;
  using Value = layout::SharedTile<16, c.tile, c.head_dim>;
  using Out = layout::SharedTile<16, 64, c.head_dim>;

  static constexpr int kKeyPanels = Key::kTileBytes / Key::kPanelBytes;
  static constexpr int kValuePanels = c.head_dim / 64;
  static constexpr int kMetadataBytes = 64 * c.head_dim / 8;  // a nibble for four channels

  static constexpr int kKeys = 0;
  static constexpr int kValues = kKeys + c.stages * Key::kTileBytes;
  static constexpr int kQueries = kValues + c.stages * Value::kTileBytes;
  static constexpr int kPruned = kQueries + kWarpgroups * Query::kTileBytes;
  // O leaves through the query's memory, or through its own where the query is smaller.
  static constexpr int kOutAt = kPruned + (is_nm24(c) ? kWarpgroups * PrunedQuery::kTileBytes : 0);
  static constexpr bool kOwnOut = Query::kTileBytes < Out::kTileBytes;
  static constexpr int kMetadata = kOutAt + (kOwnOut ? kWarpgroups * Out::kTileBytes : 0);
  static constexpr int kRowScale = kMetadata + (is_nm24(c) ? kWarpgroups * kMetadataBytes : 0);
  static constexpr int kRowShift = kRowScale + (is_int8(c) ? 4 * 64 * kWarpgroups : 0);
  static constexpr int kBarriers = kRowShift + (is_int8(c) ? 4 * 64 * kWarpgroups : 0);
  // full and empty of each K and V stage and of the item slots; then the slots.
  static constexpr int kItems = kBarriers + 8 * (4 * c.stages + 2 * kItemSlots);
  static constexpr int kBytes = kItems + kItemSlots * static_cast<int>(sizeof(Item));
  static constexpr int kAllocated = kBytes + 1024;  // to reach the boundary
  static_assert(kAllocated <= 232448);

  static constexpr int key_full(int stage) { return kBarriers + 8 * stage; }
  static constexpr int key_empty(int stage) { return kBarriers + 8 * (c.stages + stage); }
  static constexpr int value_full(int stage) { return kBarriers + 8 * (2 * c.stages + stage); }
  static constexpr int value_empty(int stage) { return kBarriers + 8 * (3 * c.stages + stage); }
  static constexpr int item_full(int slot) { return kBarriers + 8 * (4 * c.stages + slot); }
  static constexpr int item_empty(int slot) {
    return kBarriers + 8 * (4 * c.stages + kItemSlots + slot);
  }

  static __device__ __forceinline__ int out_at(int warpgroup) {
    return kOwnOut ? kOutAt + warpgroup * Out::kTileBytes
                   : kQueries + warpgroup * Query::kTileBytes;
  }
};

/// A position in a ring of stages: the parity flips at each wrap.
template <int kStages>
struct Ring {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace twofour::cuda::sm90
