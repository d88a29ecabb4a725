// The register code of the Hopper kernel on the host, lane by lane: scores pruned in accumulators
// and queries pruned by channels, multiplied by the emulated instructions through the metadata and
// descriptors that the kernel builds, against plain loops over the rules.
#ifdef TWOFOUR_WITH_CUDA_HEADERS
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/half.h"
#include "cuda/sm90/shared.h"
#include "cuda/tile/codes.h"
#include "cuda/tile/pair_prune.h"
#include "cuda/tile/select_channels.h"
#include "layout/wgmma.h"
#include "ref/mma_sp.h"
#include "support/random.h"

namespace twofour::cuda {
namespace {

using layout::Coord;
using layout::Descriptor;
using layout::Slot;
using layout::WordPair;
using sm90::Config;
using sm90::kRows;
using test::Random;

constexpr int kLanes = layout::kWarpgroupLanes;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::uint16_t to_bits(DType dtype, float x) {
  return dtype == DType::kF16 ? f32_to_f16(x) : f32_to_bf16(x);
}

void put(std::span<std::byte> memory, std::uint32_t at, std::uint16_t bits) {
  std::memcpy(memory.data() + at, &bits, sizeof bits);
}

/// Small integers: their products and sums are exact in every precision here.
std::vector<float> integers(std::size_t count, int largest, Random& random) {
  std::vector<float> out(count);
  for (float& x : out) x = static_cast<float>(random.integer(-largest, largest));
  return out;
}

bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// ---- pairs of scores ----------------------------------------------------------------------------

/// What the 128 lanes of a warpgroup hold once the scores of a step are pruned.
template <int kTile, class Score>
struct PrunedScores {
  struct Registers {
    Score s[kTile / 2];  // the first half kept
  };
  std::vector<Registers> lanes{kLanes};
  std::array<ref::WarpgroupMetadata, 2> metadata{};  // [word][lane]
};

/// Softmax::prune and finish_metadata, with an array where they shuffle.
template <int kTile, class Score>
PrunedScores<kTile, Score> prune(const std::vector<Score>& scores) {
  PrunedScores<kTile, Score> out;
  std::array<WordPair, kLanes> words{};
  std::array<std::uint32_t, kLanes> sent{};
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int reg = 0; reg < kTile / 2; ++reg) {
      const Coord at = layout::WgmmaD<kTile>::coord({lane, reg, 0});
      out.lanes[lane].s[reg] = scores[at.row * kTile + at.col];
    }
    words[lane] = tile::prune_pairs<kTile>(out.lanes[lane].s);
    sent[lane] = tile::send_nibbles(tile::ExchangeLane(lane % 32), words[lane]);
  }
  for (int lane = 0; lane < kLanes; ++lane)
    words[lane] = tile::receive_nibbles(tile::ExchangeLane(lane % 32), words[lane], sent[lane ^ 1]);
  for (int lane = 0; lane < kLanes; ++lane)
    sent[lane] = tile::send_bytes(tile::ExchangeLane(lane % 32), words[lane]);
  for (int lane = 0; lane < kLanes; ++lane) {
    words[lane] = tile::receive_bytes(tile::ExchangeLane(lane % 32), words[lane], sent[lane ^ 2]);
    out.metadata[0][lane] = words[lane].lo;
    out.metadata[1][lane] = words[lane].hi;
  }
  return out;
}

/// The largest score of each row: what exponents are relative to, finite where all are -inf.
template <int kTile, class Score>
std::vector<float> references(const std::vector<Score>& scores) {
  std::vector<float> out(64, -kInf);
  for (int row = 0; row < 64; ++row) {
    for (int key = 0; key < kTile; ++key)
      out[row] = ptx::max_nan(out[row], static_cast<float>(scores[row * kTile + key]));
    if (out[row] == -kInf) out[row] = 0;
  }
  return out;
}

template <int kTile, DType kType, class Score>
std::vector<ref::Lanes<std::uint32_t, 4, kLanes>> probabilities(
    const PrunedScores<kTile, Score>& pruned, const std::vector<float>& reference) {
  std::vector<ref::Lanes<std::uint32_t, 4, kLanes>> a(layout::PairTile<kTile>::kSteps);
  for (int lane = 0; lane < kLanes; ++lane)
    for (int i = 0; i < kTile / 4; i += 2) {
      const int row = 16 * (lane / 32) + layout::group_of(lane) + 8 * (i / 2 % 2);
      const auto p = [&](int reg) {
        return ptx::ex2(static_cast<float>(pruned.lanes[lane].s[reg]) - reference[row]);
      };
      a[i / 8][lane][i / 2 % 4] = ptx::pack<kType>(p(i), p(i + 1));
    }
  return a;
}

