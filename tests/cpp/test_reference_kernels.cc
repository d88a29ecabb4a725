// Every row of the registry over shapes, masks and layouts: the decisions that its debugging row
// writes are replayed by the reference, so that near ties cannot excuse anything.
#include <gtest/gtest.h>

#include <cmath>

#include "support/kernel_row.h"

namespace twofour::test {
namespace {

TEST_P(KernelRow, EveryFillOverOddShapes) {
  struct Shape {
    std::int64_t m, n, d, dv;
    bool causal;
  };
  const Shape shapes[] = {{1, 1, 8, 8, false},       {1, 300, 64, 64, true},
                          {113, 203, 64, 64, false}, {255, 193, 32, 40, true},
                          {37, 511, 128, 64, true},  {199, 3, 64, 64, true}};
  std::uint64_t seed = 1;
  for (Fill fill : {Fill::kRandom, Fill::kPeaky, Fill::kFlat, Fill::kHostile}) {
    for (const Shape& shape : shapes) {
      SCOPED_TRACE(to_string(fill));
      AttentionProblem p =
          problem(shape.m, shape.n, shape.d, shape.dv, sparsity(0, 1, 0, 2.0f, 6.0f));
      p.causal = shape.causal;
      AttentionCase c = zero_case(p);
      fill_case(c, fill, ++seed);
      EXPECT_GT(check(c).compared, 0);
      if (HasFailure()) return;
    }
  }
}

TEST_P(KernelRow, ErrorsAreOfTheSizeOfFp32Rounding) {
  // The bounds elsewhere are for the worst case. Rounding errors mostly cancel: over N(0,1) values
  // their root mean square is a few units in the last place of a score of about 3 and of O.
  AttentionProblem p = problem(192, 640, 64, 64, sparsity(0, 1, 0, 2.0f));
  AttentionCase c = zero_case(p);
  fill_case(c, Fill::kRandom, 77);
  const Agreement agreement = check(c);
  ASSERT_GT(agreement.compared, 0);
  const double rms = std::sqrt(agreement.sum_of_squares / static_cast<double>(agreement.compared));
  EXPECT_LE(rms, 8 * 0x1p-24);
}

TEST_P(KernelRow, RefinesDropsAndPrunes) {
  // Key blocks of rising and falling strength, so that every kind of decision occurs.
  AttentionProblem p = problem(320, 640, 64, 64, sparsity(64, 1, 1, 1.0f, 3.0f));
  p.causal = true;
  p.heads_q = 2;
  AttentionCase c = zero_case(p);
  fill_case(c, Fill::kRandom, 5);
  for (std::int64_t j = 0; j < 640; ++j) {
    const double strength[] = {2.5, 0.02, 1};
    for (std::int64_t d = 0; d < 64; ++d) {
      c.k.set(0, j, 0, d, strength[j / 64 % 3] * c.k.get(0, j, 0, d));
    }
  }
  EXPECT_GT(check(c).compared, 0);
  EXPECT_GT(total_.units, 0);
  EXPECT_EQ(total_.refined > 0, p.sparsity.refine.has_value());
  EXPECT_EQ(total_.dropped > 0, p.sparsity.drop.has_value());
  EXPECT_LT(total_.refined + total_.dropped, total_.units);
}

TEST_P(KernelRow, HeadDimensions) {
  std::uint64_t seed = 100;
  for (std::int64_t d : {8, 16, 40, 56, 64, 80, 96, 112, 128, 160, 192, 256}) {
    AttentionCase c = zero_case(problem(19, 400, d, d, sparsity(0, 0, 0, 1.0f)));
    fill_case(c, Fill::kRandom, ++seed);
    EXPECT_GT(check(c).compared, 0);
    if (HasFailure()) return;
  }
  for (const auto& [d, dv] : {std::pair{192, 128}, {64, 256}, {128, 8}, {8, 24}}) {
    AttentionCase c = zero_case(problem(19, 300, d, dv, sparsity(0, 0, 0)));
    fill_case(c, Fill::kRandom, ++seed);
    EXPECT_GT(check(c).compared, 0);
  }
}

TEST_P(KernelRow, AnUnsupportedHeadDimensionIsNamedWithTheSupportedOnes) {
  for (const auto& [d, dv] : {std::pair{512, 64}, {60, 64}, {64, 512}, {64, 4}}) {
    AttentionCase c = zero_case(problem(5, 70, d, dv, sparsity(0, 0, 0)));
    fill_case(c, Fill::kRandom, 150);
    for (const Device& device : devices_) {
      const KernelOutput out = run_kernel(c, GetParam().id, device);
      if (out.status.ok()) {
        EXPECT_GT(check(c).compared, 0);
        continue;
      }
      EXPECT_EQ(out.status.code(), Code::kUnsupported);
      const std::string name = d % 8 == 0 && d <= 256 ? "head_dim_v " : "head_dim ";
      EXPECT_NE(out.status.message().find("unsupported: " + name), std::string::npos)
          << out.status.message();
      EXPECT_NE(out.status.message().find("supported are"), std::string::npos);
    }
  }
}

TEST_P(KernelRow, BlockLengths) {
  std::uint64_t seed = 200;
  for (int block = 64; block <= 512; block += 64) {
    for (std::int64_t extra : {-1, 0, 1}) {
      AttentionCase c =
          zero_case(problem(70, block + 64 + extra, 32, 32, sparsity(block, 0, 0, 1.0f, 5.0f)));
      fill_case(c, Fill::kRandom, ++seed);
      EXPECT_GT(check(c).compared, 0);
      if (HasFailure()) return;
    }
  }
}

TEST_P(KernelRow, CausalWithUnequalLengths) {
  std::uint64_t seed = 300;
  for (std::int64_t m : {1, 5, 128, 300}) {
    for (std::int64_t n : {5, 1, 300}) {
      for (Align align : {Align::kBottomRight, Align::kTopLeft}) {
        AttentionProblem p = problem(m, n, 16, 16, sparsity(64, 1, 1));
        p.causal = true;
        p.align = align;
        AttentionCase c = zero_case(p);
        fill_case(c, Fill::kRandom, ++seed);
        check(c);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(KernelRow, WindowsOfManyWidths) {
  std::uint64_t seed = 400;
  for (const Window window : {Window{0, 0},
                              {1, 0},
                              {0, 63},
                              {100, -1},
                              {-1, 100},
                              {300, 200},
                              {100000, 100000},
                              {0, -1}}) {
    for (bool causal : {false, true}) {
      AttentionProblem p = problem(200, 460, 16, 16, sparsity(64, 1, 1));
      p.window = window;
      p.causal = causal;
      AttentionCase c = zero_case(p);
      fill_case(c, Fill::kRandom, ++seed);
      EXPECT_GT(check(c).compared, 0);
      if (HasFailure()) return;
    }
  }
}

TEST_P(KernelRow, GroupedHeads) {
  for (const auto& [hq, hkv] : {std::pair{9, 3}, {7, 1}, {24, 8}, {5, 5}}) {
    AttentionProblem p = problem(20, 150, 16, 24, sparsity(64, 0, 0, 1.0f));
    p.batch = 2;
    p.heads_q = hq;
    p.heads_kv = hkv;
    AttentionCase c = zero_case(p);
    fill_case(c, Fill::kRandom, static_cast<std::uint64_t>(500 + hq));
    EXPECT_GT(check(c).compared, 0);
    if (HasFailure()) return;
  }
}

TEST_P(KernelRow, StridesAndLayouts) {
  for (Layout layout : {Layout::kBhmd, Layout::kFused}) {
    for (DType dtype : {DType::kF32, DType::kF16}) {
      AttentionProblem p = problem(65, 140, 24, 40, sparsity(64, 0, 0));
      p.batch = 2;
      p.heads_q = 4;
      p.heads_kv = 2;
      p.dtype = dtype;
      AttentionCase c = zero_case(p, layout);
      fill_case(c, Fill::kRandom, 600);
      EXPECT_GT(check(c, layout).compared, 0);
      if (HasFailure()) return;
    }
  }
}

TEST_P(KernelRow, SixteenBitInputs) {
  std::uint64_t seed = 700;
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    for (Fill fill : {Fill::kRandom, Fill::kPeaky, Fill::kFlat, Fill::kHostile}) {
      AttentionProblem p = problem(70, 333, 64, 64, sparsity(0, 1, 0, 2.0f));
      p.dtype = dtype;
      AttentionCase c = zero_case(p);
      fill_case(c, fill, ++seed);
      EXPECT_GT(check(c).compared, 0);
      if (HasFailure()) return;
    }
  }
}

TEST_P(KernelRow, Transforms) {
  if (!is_reference() && GetParam().config.qk != QKProduct::kNm24)
    GTEST_SKIP() << "exact in any basis";
  std::uint64_t seed = 800;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (std::int64_t d : {8, 64, 80}) {
      AttentionProblem p = problem(70, 333, d, 16, sparsity(64, 1, 0, 1.0f));
      p.sparsity.qk = QKProduct::kNm24;
      p.dtype = dtype;
      p.heads_q = 4;
      p.heads_kv = 2;
      AttentionCase c = zero_case(p);
      fill_case(c, Fill::kRandom, ++seed);
      random_transform(c, ++seed);
      EXPECT_GT(check(c).compared, 0);
      if (HasFailure()) return;
    }
  }
}

TEST_P(KernelRow, PackedSequences) {
  for (const auto& [len_q, len_k] :
       {std::pair{std::vector<std::int32_t>{0, 0, 5, 5}, std::vector<std::int32_t>{0, 0, 5, 5}},
        {{1, 0, 200, 7}, {333, 5, 200, 3}},
        {{0, 0}, {0, 0}},
        {{3, 2}, {0, 70}}}) {
    for (bool causal : {false, true}) {
      AttentionProblem p = problem(0, 0, 16, 24, sparsity(64, 1, 0, 1.0f));
      p.heads_q = 2;
      p.causal = causal;
      AttentionCase c = zero_packed(p, len_q, len_k);
      fill_case(c, Fill::kRandom, 900);
      check(c);
      if (HasFailure()) return;
    }
  }
}

TEST_P(KernelRow, Masks) {
  Random random(1000);
  for (int round = 0; round < 6; ++round) {
    AttentionProblem p = problem(230, 420, 16, 16, sparsity(64, 1, round % 2, 1.0f, 6.0f));
    p.heads_q = 2;
    p.causal = round % 3 == 1;
    AttentionCase c = zero_case(p);
    fill_case(c, Fill::kRandom, static_cast<std::uint64_t>(1000 + round));
    c.full_mask();
    // Dead rectangles, a row without keys, and single dead pairs.
    for (int n = 0; n < 5; ++n) {
      const std::int64_t h = random.integer(0, 1), i0 = random.integer(0, 200);
      const std::int64_t j0 = random.integer(0, 380), width = random.integer(1, 200);
      for (std::int64_t i = i0; i < std::min<std::int64_t>(230, i0 + width); ++i) {
        for (std::int64_t j = j0; j < std::min<std::int64_t>(420, j0 + width); ++j) {
          c.set_mask(0, h, i, j, false);
        }
      }
      c.set_mask(0, h, random.integer(0, 229), random.integer(0, 419), false);
    }
    for (std::int64_t j = 0; j < 420; ++j) c.set_mask(0, 1, 77, j, false);
    EXPECT_GT(check(c).compared, 0);
    c.key_mask();  // and padding, broadcast over heads and rows
    for (std::int64_t j = 0; j < 130; ++j) c.set_mask(0, 0, 0, j, false);
    EXPECT_GT(check(c).compared, 0);
    if (HasFailure()) return;
  }
}

TEST_P(KernelRow, AMaskOfTrueIsNoMask) {
  Random random(1100);
  for (int round = 0; round < 20; ++round) {
    AttentionProblem p =
        problem(random.integer(1, 250), random.integer(64, 500), 16, 16, sparsity(64, 1, 1));
    p.causal = round % 2;
    p.window = {random.integer(-1, 300), random.integer(-1, 300)};
    AttentionCase c = zero_case(p);
    fill_case(c, Fill::kRandom, 1100);
    const KernelOutput without = run_kernel(c, GetParam().id, devices_.front());
    c.key_mask();
    const KernelOutput with = run_kernel(c, GetParam().id, devices_.front());
    EXPECT_TRUE(with.o.bytes() == without.o.bytes()) << describe(c);
    if (HasFailure()) return;
  }
}

TEST_P(KernelRow, AMaskOfTrueIsNoMaskWhereOnlyAbsentRowsSeeABlock) {
  // The one row sees keys from 367 on, but position 576 of its row block sees them from 176: blocks
  // 2 to 5 are the four sinks, with a mask or without.
  AttentionProblem p = problem(1, 768, 16, 16, sparsity(64, 4, 0));
  p.causal = true;
  p.window = {400, -1};
  AttentionCase c = zero_case(p);
  fill_case(c, Fill::kRandom, 1150);
  const KernelOutput without = run_kernel(c, GetParam().id, devices_.front());
  c.key_mask();
  const KernelOutput with = run_kernel(c, GetParam().id, devices_.front());
  EXPECT_TRUE(with.o.bytes() == without.o.bytes());
  check(c);
}

TEST_P(KernelRow, RandomProblems) {
  Random random(1200);
  for (int round = 0; round < 30; ++round) {
    AttentionProblem p = problem(
        random.integer(0, 260), random.integer(0, 400), 8 * random.integer(1, 9),
        8 * random.integer(1, 9),
        sparsity(64 * static_cast<int>(random.integer(0, 4)),
                 static_cast<int>(random.integer(0, 2)), static_cast<int>(random.integer(0, 2)),
                 random.integer(0, 1) ? std::optional(2.0f) : std::nullopt,
                 random.integer(0, 1) ? std::optional(4.0f) : std::nullopt));
    p.heads_kv = random.integer(1, 2);
    p.heads_q = p.heads_kv * random.integer(1, 3);
    p.causal = random.integer(0, 1);
    p.align = random.integer(0, 1) ? Align::kTopLeft : Align::kBottomRight;
    if (random.integer(0, 2) == 0) p.window.left = random.integer(0, 300);
    if (random.integer(0, 2) == 0) p.window.right = random.integer(0, 300);
    if (random.integer(0, 3) == 0) p.scale = static_cast<float>(random.normal());
    p.dtype = static_cast<DType>(random.integer(0, 2));
    AttentionCase c = zero_case(p, static_cast<Layout>(random.integer(0, 2)));
    fill_case(c, static_cast<Fill>(random.integer(0, 2)), random.next());
    if (p.sparsity.qk == QKProduct::kNm24 && random.integer(0, 1))
      random_transform(c, random.next());
    check(c);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, KernelRow, testing::ValuesIn(all_params()), param_name);

}  // namespace
}  // namespace twofour::test
