// The overlap judgement against a byte map, over random views.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "ops/memory.h"

namespace twofour {
namespace {

constexpr std::int64_t kBytes = 4096;

struct Fixture {
  alignas(64) std::vector<char> memory = std::vector<char>(kBytes);

  ConstTensorView view(std::int64_t offset, DType dtype, std::vector<std::int64_t> shape,
                       std::vector<std::int64_t> stride) {
    ConstTensorView out;
    out.data = memory.data() + offset;
    out.dtype = dtype;
    out.rank = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), out.shape.begin());
    std::copy(stride.begin(), stride.end(), out.stride.begin());
    return out;
  }

  /// How often each byte is touched.
  std::vector<int> touched(const ConstTensorView& view) const {
    std::vector<int> count(kBytes);
    const auto element = static_cast<std::int64_t>(size_of(view.dtype));
    const std::int64_t base = static_cast<const char*>(view.data) - memory.data();
    for (std::int64_t flat = 0; flat < view.numel(); ++flat) {
      std::int64_t rest = flat, at = base;
      for (int i = view.rank - 1; i >= 0; --i) {
        at += rest % view.shape[i] * view.stride[i] * element;
        rest /= view.shape[i];
      }
      for (std::int64_t byte = 0; byte < element; ++byte) ++count.at(at + byte);
    }
    return count;
  }

  bool share(const ConstTensorView& a, const ConstTensorView& b) const {
    const auto in_a = touched(a), in_b = touched(b);
    for (std::int64_t i = 0; i < kBytes; ++i) {
      if (in_a[i] && in_b[i]) return true;
    }
    return false;
  }
};

bool may_overlap(const ConstTensorView& a, const ConstTensorView& b) {
  return may_overlap(*footprint(a), *footprint(b));
}

TEST(Memory, SlicesOfAFusedBufferAreApart) {
  Fixture f;
  // [M, 4, H, D] = [8, 4, 2, 4]: q, k, v and o share one buffer, row by row.
  std::vector<ConstTensorView> slices;
  for (int i = 0; i < 4; ++i) {
    slices.push_back(f.view(i * 8 * 4, DType::kF32, {1, 8, 2, 4}, {256, 32, 4, 1}));
  }
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) EXPECT_EQ(may_overlap(slices[i], slices[j]), i == j);
  }
  // The same with heads outermost of the four: [M, H, 4, D].
  const auto a = f.view(0, DType::kF32, {8, 2, 4}, {32, 16, 1});
  const auto b = f.view(16, DType::kF32, {8, 2, 4}, {32, 16, 1});
  const auto wide = f.view(0, DType::kF32, {8, 2, 5}, {32, 16, 1});
  EXPECT_FALSE(may_overlap(a, b));
  EXPECT_TRUE(may_overlap(wide, b));
}

TEST(Memory, PlainArraysAreJudgedExactly) {
  Fixture f;
  const char* p = f.memory.data();
  EXPECT_FALSE(may_overlap(footprint(p, 64), footprint(p + 64, 8)));
  EXPECT_TRUE(may_overlap(footprint(p, 65), footprint(p + 64, 8)));
  EXPECT_FALSE(may_overlap(footprint(p, 0), footprint(p, 8)));
}

TEST(Memory, NeverMissesAnOverlap) {
  Fixture f;
  std::mt19937 random(11);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  const auto any_view = [&] {
    const DType dtype = pick(0, 1) ? DType::kF16 : DType::kF32;
    std::vector<std::int64_t> shape, stride;
    for (int i = 0; i < 3; ++i) {
      shape.push_back(pick(1, 4));
      stride.push_back(pick(0, 60));
    }
    if (pick(0, 1)) stride[2] = 1;
    return f.view(4 * pick(0, 200), dtype, shape, stride);
  };
  int apart = 0, shared = 0, repeated = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    const ConstTensorView a = any_view(), b = any_view();
    const bool truth = f.share(a, b);
    ASSERT_TRUE(!truth || may_overlap(a, b)) << shape_string(a) << " " << shape_string(b);
    apart += !may_overlap(a, b);
    shared += truth;
    const auto count = f.touched(a);
    if (elements_distinct(a)) {
      ASSERT_LE(*std::max_element(count.begin(), count.end()), 1) << shape_string(a);
    } else {
      ++repeated;
    }
  }
  // The test means something only when all outcomes occur.
  EXPECT_GT(apart, 1000);
  EXPECT_GT(shared, 1000);
  EXPECT_GT(repeated, 1000);
}

TEST(Memory, DistinctAcceptsUsualLayouts) {
  Fixture f;
  EXPECT_TRUE(elements_distinct(f.view(0, DType::kF32, {2, 3, 4}, {12, 4, 1})));
  EXPECT_TRUE(elements_distinct(f.view(0, DType::kF32, {2, 3, 4}, {4, 8, 1})));
  EXPECT_TRUE(elements_distinct(f.view(0, DType::kF32, {2, 1, 4}, {4, 0, 1})));
  EXPECT_FALSE(elements_distinct(f.view(0, DType::kF32, {2, 3, 4}, {0, 4, 1})));
  EXPECT_FALSE(elements_distinct(f.view(0, DType::kF32, {3, 4}, {3, 1})));
}

TEST(Memory, ASpanBeyond63BitsHasNoFootprint) {
  Fixture f;
  EXPECT_FALSE(footprint(f.view(0, DType::kF32, {3, 2}, {std::int64_t{1} << 61, 1})));
  EXPECT_FALSE(footprint(f.view(0, DType::kF32, {2, 2}, {INT64_MAX, 1})));
  EXPECT_TRUE(footprint(f.view(0, DType::kF32, {1, 2}, {INT64_MAX, 1})));
}

}  // namespace
}  // namespace twofour
