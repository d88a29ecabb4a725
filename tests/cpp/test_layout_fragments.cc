// The fragment layouts against the formulas of the PTX ISA, written as it writes them: element
// index i of the operand's vector, groupID, threadID_in_group.
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "layout/fragment.h"
#include "layout/mma.h"
#include "layout/wgmma.h"

namespace twofour::layout {
namespace {

/// Every element of the layout is at formula(lane, i), i = register * parts + part.
template <class Layout, class Formula>
void expect_formula(Formula formula) {
  for (int lane = 0; lane < Layout::kLanes; ++lane)
    for (int i = 0; i < Layout::kRegisters * Layout::kParts; ++i) {
      const auto [row, col] = formula(lane, i);
      const Slot slot{lane, i / Layout::kParts, i % Layout::kParts};
      ASSERT_EQ(Layout::coord(slot), (Coord{row, col})) << "lane " << lane << " element " << i;
      ASSERT_EQ(Layout::slot({row, col}), slot) << "row " << row << " col " << col;
    }
}

using Position = std::pair<int, int>;

TEST(MmaFragments, A16BitIsThePtxFormula) {
  expect_formula<MmaA<16>>([](int lane, int i) -> Position {
    const int group = lane >> 2, thread = lane % 4;
    const int row = (i < 2 || (4 <= i && i < 6)) ? group : group + 8;
    const int col = i < 4 ? thread * 2 + (i & 1) : thread * 2 + (i & 1) + 8;
    return {row, col};
  });
}

TEST(MmaFragments, A8BitIsThePtxFormula) {
  expect_formula<MmaA<8>>([](int lane, int i) -> Position {
    const int group = lane >> 2, thread = lane % 4;
    const int row = (i < 4 || (8 <= i && i < 12)) ? group : group + 8;
    const int col = i < 8 ? thread * 4 + (i & 3) : thread * 4 + (i & 3) + 16;
    return {row, col};
  });
}

TEST(MmaFragments, BIsThePtxFormula) {
  expect_formula<MmaB<16, 16>>([](int lane, int i) -> Position {
    const int thread = lane % 4;
    return {i < 2 ? thread * 2 + (i & 1) : thread * 2 + (i & 1) + 8, lane >> 2};
  });
  expect_formula<MmaB<16, 32>>([](int lane, int i) -> Position {
    return {lane % 4 * 2 + (i & 1) + 8 * (i / 2), lane >> 2};
  });
  expect_formula<MmaB<8, 32>>([](int lane, int i) -> Position {
    const int thread = lane % 4;
    return {i < 4 ? thread * 4 + (i & 3) : thread * 4 + (i & 3) + 16, lane >> 2};
  });
  expect_formula<MmaB<8, 64>>([](int lane, int i) -> Position {
    return {lane % 4 * 4 + (i & 3) + 16 * (i / 4), lane >> 2};
  });
}

TEST(MmaFragments, DIsThePtxFormula) {
  expect_formula<MmaD>([](int lane, int i) -> Position {
    return {i < 2 ? lane >> 2 : (lane >> 2) + 8, lane % 4 * 2 + (i & 1)};
  });
}

// The sparse A registers of m16n8k32 cover, per the ISA, the four columns firstcol .. firstcol + 3
// with firstcol = 4 * threadID_in_group (+ 16 for i >= 4): two kept elements of each.
TEST(MmaFragments, SparseAHoldsItsGroupsOfColumns) {
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 8; ++i) {
      const int first_column = lane % 4 * 4 + (i < 4 ? 0 : 16);
      EXPECT_EQ(MmaA<16>::coord({lane, i / 2, i % 2}).col / 2, first_column / 4);
    }
  // And of m16n8k64: eight columns, two groups, firstcol = 8 * threadID_in_group (+ 32).
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 16; ++i) {
      const int first_column = lane % 4 * 8 + (i < 8 ? 0 : 32);
      EXPECT_EQ(MmaA<8>::coord({lane, i / 4, i % 4}).col / 2, first_column / 4 + i % 4 / 2);
    }
}

TEST(WgmmaFragments, AAndDAreThePtxFormula) {
  expect_formula<WgmmaA<16>>([](int lane, int i) -> Position {
    const int warp = lane / 32, group = lane % 32 / 4, thread = lane % 4;
    const int row = (i < 2 || (4 <= i && i < 6)) ? group : group + 8;
    return {16 * warp + row, thread * 2 + (i & 1) + (i < 4 ? 0 : 8)};
  });
  expect_formula<WgmmaA<8>>([](int lane, int i) -> Position {
    const int warp = lane / 32, group = lane % 32 / 4, thread = lane % 4;
    const int row = (i < 4 || (8 <= i && i < 12)) ? group : group + 8;
    return {16 * warp + row, thread * 4 + (i & 3) + (i < 8 ? 0 : 16)};
  });
  expect_formula<WgmmaD<96>>([](int lane, int i) -> Position {
    const int warp = lane / 32, group = lane % 32 / 4, thread = lane % 4;
    return {16 * warp + group + 8 * (i / 2 % 2), 8 * (i / 4) + thread * 2 + (i & 1)};
  });
}

// The emulator and kernels index a narrow accumulator through the widest layout.
TEST(WgmmaFragments, NarrowAccumulatorsAreAPrefixOfWideOnes) {
  for (int lane = 0; lane < 128; ++lane)
    for (int reg = 0; reg < WgmmaD<64>::kRegisters; ++reg)
      EXPECT_EQ(WgmmaD<64>::coord({lane, reg, 0}), WgmmaD<256>::coord({lane, reg, 0}));
}

// A broken layout must be called broken: the check itself has to be able to fail.
struct Colliding : MmaD {
  static constexpr Coord coord(Slot s) { return MmaD::coord({s.lane, s.reg & ~1, 0}); }
};
struct OutOfRange : MmaD {
  static constexpr Coord coord(Slot s) {
    const Coord c = MmaD::coord(s);
    return {c.row + 1, c.col};
  }
  static constexpr Slot slot(Coord c) { return MmaD::slot({c.row - 1, c.col}); }
};
struct WrongSize : MmaD {
  static constexpr int kCols = 16;
};

TEST(Registers, PartsAreIndependentAndLowFirst) {
  static_assert(get_part<16>(0xBEEF1234u, 0) == 0x1234u && get_part<16>(0xBEEF1234u, 1) == 0xBEEFu);
  static_assert(get_part<8>(0x44332211u, 2) == 0x33u);
  static_assert(set_part<16>(0xBEEF1234u, 1, 0xFFFF5678u) == 0x56781234u);
  static_assert(set_part<8>(0x44332211u, 3, 0xAAu) == 0xAA332211u);
  static_assert(!is_bijective<Colliding>());
  static_assert(!is_bijective<OutOfRange>());
  static_assert(!is_bijective<WrongSize>());
  EXPECT_TRUE(is_bijective<MmaD>());
}

}  // namespace
}  // namespace twofour::layout