/// P V of one row and channel by rule 4: of keys j and j + tile / 2 the one that keeps_second
/// names. Rounded once for every 32 keys, as the emulated instruction is.
template <int kTile, class Score>
float pair_product(const Score* s, float reference, const std::vector<float>& v, int channels,
                   int channel, DType dtype) {
  float out = 0;
  for (int step = 0; step < kTile / 32; ++step) {
    double sum = out;
    for (int j = 16 * step; j < 16 * (step + 1); ++j) {
      const auto first = static_cast<float>(s[j]), second = static_cast<float>(s[j + kTile / 2]);
      const bool take_second = layout::keeps_second(first, second);
      const float p = std::exp2((take_second ? second : first) - reference);
      const int key = take_second ? j + kTile / 2 : j;
      sum += double{round_to(dtype, p)} * v[key * channels + channel];
    }
    out = static_cast<float>(sum);
  }
  return out;
}

/// Returns how many rows are finite.
template <int kTile, int kChannels, DType kType, class Score>
int expect_pair_product(const std::vector<Score>& scores, Random& random) {
  using Tile = layout::PairTile<kTile>;
  using Value = layout::SharedTile<16, kTile, kChannels>;
  constexpr std::uint32_t kStart = 3 * 1024;
  const auto v = integers(kTile * kChannels, 15, random);
  std::vector<std::byte> memory(kStart + Value::kTileBytes);
  for (int row = 0; row < kTile; ++row)
    for (int c = 0; c < kChannels; ++c)
      put(memory, kStart + Value::offset({row, c}),
          to_bits(kType, v[Tile::v_key(row) * kChannels + c]));

  const auto pruned = prune<kTile>(scores);
  const auto reference = references<kTile>(scores);
  const auto a = probabilities<kTile, kType>(pruned, reference);
  const std::uint64_t descriptor =
      layout::mn_major_descriptor<Value, 16>(kStart, 0, layout::Swizzle::k128B).encode();
  std::vector<float> d(64 * kChannels);
  for (int step = 0; step < Tile::kSteps; ++step) {
    const std::uint64_t at = descriptor + step * 32 * Value::kRowBytes / 16;
    const Status status = ref::wgmma_sp_m64k32(d, a[step], {memory, at, true},
                                               pruned.metadata[Tile::word_of_step(step)],
                                               Tile::selector_of_step(step), step > 0, kType);
    EXPECT_TRUE(status.ok()) << status.message();
  }

  int finite = 0;
  for (int row = 0; row < 64; ++row) {
    bool all = true;
    for (int c = 0; c < kChannels; ++c) {
      const Slot at = layout::WgmmaD<kChannels>::slot({row, c});
      const float got = d[at.lane * (kChannels / 2) + at.reg];
      const float want =
          pair_product<kTile>(scores.data() + row * kTile, reference[row], v, kChannels, c, kType);
      all &= std::isfinite(got);
      if (!same(got, want)) {
        ADD_FAILURE() << "row " << row << " channel " << c << ": " << got << ", expected " << want;
        return finite;
      }
    }
    finite += all;
  }
  return finite;
}

template <class Score>
struct Scores {
  const char* name;
  Score (*draw)(Random&);
  bool all_finite = true;
};

/// 16-bit types and head sizes of one tile of scores.
template <int kTile, class Score>
void expect_pair_products(const Scores<Score>& kind, std::uint64_t seed) {
  SCOPED_TRACE(std::string(kind.name) + ", tile " + std::to_string(kTile));
  Random random(seed);
  std::vector<Score> scores(64 * kTile);
  for (Score& s : scores) s = kind.draw(random);
  const int finite[] = {expect_pair_product<kTile, 64, DType::kF16>(scores, random),
                        expect_pair_product<kTile, 128, DType::kF16>(scores, random),
                        expect_pair_product<kTile, 64, DType::kBF16>(scores, random),
                        expect_pair_product<kTile, 128, DType::kBF16>(scores, random)};
  for (const int rows : finite) {
    // Scores that spoil their row spoil no other.
    EXPECT_EQ(rows == 64, kind.all_finite) << rows;
    EXPECT_GT(rows, 0);
  }
}

template <class Score>
void expect_all_tiles(std::span<const Scores<Score>> kinds) {
  std::uint64_t seed = 1;
  for (const Scores<Score>& kind : kinds) {
    expect_pair_products<64>(kind, seed);
    expect_pair_products<96>(kind, seed + 1);
    expect_pair_products<128>(kind, seed + 2);
    seed += 3;
  }
}

