// Pair-pruned P V through the emulated sparse instructions, from accumulator registers to output,
// against a plain loop over keys. What this file does per lane is what a kernel will do.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/half.h"
#include "layout/mma.h"
#include "layout/pair_scores.h"
#include "layout/shared_tile.h"
#include "ref/mma_sp.h"

namespace twofour::layout {
namespace {

using ref::Lanes;

/// Scores of 64 rows by kTile keys, a few of them tied, as small integers: exact in fp16.
template <int kTile>
std::vector<float> random_scores(std::mt19937& random) {
  std::vector<float> s(64 * kTile);  // [row,key]
  for (float& x : s) x = static_cast<float>(static_cast<int>(random() % 9) - 4);
  return s;
}

/// The accumulator registers that hold `scores`, [lane][register].
template <int kTile>
std::vector<std::array<float, kTile / 2>> accumulators(const std::vector<float>& scores) {
  std::vector<std::array<float, kTile / 2>> out(kWarpgroupLanes);
  for (int lane = 0; lane < kWarpgroupLanes; ++lane)
    for (int reg = 0; reg < kTile / 2; ++reg) {
      const Coord c = WgmmaD<kTile>::coord({lane, reg, 0});
      out[lane][reg] = scores[static_cast<std::size_t>(c.row) * kTile + c.col];
    }
  return out;
}

/// A registers and metadata of every k-step.
template <int kTile>
struct Pruned {
  std::array<Lanes<std::uint32_t, 4, kWarpgroupLanes>, PairTile<kTile>::kSteps> a{};
  std::array<ref::WarpgroupMetadata, 2> metadata{};  // [word][lane]
};

/// Each lane on its own but for the two shuffles: keep the larger of each pair, build its nibbles,
/// exchange them within the quad.
template <int kTile>
Pruned<kTile> prune(const std::vector<std::array<float, kTile / 2>>& scores) {
  using Tile = PairTile<kTile>;
  Pruned<kTile> out;
  std::array<WordPair, kWarpgroupLanes> words{};
  for (int lane = 0; lane < kWarpgroupLanes; ++lane)
    for (int reg = 0; reg < Tile::kPartner; reg += 2) {
      bool second[2];
      for (int i = 0; i < 2; ++i) {
        const float low = scores[lane][reg + i], high = scores[lane][reg + i + Tile::kPartner];
        second[i] = keeps_second(low, high);
        const auto to = Tile::target(reg + i);
        std::uint32_t& word = out.a[to.step][lane][to.reg];
        word = set_part<16>(word, to.part, f32_to_f16(second[i] ? high : low));
      }
      const int block = reg / 4;
      const std::uint32_t nibble = pair_nibble(second[0], second[1])
                                   << Tile::own_shift(block, reg / 2 % 2);
      (Tile::own_word(block) == 0 ? words[lane].lo : words[lane].hi) |= nibble;
    }
  for (int distance = 1; distance <= 2; distance *= 2) {
    std::array<std::uint32_t, kWarpgroupLanes> sent{};
    for (int lane = 0; lane < kWarpgroupLanes; ++lane)
      sent[lane] = exchange_send(lane, distance, words[lane]);
    for (int lane = 0; lane < kWarpgroupLanes; ++lane)
      words[lane] = exchange_receive(lane, distance, words[lane], sent[lane ^ distance]);
  }
  for (int lane = 0; lane < kWarpgroupLanes; ++lane) {
    out.metadata[0][lane] = words[lane].lo;
    out.metadata[1][lane] = words[lane].hi;
  }
  return out;
}

/// Rule 4, `pair`, in the plainest words: of keys j and j + tile / 2 the larger, ties to the lower.
template <int kTile>
std::vector<float> expected(const std::vector<float>& scores, const std::vector<float>& v,
                            int channels) {
  std::vector<float> out(static_cast<std::size_t>(64) * channels);
  for (int row = 0; row < 64; ++row)
    for (int j = 0; j < kTile / 2; ++j) {
      const float* s = scores.data() + static_cast<std::size_t>(row) * kTile;
      const int key = s[j + kTile / 2] > s[j] ? j + kTile / 2 : j;
      for (int c = 0; c < channels; ++c)
        out[static_cast<std::size_t>(row) * channels + c] +=
            s[key] * v[static_cast<std::size_t>(key) * channels + c];
    }
  return out;
}

std::vector<float> random_values(int keys, int channels, std::mt19937& random) {
  std::vector<float> v(static_cast<std::size_t>(keys) * channels);  // [key,channel]
  for (float& x : v) x = static_cast<float>(static_cast<int>(random() % 31) - 15);
  return v;
}

template <int kTile, int kChannels>
void expect_warpgroup_product(unsigned seed) {
  using Tile = PairTile<kTile>;
  using V = SharedTile<16, kTile, kChannels>;
  std::mt19937 random(seed);
  const auto scores = random_scores<kTile>(random);
  const auto v = random_values(kTile, kChannels, random);
  // V in pair order, as one tensor copy with two row strides writes it.
  std::vector<std::byte> memory(V::kTileBytes);
  for (int row = 0; row < kTile; ++row)
    for (int c = 0; c < kChannels; ++c) {
      const std::uint16_t bits =
          f32_to_f16(v[static_cast<std::size_t>(Tile::v_key(row)) * kChannels + c]);
      std::memcpy(memory.data() + V::offset({row, c}), &bits, 2);
    }
  const Pruned<kTile> p = prune<kTile>(accumulators<kTile>(scores));
  std::vector<float> d(static_cast<std::size_t>(64) * kChannels);
  for (int step = 0; step < Tile::kSteps; ++step) {
    const Descriptor b = mn_major_descriptor<V, 32>(0, step, Swizzle::k128B);
    const Status status = ref::wgmma_sp_m64k32(d, p.a[step], {memory, b.encode(), true},
                                               p.metadata[Tile::word_of_step(step)],
                                               Tile::selector_of_step(step), step > 0, DType::kF16);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  const auto want = expected<kTile>(scores, v, kChannels);
  for (int row = 0; row < 64; ++row)
    for (int c = 0; c < kChannels; ++c) {
      const Slot s = WgmmaD<kChannels>::slot({row, c});
      ASSERT_EQ(d[static_cast<std::size_t>(s.lane) * (kChannels / 2) + s.reg],
                want[static_cast<std::size_t>(row) * kChannels + c])
          << "row " << row << " channel " << c;
    }
}

TEST(PairScores, WarpgroupProductEqualsThePlainLoop) {
  expect_warpgroup_product<64, 64>(1);
  expect_warpgroup_product<96, 128>(2);
  expect_warpgroup_product<128, 64>(3);
  expect_warpgroup_product<32, 64>(4);
}

// The same registers serve mma.sp: warp w of the warpgroup is a warp of its own, and B is gathered
// by key, so that V can lie in any order.
TEST(PairScores, WarpProductEqualsThePlainLoop) {
  constexpr int kTile = 96, kChannels = 8;
  using Tile = PairTile<kTile>;
  std::mt19937 random(5);
  const auto scores = random_scores<kTile>(random);
  const auto v = random_values(kTile, kChannels, random);
  const Pruned<kTile> p = prune<kTile>(accumulators<kTile>(scores));
  const auto want = expected<kTile>(scores, v, kChannels);
  for (int warp = 0; warp < 4; ++warp) {
    Lanes<float, 4> d{};
    for (int step = 0; step < Tile::kSteps; ++step) {
      Lanes<std::uint32_t, 4> a{}, b{};
      ref::Metadata metadata{};
      for (int lane = 0; lane < 32; ++lane) {
        a[lane] = p.a[step][32 * warp + lane];
        metadata[lane] = p.metadata[Tile::word_of_step(step)][32 * warp + lane];
        for (int reg = 0; reg < 4; ++reg)
          for (int part = 0; part < 2; ++part) {
            const Coord at = MmaB<16, 32>::coord({lane, reg, part});
            const int key = Tile::v_key(32 * step + at.row);
            b[lane][reg] =
                set_part<16>(b[lane][reg], part,
                             f32_to_f16(v[static_cast<std::size_t>(key) * kChannels + at.col]));
          }
      }
      ASSERT_TRUE(
          ref::mma_sp_m16n8k32(d, a, b, d, metadata, Tile::selector_of_step(step), DType::kF16)
              .ok());
    }
    for (int lane = 0; lane < 32; ++lane)
      for (int reg = 0; reg < 4; ++reg) {
        const Coord at = MmaD::coord({lane, reg, 0});
        ASSERT_EQ(d[lane][reg],
                  want[static_cast<std::size_t>(16 * warp + at.row) * kChannels + at.col]);
      }
  }
}

TEST(PairScores, SelectionFollowsTheRuleOnTiesZerosInfinitiesAndNaN) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(keeps_second(1, 2));
  EXPECT_FALSE(keeps_second(2, 1));
  EXPECT_FALSE(keeps_second(1, 1));
  EXPECT_FALSE(keeps_second(-0.0f, 0.0f));
  EXPECT_FALSE(keeps_second(0.0f, -0.0f));
  EXPECT_FALSE(keeps_second(kInf, kInf));
  EXPECT_FALSE(keeps_second(-kInf, -kInf));
  EXPECT_TRUE(keeps_second(1, kNaN));
  EXPECT_TRUE(keeps_second(kInf, kNaN));
  EXPECT_FALSE(keeps_second(kNaN, 1));
  EXPECT_FALSE(keeps_second(kNaN, kInf));
  EXPECT_FALSE(keeps_second(kNaN, kNaN));
  // Why the sign of a difference will not do by itself: (-0) - (+0) is -0.
  const float low = -0.0f, high = 0.0f;
  EXPECT_TRUE(std::signbit(low - high));
  EXPECT_FALSE(keeps_second(low, high));
}

// The tile of a half-block holds exactly the keys of that half, partners half a tile apart.
TEST(PairScores, TilesAreHalfBlocks) {
  for (int block : {64, 128, 192, 256, 512})
    for (int half = 0; half < 2; ++half) {
      std::vector<bool> seen(block);
      for (int row = 0; row < block / 2; ++row) {
        const int key = half_block_key(half, row, block);
        ASSERT_TRUE(key >= 0 && key < block);
        EXPECT_EQ(key % (block / 2) / (block / 4), half);  // rule 2, literally
        EXPECT_FALSE(seen[key]);
        seen[key] = true;
        if (row < block / 4) {
          EXPECT_EQ(half_block_key(half, row + block / 4, block), key + block / 2);
        }
      }
    }
}

}  // namespace
}  // namespace twofour::layout
