// What a tensor copy writes is what a wgmma descriptor reads: the two formulas of shared_tile.h,
// which share nothing but the swizzle, meet on every element of the tiles that attention uses.
#include <gtest/gtest.h>

#include <set>

#include "layout/shared_tile.h"

namespace twofour::layout {
namespace {

/// B = Kᵀ: every k-step of kStep channels, every key.
template <class Tile, int kStep>
void expect_k_major(std::uint32_t start, Swizzle swizzle) {
  for (int step = 0; step < Tile::kCols / kStep; ++step) {
    // Through the 64 bits, so that encoding is part of the claim.
    const Descriptor d =
        Descriptor::decode(k_major_descriptor<Tile, kStep>(start, step, swizzle).encode());
    for (int key = 0; key < Tile::kRows; ++key)
      for (int k = 0; k < kStep; ++k)
        ASSERT_EQ(d.k_major(k, key, Tile::kBytes), start + Tile::offset({key, step * kStep + k}))
            << "step " << step << " key " << key << " channel " << k;
  }
}

/// B = V: every k-step of kStep keys, every channel.
template <class Tile, int kStep>
void expect_mn_major(std::uint32_t start, Swizzle swizzle) {
  for (int step = 0; step < Tile::kRows / kStep; ++step) {
    const Descriptor d =
        Descriptor::decode(mn_major_descriptor<Tile, kStep>(start, step, swizzle).encode());
    for (int k = 0; k < kStep; ++k)
      for (int channel = 0; channel < Tile::kCols; ++channel)
        ASSERT_EQ(d.mn_major(k, channel, Tile::kBytes),
                  start + Tile::offset({step * kStep + k, channel}))
            << "step " << step << " key " << k << " channel " << channel;
  }
}

TEST(SharedTile, KMajorDescriptorsReadWhatTheCopyWrote) {
  expect_k_major<SharedTile<16, 64, 64>, 16>(0, Swizzle::k128B);
  expect_k_major<SharedTile<16, 64, 64>, 32>(0, Swizzle::k128B);
  expect_k_major<SharedTile<16, 96, 128>, 32>(16384, Swizzle::k128B);
  expect_k_major<SharedTile<16, 128, 64>, 32>(98304, Swizzle::k128B);
  expect_k_major<SharedTile<8, 96, 128>, 32>(1024, Swizzle::k128B);
  expect_k_major<SharedTile<8, 128, 64, Swizzle::k64B>, 32>(512, Swizzle::k64B);
  expect_k_major<SharedTile<16, 64, 16, Swizzle::k32B>, 16>(256, Swizzle::k32B);
}

TEST(SharedTile, MnMajorDescriptorsReadWhatTheCopyWrote) {
  expect_mn_major<SharedTile<16, 64, 64>, 16>(0, Swizzle::k128B);
  expect_mn_major<SharedTile<16, 64, 128>, 32>(0, Swizzle::k128B);
  expect_mn_major<SharedTile<16, 96, 128>, 32>(24576, Swizzle::k128B);
  expect_mn_major<SharedTile<16, 128, 64>, 32>(1024, Swizzle::k128B);
}

TEST(SharedTile, StepsAreTheRecipesOfTheKernels) {
  using K = SharedTile<16, 96, 128>;
  // +64 bytes per 32 channels inside the 128-byte row, then the next panel.
  EXPECT_EQ((k_major_descriptor<K, 32>(0, 1, Swizzle::k128B).start), 64u);
  EXPECT_EQ((k_major_descriptor<K, 32>(0, 2, Swizzle::k128B).start), 96u * 128u);
  EXPECT_EQ((k_major_descriptor<K, 32>(0, 1, Swizzle::k128B).stride_offset), 1024u);
  // V: 4096 bytes per 32 keys, panels tile * 128 bytes apart.
  EXPECT_EQ((mn_major_descriptor<K, 32>(0, 1, Swizzle::k128B).start), 4096u);
  EXPECT_EQ((mn_major_descriptor<K, 32>(0, 1, Swizzle::k128B).leading_offset), 96u * 128u);
  EXPECT_EQ((mn_major_descriptor<K, 32>(0, 1, Swizzle::k128B).stride_offset), 1024u);
}

// A column of eight 16-byte chunks touches all 32 banks once: the point of the swizzle.
TEST(SharedTile, EightRowsOfOneChunkHitEveryBankOnce) {
  using Tile = SharedTile<16, 64, 64>;
  for (int chunk = 0; chunk < 8; ++chunk) {
    std::set<std::uint32_t> banks;
    for (int row = 0; row < 8; ++row)
      for (int half = 0; half < 8; half += 2)
        banks.insert(Tile::offset({row, 8 * chunk + half}) / 4 % 32);
    EXPECT_EQ(banks.size(), 32u);
  }
}

TEST(SharedTile, SwizzleIsAnInvolutionThatKeepsTheChunkContents) {
  for (Swizzle swizzle : {Swizzle::kNone, Swizzle::k32B, Swizzle::k64B, Swizzle::k128B})
    for (std::uint32_t address = 0; address < 4096; ++address) {
      const std::uint32_t there = swizzled(swizzle, address);
      ASSERT_EQ(swizzled(swizzle, there), address);
      ASSERT_EQ(there & 0xFu, address & 0xFu);
      ASSERT_EQ(there & ~0x70u, address & ~0x70u);
      if (swizzle == Swizzle::kNone) {
        ASSERT_EQ(there, address);
      }
    }
  EXPECT_EQ(swizzled(Swizzle::k128B, 7 * 128), 7u * 128 + 7 * 16);
  EXPECT_EQ(swizzled(Swizzle::k64B, 2 * 64), 2u * 64 + 16);
  EXPECT_EQ(swizzled(Swizzle::k32B, 4 * 32), 4u * 32 + 16);
}

TEST(Descriptor, BitFields) {
  const Descriptor d{0x12340, 0x3000, 1024, 5, Swizzle::k64B};
  EXPECT_EQ(d.encode(), 0x1234ull | 0x300ull << 16 | 0x40ull << 32 | 5ull << 49 | 2ull << 62);
  EXPECT_EQ(Descriptor::decode(d.encode()), d);
}

}  // namespace
}  // namespace twofour::layout
