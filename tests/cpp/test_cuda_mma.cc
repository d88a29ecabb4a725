// The code of one warp of the mma.sync kernel on the host, lane by lane, for every configuration:
// queries through shared memory and pruned, scores, pruning, the exchange of metadata, operands by
// ldmatrix addresses and the products with V, against plain loops over the rules.
#ifdef TWOFOUR_WITH_CUDA_HEADERS
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "core/half.h"
#include "support/host_mma.h"
// After host_mma.h, which it needs.
#include "cuda/sm80/softmax.h"
#include "support/random.h"

namespace twofour::cuda::sm80 {
namespace {

using test::HostCta;
using test::Random;

constexpr int kWarp = 5;

/// The two largest w |q| of a group of four, ties to the lower channel.
unsigned two_largest(const float* q, const float* w) {
  int order[4] = {0, 1, 2, 3};
  std::stable_sort(order, order + 4,
                   [&](int i, int j) { return w[i] * std::fabs(q[i]) > w[j] * std::fabs(q[j]); });
  return 1u << order[0] | 1u << order[1];
}

/// What a kernel row computes of one step, with all it reads. Scores are exact in fp32.
template <Config c>
struct Step {
  using S = Shared<c>;
  static constexpr int kRows = 16 * c.row_tiles;
  static constexpr std::uint32_t kStage = S::kStages;
  static constexpr bool kPairs = c.score == ScorePattern::kPair;
  // A power of two, so that exponents are exact too; the scores of int8 are larger.
  static constexpr float kFactor = is_int8(c) ? 0x1p-9f : 0.25f;

  std::vector<std::byte> memory = std::vector<std::byte>(S::allocated(1));
  std::vector<std::uint16_t> query = std::vector<std::uint16_t>(c.rows() * c.head_dim);
  std::vector<float> q, k, v, weights, mean = std::vector<float>(128);
  Params params{};
  Item item{};
  std::vector<float> out = std::vector<float>(kRows * c.head_dim);
  std::vector<float> reference = std::vector<float>(kRows);

  explicit Step(Random& random) {
    const auto draw = [&random](int count, int largest) {
      std::vector<float> x(count);
      for (float& e : x) e = static_cast<float>(random.integer(-largest, largest));
      return x;
    };
    q = draw(c.rows() * c.head_dim, is_int8(c) ? 30 : 2);
    if constexpr (is_int8(c))  // the scale of each row is then one
      for (int row = 0; row < c.rows(); ++row)
        q[row * c.head_dim + random.integer(0, c.head_dim - 1)] = random.integer(0, 1) ? 127 : -127;
    k = draw(c.tile * c.head_dim, is_int8(c) ? 8 : 1);
    v = draw(c.tile * c.head_dim, 7);
    for (int i = 0; i < c.head_dim; ++i)
      weights.push_back(static_cast<float>(0.25 + random.uniform()));
    for (std::size_t i = 0; i < q.size(); ++i) query[i] = bits(q[i]);
    params.q = {query.data(), 0, c.head_dim, 0};
    params.head_dim = params.head_dim_v = c.head_dim;
    params.batch = params.heads_q = params.heads_kv = params.group = 1;
    params.scale = 1;
    params.scale_log2 = kFactor;
    params.weights = weights.data();
    params.key_mean = mean.data();
    item.seqlen_q = c.rows();
    item.seqlen_k = c.tile;
    for (int row = 0; row < c.tile; ++row)
      for (int d = 0; d < c.head_dim; ++d) {
        const float key = k[row * c.head_dim + d];
        if constexpr (is_int8(c)) {
          const auto code = static_cast<std::int8_t>(key);
          put(kStage + S::Key::offset(row, d / 16) + d % 16, code);
        } else {
          put(kStage + S::Key::offset(row, d / 8) + 2 * (d % 8), bits(key));
        }
        put(kStage + S::Key::kBytes + S::Value::offset(row, d / 8) + 2 * (d % 8),
            bits(v[row * c.head_dim + d]));
      }
  }

  static std::uint16_t bits(float x) {
    return c.dtype == DType::kF16 ? f32_to_f16(x) : f32_to_bf16(x);
  }
  template <class T>
  void put(std::uint32_t at, T value) {
    std::memcpy(memory.data() + at, &value, sizeof value);
  }