// Of a step of every row that prunes pairs.
static_assert(std::ranges::all_of(kRows, [](const Config& c) {
  return c.score != ScorePattern::kPair || c.tile == 64 || c.tile == 96 || c.tile == 128;
}));

TEST(CudaTile, PrunedPairsTimesValuesIsTheMaskedProduct) {
  static constexpr Scores<float> kKinds[] = {
      {"integers with ties", [](Random& r) { return static_cast<float>(r.integer(-8, 8)); }},
      {"normal", [](Random& r) { return static_cast<float>(r.normal()); }},
      {"equal", [](Random&) { return 3.0f; }},
      {"negative", [](Random& r) { return static_cast<float>(-1 - 20 * r.uniform()); }},
      {"huge", [](Random& r) { return static_cast<float>(6.8e38 * (r.uniform() - 0.5)); }},
      {"neighbours",
       [](Random& r) {
         return std::bit_cast<float>(static_cast<std::uint32_t>(r.integer(5, 7))) +
                static_cast<float>(r.integer(0, 2)) * 0x1p-24f;
       }},
      {"dead", [](Random& r) { return r.integer(0, 1) ? -kInf : static_cast<float>(r.normal()); }},
      {"all dead", [](Random&) { return -kInf; }},
      {"infinite",
       [](Random& r) { return r.integer(0, 99) ? static_cast<float>(r.normal()) : kInf; }, false},
      {"NaN", [](Random& r) { return r.integer(0, 99) ? static_cast<float>(r.normal()) : kNaN; },
       false},
  };
  expect_all_tiles<float>(kKinds);
}

TEST(CudaTile, PrunedIntegerPairsTimesValuesIsTheMaskedProduct) {
  static constexpr std::int32_t kLargest = 127 * 127 * 128;
  static constexpr Scores<std::int32_t> kKinds[] = {
      {"small with ties", [](Random& r) { return static_cast<std::int32_t>(r.integer(-8, 8)); }},
      {"equal", [](Random&) { return -5; }},
      {"negative", [](Random& r) { return static_cast<std::int32_t>(r.integer(-30, -1)); }},
      {"huge", [](Random& r) { return static_cast<std::int32_t>(r.integer(-kLargest, kLargest)); }},
      {"largest", [](Random& r) { return r.integer(0, 1) ? kLargest : -kLargest; }},
      {"neighbours",
       [](Random& r) { return kLargest - static_cast<std::int32_t>(r.integer(0, 2)); }},
  };
  expect_all_tiles<std::int32_t>(kKinds);
}

// ---- pruned queries -----------------------------------------------------------------------------

/// Rule 5 in the plainest words: the two largest w |q|, NaN above all, ties to the lower channel.
unsigned two_largest(const float* q, const float* w) {
  std::array<int, 4> order{0, 1, 2, 3};
  std::ranges::stable_sort(order, [&](int i, int j) {
    const float a = w[i] * std::fabs(q[i]), b = w[j] * std::fabs(q[j]);
    return std::isnan(a) ? !std::isnan(b) : a > b;
  });
  return 1u << order[0] | 1u << order[1];
}

TEST(CudaTile, KeepTwoFollowsTheRule) {
  constexpr float kValues[] = {0.0f,  -0.0f,    1.0f, -1.0f, 2.0f, -0.5f,
                               6e-8f, 65504.0f, kInf, -kInf, kNaN};
  constexpr float kWeights[][4] = {
      {1, 1, 1, 1}, {1, 2, 0.5f, 4}, {4, 0.5f, 2, 1}, {0.3f, 0.6f, 0.6f, 1.2f}, {0, 1, 1, 1e-20f}};
  constexpr int kCount = std::size(kValues);
  for (const auto& w : kWeights)
    for (int n = 0; n < kCount * kCount * kCount * kCount; ++n) {
      float q[4];
      std::uint16_t bits[4];
      std::uint32_t m[4];
      for (int i = 0, rest = n; i < 4; ++i, rest /= kCount) {
        q[i] = kValues[rest % kCount];
        bits[i] = f32_to_f16(q[i]);
        q[i] = f16_to_f32(bits[i]);
        m[i] = tile::magnitude(q[i], w[i]);
      }
      const auto pair = [&](int i) { return bits[i] | std::uint32_t{bits[i + 1]} << 16; };
      const tile::KeptGroup kept = tile::keep_two(pair(0), pair(2), m);
      ASSERT_TRUE(layout::is_legal_nibble(kept.nibble));
      ASSERT_EQ(layout::mask_of_nibble(kept.nibble), two_largest(q, w))
          << q[0] << " " << q[1] << " " << q[2] << " " << q[3] << ", weights " << w[0] << " "
          << w[1] << " " << w[2] << " " << w[3];
      ASSERT_EQ(kept.values & 0xFFFF, bits[layout::nibble_first(kept.nibble)]);
      ASSERT_EQ(kept.values >> 16, bits[layout::nibble_second(kept.nibble)]);
    }
}

