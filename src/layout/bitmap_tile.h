// The bitmap tile of compressed weights (Tensor-Core-Aware Bitmap Encoding): which bit stands for
// which element, and where its value is stored.
//
// Source: Fan et al., "SpInfer: Leveraging Low-Level Sparsity for Efficient Large Language Model
// Inference on GPUs", EuroSys 2025 (TCA-BME). Three levels: a bitmap tile is 8 x 8 elements in one
// 64-bit word, row-major; a Tensor Core tile is 16 x 16, four bitmap tiles in column-major order,
// which is the order of the four A registers of mma.m16n8k16; a group tile is what a thread block
// loads, Tensor Core tiles in row-major order, so that each warp walks one strip of 16 rows.
#pragma once

#include <bit>
#include <cstdint>

#include "layout/fragment.h"
#include "layout/mma.h"

namespace twofour::layout {

/// Place of an element's bit: word of the group tile, bit of the word.
struct BitmapSlot {
  int word = 0;
  int bit = 0;
  friend constexpr bool operator==(const BitmapSlot&, const BitmapSlot&) = default;
};

/// A group tile of kGroupRows x kGroupCols elements, both multiples of 16.
template <int kGroupRows, int kGroupCols>
struct BitmapTile {
  static_assert(kGroupRows % 16 == 0 && kGroupCols % 16 == 0);
  static constexpr int kRows = kGroupRows, kCols = kGroupCols;
  static constexpr int kWords = kRows * kCols / 64;
  static constexpr int kWordsPerStrip = kCols / 16 * 4;  // words of 16 rows, one warp's share

  static constexpr BitmapSlot slot(Coord c) {
    const int core_tile = c.row / 16 * (kCols / 16) + c.col / 16;
    const int quarter = c.row / 8 % 2 + 2 * (c.col / 8 % 2);
    return {4 * core_tile + quarter, 8 * (c.row % 8) + c.col % 8};
  }
  static constexpr Coord coord(BitmapSlot s) {
    const int core_tile = s.word / 4, quarter = s.word % 4;
    return {core_tile / (kCols / 16) * 16 + 8 * (quarter % 2) + s.bit / 8,
            core_tile % (kCols / 16) * 16 + 8 * (quarter / 2) + s.bit % 8};
  }
};

/// Index of an element's value among those of its word: values are stored word after word, and
/// within a word in the order of its set bits.
constexpr int rank_in_word(std::uint64_t word, int bit) {
  return std::popcount(word & ((std::uint64_t{1} << bit) - 1));
}

/// The two bits that a lane of a warp decodes from each word: its two elements of the A register
/// whose number is the word's place in the Tensor Core tile.
constexpr int first_bit_of_lane(int lane) { return 2 * lane; }

template <class Tile>
constexpr bool is_bijective_bitmap() {
  if (Tile::kWords * 64 != Tile::kRows * Tile::kCols) return false;
  for (int word = 0; word < Tile::kWords; ++word)
    for (int bit = 0; bit < 64; ++bit) {
      const Coord c = Tile::coord(BitmapSlot{word, bit});
      const bool inside = c.row >= 0 && c.row < Tile::kRows && c.col >= 0 && c.col < Tile::kCols;
      if (!inside || Tile::slot(c) != BitmapSlot{word, bit}) return false;
    }
  return true;
}

/// Decoding needs no data movement: bit 2 * lane + part of word r of a Tensor Core tile is element
/// `part` of A register r in that lane.
constexpr bool bitmap_is_the_a_fragment() {
  for (int lane = 0; lane < 32; ++lane)
    for (int reg = 0; reg < 4; ++reg)
      for (int part = 0; part < 2; ++part)
        if (BitmapTile<16, 16>::slot(MmaA<16>::coord(Slot{lane, reg, part})) !=
            BitmapSlot{reg, first_bit_of_lane(lane) + part})
          return false;
  return true;
}

static_assert(is_bijective_bitmap<BitmapTile<16, 16>>());
static_assert(is_bijective_bitmap<BitmapTile<64, 64>>());
static_assert(is_bijective_bitmap<BitmapTile<32, 128>>());
static_assert(bitmap_is_the_a_fragment());

}  // namespace twofour::layout
