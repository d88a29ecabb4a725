// T as 16-bit parts: what the parts add up to, and what products with them come to.
#ifdef TWOFOUR_WITH_CUDA_HEADERS
#include "cuda/tile/split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace twofour::cuda::tile {
namespace {

/// The parts of a column after its scaling, in double precision, and the scale.
struct SplitColumn {
  std::vector<std::vector<double>> parts;  // [part][entry]
  ColumnScale scale;

  double entry(std::size_t i) const {
    double sum = 0;
    for (const auto& part : parts) sum += part[i];
    return sum * scale.down;
  }
};

/// An even number of entries.
template <DType kType>
SplitColumn split_column(const std::vector<float>& column) {
  SplitColumn out;
  float largest = 0;
  for (const float v : column) largest = std::max(largest, std::fabs(v));
  out.scale = column_scale<kType>(largest);
  out.parts.resize(kSplitParts<kType>);
  for (std::size_t i = 0; i < column.size(); i += 2) {
    std::uint32_t packed[kSplitParts<kType>];
    split_pair<kType>(column[i] * out.scale.up, column[i + 1] * out.scale.up, packed);
    for (int p = 0; p < kSplitParts<kType>; ++p) {
      out.parts[p].push_back(ptx::unpack_low<kType>(packed[p]));
      out.parts[p].push_back(ptx::unpack_high<kType>(packed[p]));
    }
  }
  return out;
}

std::vector<float> normal_column(float size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, size);
  std::vector<float> column(128);
  for (float& v : column) v = normal(random);
  return column;
}

/// Entries that span `decades` powers of ten below `top`.
std::vector<float> spread_column(float top, float decades, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> exponent(-decades, 0.0f), sign(-1.0f, 1.0f);
  std::vector<float> column(128);
  for (float& v : column) v = std::copysign(top * std::pow(10.0f, exponent(random)), sign(random));
  column[17] = top;
  return column;
}

/// fp16: 2^-22 of the entry or 2^-39 of the column's largest, where the last part has run out of
/// exponents. bf16: 2^-24 of the entry, less than fp32 itself rounds by.
template <DType kType>
void expect_reconstructed(const std::vector<float>& column) {
  const SplitColumn split = split_column<kType>(column);
  double largest = 0;
  for (const float v : column) largest = std::max(largest, std::fabs(double{v}));
  for (std::size_t i = 0; i < column.size(); ++i) {
    const double size = std::fabs(double{column[i]});
    const double bound = kType == DType::kF16 ? std::ldexp(size, -22) + std::ldexp(largest, -39)
                                              : std::ldexp(size, -24);
    ASSERT_LE(std::fabs(split.entry(i) - column[i]), bound) << "entry " << i << " " << column[i];
  }
}

TEST(TransformSplit, PartsAddUpToTheEntry) {
  unsigned seed = 1;
  for (const float size : {1.0f, 1e-12f, 1e12f, 3e-30f, 1e30f, 0.37f}) {
    SCOPED_TRACE(size);
    for (const auto& column : {normal_column(size, seed), spread_column(size, 3, seed + 1),
                               spread_column(size, 12, seed + 2)}) {
      // The parts of bf16 have the exponents of fp32, which end at 2^-133.
      expect_reconstructed<DType::kF16>(column);
      if (size > 1e-20f) expect_reconstructed<DType::kBF16>(column);
    }
    seed += 3;
  }
}

TEST(TransformSplit, EveryPartCounts) {
  // A wrong part would be noticed: without the last one the error is far above the bound.
  const std::vector<float> column = normal_column(1.0f, 9);
  const auto without_last = [&](const SplitColumn& split) {
    double worst = 0;
    for (std::size_t i = 0; i < column.size(); ++i)
      worst = std::max(
          worst, std::fabs(split.entry(i) - split.parts.back()[i] * split.scale.down - column[i]));
    return worst;
  };
  EXPECT_GT(without_last(split_column<DType::kF16>(column)), std::ldexp(1.0, -14));
  EXPECT_GT(without_last(split_column<DType::kBF16>(column)), std::ldexp(1.0, -19));
}

TEST(TransformSplit, ScalesArePowersOfTwoAndInverse) {
  for (const float largest : {0.0f, 1e-44f, 1e-38f, 1e-30f, 1e-12f, 0.7f, 1.0f, 32768.0f, 1e12f,
                              std::numeric_limits<float>::max()}) {
    const ColumnScale scale = column_scale<DType::kF16>(largest);
    int exponent;
    EXPECT_EQ(std::frexp(scale.up, &exponent), 0.5f) << largest;
    EXPECT_TRUE(std::isnormal(scale.down)) << largest;
    EXPECT_EQ(double{scale.up} * double{scale.down}, 1.0) << largest;
    EXPECT_LT(largest * scale.up, 32768.0f) << largest;
    if (largest >= 1e-30f) {
      EXPECT_GE(largest * scale.up, 16384.0f) << largest;
    }
    const ColumnScale bf16 = column_scale<DType::kBF16>(largest);
    EXPECT_EQ(bf16.up, 1.0f);
    EXPECT_EQ(bf16.down, 1.0f);
  }
}

TEST(TransformSplit, ZerosStayZeroAndNonFiniteStaysSo) {
  const std::vector<float> zeros(16, 0.0f);
  const SplitColumn split = split_column<DType::kF16>(zeros);
  for (std::size_t i = 0; i < zeros.size(); ++i) EXPECT_EQ(split.entry(i), 0.0);
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> column(16, 1.0f);
    column[3] = bad;
    EXPECT_FALSE(std::isfinite(split_column<DType::kF16>(column).entry(3)));
    EXPECT_FALSE(std::isfinite(split_column<DType::kBF16>(column).entry(3)));
  }
}

/// Products summed in fp32 part by part, as the kernel does: no further from the exact sum than
/// fp32 with T itself may be, D * 2^-24 of the sum of magnitudes.
template <DType kType>
void expect_products(const std::vector<float>& column, const std::vector<float>& x) {
  const SplitColumn split = split_column<kType>(column);
  double exact = 0, magnitude = 0;
  float large = 0, small = 0;
  for (std::size_t i = 0; i < column.size(); ++i) {
    exact += double{x[i]} * column[i];
    magnitude += std::fabs(double{x[i]} * column[i]);
    large = std::fma(x[i], static_cast<float>(split.parts[0][i]), large);
    for (std::size_t p = 1; p < split.parts.size(); ++p)
      small = std::fma(x[i], static_cast<float>(split.parts[p][i]), small);
  }
  const float sum = (large + small) * split.scale.down;
  EXPECT_LE(std::fabs(sum - exact), std::ldexp(128 * magnitude, -24));
}

TEST(TransformSplit, ProductsAreThoseOfFp32) {
  for (const float size : {1.0f, 1e-12f, 1e12f}) {
    for (unsigned seed = 0; seed < 8; ++seed) {
      const std::vector<float> column = normal_column(size, 40 + seed);
      std::vector<float> x = normal_column(seed % 2 ? 1.0f : 4000.0f, 90 + seed), y = x;
      for (float& v : x) v = ptx::unpack_low<DType::kF16>(ptx::pack<DType::kF16>(v, 0));
      for (float& v : y) v = ptx::unpack_low<DType::kBF16>(ptx::pack<DType::kBF16>(v, 0));
      expect_products<DType::kF16>(column, x);
      expect_products<DType::kBF16>(column, y);
    }
  }
}

}  // namespace
}  // namespace twofour::cuda::tile
#endif  // TWOFOUR_WITH_CUDA_HEADERS