TEST(CudaTile, CodesAreThoseOfTheDivision) {
  Random random(23);
  const auto normal = [&random] { return static_cast<float>(random.normal()); };
  const auto expect = [](const float(&value)[8], float scale) {
    const tile::Codes codes = tile::quantise(value, scale);
    for (int i = 0; i < 8; ++i) {
      const auto code = static_cast<std::int8_t>(codes.word[i / 4] >> (8 * (i % 4)));
      ASSERT_EQ(code, static_cast<int>(std::nearbyint(value[i] / scale)))
          << value[i] << " / " << scale;
    }
  };
  for (int trial = 0; trial < 20000; ++trial) {
    // The largest of a row is 127 scales; ties, and neighbours of ties, among the others.
    const float largest = std::ldexp(1.0f + std::fabs(normal()), trial % 200 - 100);
    const float scale = largest / 127.0f;
    float value[8] = {largest, -largest, 0, -0.0f};
    for (int i = 4; i < 8; ++i) {
      const float tie = (std::floor(normal() * 40) + 0.5f) * scale;
      value[i] = i == 4 ? std::clamp(normal() * largest / 3, -largest, largest)
                 : i == 5
                     ? std::clamp(tie, -largest, largest)
                     : std::clamp(std::nextafter(tie, i == 6 ? kInf : -kInf), -largest, largest);
    }
    expect(value, scale);
    expect(value, -scale);
  }
  // A reciprocal that overflows: the division is taken.
  const float tiny = std::numeric_limits<float>::denorm_min();
  expect({0, tiny, -tiny, 3 * tiny, -5 * tiny, 127 * tiny, -127 * tiny, 64 * tiny}, tiny);
}

/// The pruned query of a warpgroup as QueryLoader stores it.
template <Config c>
void store_pruned_query(std::span<std::byte> memory, int warpgroup, const std::vector<float>& q,
                        const std::vector<float>& w) {
  using S = sm90::Shared<c>;
  for (int row = 0; row < 64; ++row)
    for (int chunk = 0; chunk < c.head_dim / 8; ++chunk) {
      std::uint32_t words[4];
      float weights[8];
      for (int i = 0; i < 8; ++i) weights[i] = w[8 * chunk + i];
      for (int i = 0; i < 4; ++i) {
        const float* at = q.data() + row * c.head_dim + 8 * chunk + 2 * i;
        words[i] = ptx::pack<c.dtype>(at[0], at[1]);
      }
      const tile::KeptChunk kept = tile::keep_chunk<c.dtype>(words, weights);
      std::memcpy(memory.data() + S::kPruned + warpgroup * S::PrunedQuery::kTileBytes +
                      S::PrunedQuery::offset({row, 4 * chunk}),
                  kept.values, sizeof kept.values);
      memory[S::kMetadata + warpgroup * S::kMetadataBytes +
             tile::QueryMetadata<c.head_dim>::byte_of(row, chunk)] =
          static_cast<std::byte>(kept.nibbles);
    }
}

/// A of one k-step out of shared memory, K-major: the registers that the instruction would see.
ref::Lanes<std::uint32_t, 4, kLanes> shared_a(std::span<const std::byte> memory,
                                              std::uint64_t bits) {
  ref::Lanes<std::uint32_t, 4, kLanes> a{};
  for (int lane = 0; lane < kLanes; ++lane)
    for (int reg = 0; reg < 4; ++reg)
      for (int part = 0; part < 2; ++part) {
        const Coord at = layout::WgmmaA<16>::coord({lane, reg, part});
        std::uint16_t value;
        std::memcpy(&value, memory.data() + Descriptor::decode(bits).k_major(at.col, at.row, 2), 2);
        a[lane][reg] = layout::set_part<16>(a[lane][reg], part, value);
      }
  return a;
}

