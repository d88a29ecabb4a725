// The bitmap tile: a matrix encoded by it comes back, and its strips are what a warp walks.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "layout/bitmap_tile.h"

namespace twofour::layout {
namespace {

TEST(BitmapTile, EncodedMatrixComesBack) {
  using Tile = BitmapTile<64, 64>;
  std::mt19937 random(1);
  std::vector<int> dense(Tile::kRows * Tile::kCols);  // [row,col]
  for (int& x : dense) x = random() % 5 < 3 ? 0 : static_cast<int>(random() % 1000) + 1;
  std::vector<std::uint64_t> words(Tile::kWords);
  std::vector<int> values, start;
  for (int word = 0; word < Tile::kWords; ++word) {
    start.push_back(static_cast<int>(values.size()));
    for (int bit = 0; bit < 64; ++bit) {
      const Coord c = Tile::coord({word, bit});
      if (const int value = dense[c.row * Tile::kCols + c.col]; value != 0) {
        words[word] |= std::uint64_t{1} << bit;
        values.push_back(value);
      }
    }
  }
  for (int row = 0; row < Tile::kRows; ++row)
    for (int col = 0; col < Tile::kCols; ++col) {
      const BitmapSlot s = Tile::slot({row, col});
      const bool set = (words[s.word] >> s.bit) & 1u;
      const int value = set ? values[start[s.word] + rank_in_word(words[s.word], s.bit)] : 0;
      ASSERT_EQ(value, dense[row * Tile::kCols + col]) << row << ", " << col;
    }
}

TEST(BitmapTile, OrderOfTheLevels) {
  using Tile = BitmapTile<64, 64>;
  EXPECT_EQ(Tile::slot({0, 0}), (BitmapSlot{0, 0}));
  EXPECT_EQ(Tile::slot({0, 7}), (BitmapSlot{0, 7}));
  EXPECT_EQ(Tile::slot({1, 0}), (BitmapSlot{0, 8}));  // row-major in the word
  EXPECT_EQ(Tile::slot({8, 0}), (BitmapSlot{1, 0}));  // column-major in the Tensor Core tile
  EXPECT_EQ(Tile::slot({0, 8}), (BitmapSlot{2, 0}));
  EXPECT_EQ(Tile::slot({15, 15}), (BitmapSlot{3, 63}));
  EXPECT_EQ(Tile::slot({0, 16}), (BitmapSlot{4, 0}));  // row-major in the group tile
  EXPECT_EQ(Tile::slot({16, 0}), (BitmapSlot{Tile::kWordsPerStrip, 0}));
}

TEST(BitmapTile, RankCountsLowerBitsOnly) {
  static_assert(rank_in_word(~std::uint64_t{0}, 0) == 0);
  static_assert(rank_in_word(~std::uint64_t{0}, 63) == 63);
  static_assert(rank_in_word(0b1011, 3) == 2 && rank_in_word(0b1011, 2) == 2);
  EXPECT_EQ(rank_in_word(0, 40), 0);
}

}  // namespace
}  // namespace twofour::layout
