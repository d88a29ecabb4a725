// The shared memory of a CTA: offsets in bytes from a 128-byte boundary, and the barriers.
#pragma once

#include "cuda/sm80/item.h"
#include "cuda/tile/row_tile.h"

namespace twofour::cuda::sm80 {

template <Config c>
struct Shared {
  static constexpr int kElement = is_int8(c) ? 1 : 2;  // bytes of Q and K
  static constexpr int kKeyPitch = is_int8(c) ? code_width(c) : c.head_dim * kElement;

  using Query = tile::RowTile<kKeyPitch, c.rows(), false>;
  using Key = tile::RowTile<kKeyPitch, c.tile>;
  using Value = tile::RowTile<2 * c.head_dim, c.tile>;
  using Out = tile::RowTile<2 * c.head_dim, c.rows(), false>;

  // O leaves through the memory of Q: of each warp its own rows.
  static constexpr int kQueries = 0;
  static constexpr int kRowScale = kQueries + Out::kBytes;
  static constexpr int kRowShift = kRowScale + (is_int8(c) ? 4 * c.rows() : 0);
  static constexpr int kItem = kRowShift + (is_int8(c) ? 4 * c.rows() : 0);
  static constexpr int kBarriers = (kItem + static_cast<int>(sizeof(Item)) + 7) / 8 * 8;
  static constexpr int kMaxStages = 8;
  static constexpr int kStages = (kBarriers + 16 * kMaxStages + 127) / 128 * 128;
  static constexpr int kStageBytes = Key::kBytes + Value::kBytes;
  static_assert(Query::kBytes <= Out::kBytes && kStageBytes % 128 == 0);

  static constexpr int allocated(int stages) { return kStages + stages * kStageBytes + 128; }
  static constexpr int full(int stage) { return kBarriers + 16 * stage; }
  static constexpr int empty(int stage) { return kBarriers + 16 * stage + 8; }
};

}  // namespace twofour::cuda::sm80