  /// Score of a query row of the warp and a tile row, raw.
  float score(int row, int key, bool pruned) const {
    const float* of = q.data() + (kRows * kWarp + row) * c.head_dim;
    float sum = 0;
    for (int d = 0; d < c.head_dim; ++d)
      if (!pruned || two_largest(of + d / 4 * 4, weights.data() + d / 4 * 4) >> d % 4 & 1)
        sum += of[d] * k[key * c.head_dim + d];
    return sum;
  }

  float probability(float s, int row) const {
    return round_to(c.dtype, std::exp2(s * kFactor - reference[row]));
  }

  /// O of the warp's rows once `body` has run on every lane.
  template <class Body>
  void run(Body body) {
    HostCta warp(1, memory, kWarp);
    warp.run([&] {
      const int lane = warp.lane();
      Softmax<c> w(params, 0);
      load_query<c>(params, item, 0, kWarp, lane);
      // Lanes run one after the other: each waits here for what the others store.
      __shfl_sync(~0u, 0, 0);
      w.keep_query();
      if constexpr (is_nm24(c)) w.pruned.prune(params, item, 0, kWarp, lane);
      for (int r = 0; r < c.row_tiles; ++r) {
        for (int h = 0; h < 2; ++h) {
          const int row = 16 * r + lane / 4 + 8 * h;
          w.m[r][h] = reference[row];
          w.l[r][h] = 0;
          if constexpr (is_int8(c))
            w.row_scale[r][h] = params.scale_log2 *
                                ptx::load_shared_float(S::kRowScale + 4 * (kRows * kWarp + row));
        }
        std::ranges::fill(w.o[r], 0.0f);
      }
      PerRow<c> f;
      for (auto& of_tile : f) std::ranges::fill(of_tile, params.scale_log2);
      if constexpr (is_int8(c))
        for (int r = 0; r < c.row_tiles; ++r) std::ranges::copy(w.row_scale[r], f[r]);
      body(w, f);
      for (int r = 0; r < c.row_tiles; ++r)
        for (int i = 0; i < c.head_dim / 2; ++i)
          out[(16 * r + lane / 4 + 8 * (i / 2 % 2)) * c.head_dim + i / 4 * 8 + lane % 4 * 2 +
              i % 2] = w.o[r][i];
    });
  }