/// Products::issue_pruned_scores of one warpgroup and key stage, [lane][register].
template <Config c>
std::vector<float> pruned_scores(std::span<const std::byte> memory, int warpgroup, int stage) {
  using S = sm90::Shared<c>;
  using Metadata = tile::QueryMetadata<c.head_dim>;
  const auto* bytes = reinterpret_cast<const unsigned char*>(memory.data()) + S::kMetadata +
                      warpgroup * S::kMetadataBytes;
  std::array<ref::WarpgroupMetadata, Metadata::kWords> metadata{};
  for (int w = 0; w < Metadata::kWords; ++w)
    for (int lane = 0; lane < kLanes; ++lane)
      metadata[w][lane] = Metadata::word(bytes, lane / 32, lane % 32, w);

  const std::uint64_t query =
      layout::k_major_descriptor<typename S::PrunedQuery, 16>(
          S::kPruned + warpgroup * S::PrunedQuery::kTileBytes, 0, S::kPrunedSwizzle)
          .encode();
  const std::uint64_t key = layout::k_major_descriptor<typename S::Key, 16>(
                                S::kKeys + stage * S::Key::kTileBytes, 0, S::kSwizzle)
                                .encode();
  std::vector<float> d(kLanes * c.tile / 2);
  for (int step = 0; step < c.head_dim / 32; ++step) {
    const std::uint64_t at_k = key + (step / 2 * S::Key::kPanelBytes + step % 2 * 64) / 16;
    const Status status =
        ref::wgmma_sp_m64k32(d, shared_a(memory, query + 32 * step / 16), {memory, at_k, false},
                             metadata[step / 2], step % 2, step > 0, c.dtype);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  return d;
}

/// `channels` exist, the rest is padding: zero, with weight one.
template <Config c>
void expect_query_product(int channels, bool weighted, std::uint64_t seed) {
  using S = sm90::Shared<c>;
  SCOPED_TRACE(std::string(to_string(c.dtype)) + " head_dim " + std::to_string(channels) + " of " +
               std::to_string(c.head_dim) + ", tile " + std::to_string(c.tile));
  Random random(seed);
  auto q = integers(64 * c.head_dim, 6, random), k = integers(c.tile * c.head_dim, 8, random);
  std::vector<float> w(c.head_dim, 1.0f);
  for (int d = 0; weighted && d < channels; ++d) w[d] = static_cast<float>(0.1 + random.uniform());
  for (int i = 0; i < 64 * c.head_dim; ++i)
    if (i % c.head_dim >= channels) q[i] = 0;

  std::vector<std::byte> memory(S::kBytes);
  const int warpgroup = static_cast<int>(random.integer(0, sm90::kWarpgroups - 1));
  const int stage = static_cast<int>(random.integer(0, c.stages - 1));
  store_pruned_query<c>(memory, warpgroup, q, w);
  for (int key = 0; key < c.tile; ++key)
    for (int d = 0; d < c.head_dim; ++d)
      put(memory, S::kKeys + stage * S::Key::kTileBytes + S::Key::offset({key, d}),
          to_bits(c.dtype, k[key * c.head_dim + d]));
  const auto scores = pruned_scores<c>(memory, warpgroup, stage);

  for (int row = 0; row < 64; ++row) {
    const float* of_row = q.data() + row * c.head_dim;
    std::vector<float> masked(c.head_dim);
    for (int d = 0; d < c.head_dim; ++d)
      if (two_largest(of_row + d / 4 * 4, w.data() + d / 4 * 4) >> d % 4 & 1) masked[d] = of_row[d];
    for (int key = 0; key < c.tile; ++key) {
      float want = 0;
      for (int d = 0; d < c.head_dim; ++d) want += masked[d] * k[key * c.head_dim + d];
      const Slot at = layout::WgmmaD<c.tile>::slot({row, key});
      ASSERT_EQ(scores[at.lane * (c.tile / 2) + at.reg], want) << "row " << row << " key " << key;
    }
  }
}

template <int kRow>
void expect_query_products() {
  constexpr Config c = kRows[kRow];
  if constexpr (c.qk == QKProduct::kNm24 && !c.trace) {
    expect_query_product<c>(c.head_dim, false, 100 + kRow);
    expect_query_product<c>(c.head_dim, true, 200 + kRow);
    expect_query_product<c>(c.head_dim - 24, true, 300 + kRow);
  }
}

template <int... kRow>
void expect_query_products_of(std::integer_sequence<int, kRow...>) {
  (expect_query_products<kRow>(), ...);
}

TEST(CudaTile, PrunedQueryTimesKeysIsTheMaskedProduct) {
  expect_query_products_of(std::make_integer_sequence<int, sm90::kRowCount>());
}

}  // namespace
}  // namespace twofour::cuda
#endif  // TWOFOUR_WITH_CUDA_HEADERS
