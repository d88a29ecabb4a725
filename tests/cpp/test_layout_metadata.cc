// The 2:4 metadata words: legal values, and the place of every group by hand-picked facts of the
// PTX ISA figures.
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "layout/metadata.h"

namespace twofour::layout {
namespace {

TEST(Metadata, SixNibblesAreLegalAndCoverEveryChoice) {
  std::set<unsigned> masks;
  int legal = 0;
  for (std::uint32_t nibble = 0; nibble < 16; ++nibble)
    if (is_legal_nibble(nibble)) {
      ++legal;
      masks.insert(mask_of_nibble(nibble));
    }
  EXPECT_EQ(legal, 6);
  EXPECT_EQ(masks, (std::set<unsigned>{0b0011, 0b0101, 0b1001, 0b0110, 0b1010, 0b1100}));
  // "Values 0b0000, 0b0101, 0b1010, 0b1111 are invalid"; the others descend.
  for (std::uint32_t nibble : {0x0u, 0x5u, 0xAu, 0xFu, 0x1u, 0x2u, 0x3u, 0x6u, 0x7u, 0xBu})
    EXPECT_FALSE(is_legal_nibble(nibble)) << nibble;
  EXPECT_FALSE(is_legal_nibble(0x14));
}

TEST(Metadata, MasksWithFewerThanTwoElementsAreFilledUp) {
  for (unsigned mask = 0; mask < 16; ++mask) {
    if (__builtin_popcount(mask) > 2) continue;
    const std::uint32_t nibble = nibble_of_mask(mask);
    EXPECT_TRUE(is_legal_nibble(nibble)) << mask;
    EXPECT_EQ(mask_of_nibble(nibble) & mask, mask) << mask;
  }
  EXPECT_EQ(nibble_of_mask(0), 0x4u);
  EXPECT_EQ(nibble_of_mask(0b1000), encode_nibble(0, 3));
  EXPECT_EQ(nibble_of_mask(0b0001), encode_nibble(0, 1));
}

// Figure of m16n8k32 .f16: with selector 0, lane 4g holds columns 0..15 of row g in its low half
// and of row g + 8 in its high half; lane 4g + 1 holds columns 16..31. Selector 1: lanes 2 and 3.
TEST(Metadata, SixteenBitWordOfEachLane) {
  using M = Metadata16<1>;
  EXPECT_EQ(M::slot({0, 0, 0}), (MetadataSlot{0, 0}));
  EXPECT_EQ(M::slot({0, 0, 3}), (MetadataSlot{0, 12}));
  EXPECT_EQ(M::slot({0, 0, 4}), (MetadataSlot{1, 0}));
  EXPECT_EQ(M::slot({0, 8, 0}), (MetadataSlot{0, 16}));
  EXPECT_EQ(M::slot({0, 15, 7}), (MetadataSlot{29, 28}));
  EXPECT_EQ(M::slot({1, 0, 0}), (MetadataSlot{2, 0}));
  EXPECT_EQ(M::slot({1, 15, 7}), (MetadataSlot{31, 28}));
  // The warpgroup form repeats it for each 16 rows.
  EXPECT_EQ(Metadata16<4>::slot({1, 63, 7}), (MetadataSlot{127, 28}));
  EXPECT_EQ(Metadata16<4>::slot({0, 16, 1}), (MetadataSlot{32, 4}));
}

// Figure of m16n8k64 .s8: lane 4g + t holds row g + 8 (t % 2), columns 32 (t / 2) onwards.
TEST(Metadata, EightBitWordOfEachLane) {
  using M = Metadata8<1>;
  EXPECT_EQ(M::slot({0, 0, 0}), (MetadataSlot{0, 0}));
  EXPECT_EQ(M::slot({0, 0, 7}), (MetadataSlot{0, 28}));
  EXPECT_EQ(M::slot({0, 0, 8}), (MetadataSlot{2, 0}));
  EXPECT_EQ(M::slot({0, 8, 0}), (MetadataSlot{1, 0}));
  EXPECT_EQ(M::slot({0, 15, 15}), (MetadataSlot{31, 28}));
  EXPECT_EQ(Metadata8<4>::slot({0, 48, 8}), (MetadataSlot{98, 0}));
}

struct Colliding : Metadata16<1> {
  static constexpr MetadataGroup group(MetadataSlot s) {
    return Metadata16<1>::group({s.lane, s.shift & ~4});
  }
};
struct WrongSize : Metadata16<1> {
  static constexpr int kGroups = 16;
};

TEST(Metadata, BrokenLayoutsAreCalledBroken) {
  static_assert(!is_bijective_metadata<Colliding>());
  static_assert(!is_bijective_metadata<WrongSize>());
  EXPECT_TRUE(is_bijective_metadata<Metadata16<1>>());
}

}  // namespace
}  // namespace twofour::layout