  /// `reference` of each row: above all its scores.
  void raise(bool pruned) {
    for (int row = 0; row < kRows; ++row) {
      float largest = -std::numeric_limits<float>::infinity();
      for (int key = 0; key < c.tile; ++key) largest = std::max(largest, score(row, key, pruned));
      reference[row] = std::floor(largest * kFactor) + 1;
    }
  }
};

/// WarpRows::fast of one step, with the kept half of q or, as refined units, with all of it.
template <Config c>
void expect_fast_step(bool pruned, Random& random) {
  using T = Step<c>;
  T step(random);
  step.raise(pruned);
  step.run([&](Softmax<c>& w, const PerRow<c>& f) {
    for (int chunk = 0; chunk < c.tile / c.chunk; ++chunk) {
      typename Softmax<c>::Score s[c.row_tiles][c.chunk / 2];
      if (pruned)
        w.pruned_scores(s, T::kStage, chunk);
      else
        w.template full_scores<false>(s, T::kStage, chunk);
      const layout::WordPair own = w.prune_own(s);
      float x[c.row_tiles][Softmax<c>::kKept];
      std::uint32_t prob[c.row_tiles][Softmax<c>::kKept / 2], metadata[2];
      w.exponents(x, s, f);
      w.exponentials(prob, x, w.l);
      w.exchange(metadata, own);
      if constexpr (T::kPairs) {
        w.pair_values(prob, metadata, T::kStage + T::S::Key::kBytes, chunk);
      } else {
        const std::uint32_t all[c.chunk / 8] = {};
        w.template dense_values<false>(prob, T::kStage + T::S::Key::kBytes, c.chunk * chunk, all);
      }
    }
  });
  constexpr int kBy = 16;  // pairs, or keys, of a product
  for (int row = 0; row < T::kRows; ++row) {
    std::vector<float> p(c.tile);
    for (int key = 0; key < (T::kPairs ? c.tile / 2 : c.tile); ++key) {
      int kept = key;
      if (T::kPairs && step.score(row, key + c.tile / 2, pruned) > step.score(row, key, pruned))
        kept += c.tile / 2;
      p[kept] = step.probability(step.score(row, kept, pruned), row);
    }
    for (int d = 0; d < c.head_dim; ++d) {
      float want = 0;
      for (int first = 0; first < (T::kPairs ? c.tile / 2 : c.tile); first += kBy) {
        double sum = want;  // rounded once a product, as the emulated instruction is
        for (int key = first; key < first + kBy; ++key) {
          sum += double{p[key]} * step.v[key * c.head_dim + d];
          if (T::kPairs)
            sum += double{p[key + c.tile / 2]} * step.v[(key + c.tile / 2) * c.head_dim + d];
        }
        want = static_cast<float>(sum);
      }
      ASSERT_EQ(step.out[row * c.head_dim + d], want) << "row " << row << " channel " << d;
    }
  }
}

/// WarpRows::plain without a mask, but for the last keys, whose values are NaN and masked.
template <Config c>
void expect_plain_step(Random& random) {
  using T = Step<c>;
  T step(random);
  step.raise(false);
  const int live_keys = c.tile - 11;
  for (int key = live_keys; key < c.tile; ++key)
    for (int d = 0; d < c.head_dim; ++d)
      step.put(T::kStage + T::S::Key::kBytes + T::S::Value::offset(key, d / 8) + 2 * (d % 8),
               std::uint16_t{0x7FFF});
  step.run([&](Softmax<c>& w, const PerRow<c>& f) {
    for (int chunk = 0; chunk < c.tile / c.chunk; ++chunk) {
      constexpr int kScores = c.chunk / 2;
      typename Softmax<c>::Score s[c.row_tiles][kScores];
      w.template full_scores<true>(s, T::kStage, chunk);
      float x[c.row_tiles][kScores];
      std::uint32_t prob[c.row_tiles][kScores / 2], live[c.chunk / 8];
      for (int r = 0; r < c.row_tiles; ++r)
        for (int i = 0; i < kScores; ++i) {
          const int key = c.chunk * chunk + i / 4 * 8 + w.lane % 4 * 2 + i % 2;
          const int h = i / 2 % 2;
          x[r][i] = key < live_keys ? w.raw(s[r][i]) * f[r][h] - w.m[r][h]
                                    : -std::numeric_limits<float>::infinity();
        }
      w.exponentials(prob, x, w.l);
      for (int i = 0; i < c.chunk / 8; ++i) {
        const int key = c.chunk * chunk + 8 * i + w.lane % 4 * 2;
        live[i] = (key < live_keys ? 0xFFFFu : 0) | (key + 1 < live_keys ? 0xFFFF0000u : 0);
      }
      w.template dense_values<true>(prob, T::kStage + T::S::Key::kBytes, c.chunk * chunk, live);
    }
  });
  for (int row = 0; row < T::kRows; ++row)
    for (int d = 0; d < c.head_dim; ++d) {
      float want = 0;
      for (int first = 0; first < c.tile; first += 16) {
        double sum = want;
        for (int key = first; key < std::min(first + 16, live_keys); ++key)
          sum += double{step.probability(step.score(row, key, false), row)} *
                 step.v[key * c.head_dim + d];
        want = static_cast<float>(sum);
      }
      ASSERT_EQ(step.out[row * c.head_dim + d], want) << "row " << row << " channel " << d;
    }
}

/// A row without what changes nothing between scores and products.
constexpr Config step_of(Config c) {
  c.refine = c.drop = c.trace = false;
  return c;
}
constexpr bool is_first_with_its_step(int row) {
  for (int i = 0; i < row; ++i)
    if (step_of(kRows[i]) == step_of(kRows[row])) return false;
  return true;
}

template <int kRow>
void expect_row() {
  if constexpr (is_first_with_its_step(kRow)) {
    constexpr Config c = step_of(kRows[kRow]);
    SCOPED_TRACE("row " + std::to_string(kRow));
    Random random(1000 + kRow);
    {
      SCOPED_TRACE("fast");
      expect_fast_step<c>(is_nm24(c), random);
    }
    if (is_nm24(c)) {
      SCOPED_TRACE("fast with all of q");
      expect_fast_step<c>(false, random);
    }
    SCOPED_TRACE("plain");
    expect_plain_step<c>(random);
  }
}
template <int... kRow>
void expect_rows(std::integer_sequence<int, kRow...>) {
  (expect_row<kRow>(), ...);
}

TEST(CudaMma, AStepOfEveryRowIsTheMaskedProduct) {
  expect_rows(std::make_integer_sequence<int, kRowCount>());
}

}  // namespace
}  // namespace twofour::cuda::sm80
#endif  // TWOFOUR_WITH_CUDA_HEADERS
