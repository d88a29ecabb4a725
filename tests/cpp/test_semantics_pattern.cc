// Rule 4: which scores of a pruned block survive.
#include <gtest/gtest.h>

#include <cmath>

#include "ref/attention_pattern.h"
#include "support/score_case.h"

namespace twofour::test {
namespace {

const double kNaN = std::numeric_limits<double>::quiet_NaN();

bool kept(const ref::Output& out, std::int64_t j, std::int64_t row = 0) {
  return out.decisions.is_kept(0, row, j);
}

TEST(Pattern, NoneKeepsAll) {
  ScoreCase s(1, 64, "exact/none64/s0/l0/d1000");  // without drop nothing would be pruned
  const ref::Output out = s.run();
  EXPECT_EQ(out.stats.pruned_pairs, 64);
  EXPECT_EQ(kept_keys(out.decisions, 0, 0), range(0, 64));
}

TEST(Pattern, PairKeepsTheLargerOfTwoHalves) {
  ScoreCase s(1, 128, "exact/pair128/s0/l0");
  s.score(3, 1);
  s.score(67, 2);  // 3 + 64
  s.score(5, -1);
  s.score(69, -2);
  const ref::Output out = s.run();
  EXPECT_FALSE(kept(out, 3));
  EXPECT_TRUE(kept(out, 67));
  EXPECT_TRUE(kept(out, 5));
  EXPECT_FALSE(kept(out, 69));
}

TEST(Pattern, PairNeverComparesNeighboursOrOtherBlocks) {
  ScoreCase s(1, 128, "exact/pair64/s0/l0");
  s.scores(0, 64, 5);  // block 0 all larger than block 1
  s.score(70, -9);
  s.score(102, -8);  // 70 + 32
  const ref::Output out = s.run();
  EXPECT_EQ(kept_keys(out.decisions, 0, 0).size(), 64u);
  EXPECT_TRUE(kept(out, 102));
  EXPECT_FALSE(kept(out, 70));
}

TEST(Pattern, TiesKeepTheLowerKey) {
  ScoreCase pair(1, 64, "exact/pair64/s0/l0");
  EXPECT_EQ(kept_keys(pair.run().decisions, 0, 0), range(0, 32));
  ScoreCase strided(1, 64, "exact/nm24_strided64/s0/l0");
  EXPECT_EQ(kept_keys(strided.run().decisions, 0, 0), range(0, 32));
  ScoreCase adjacent(1, 64, "exact/nm24_adjacent64/s0/l0");
  const ref::Output out = adjacent.run();
  for (std::int64_t j = 0; j < 64; ++j) EXPECT_EQ(kept(out, j), j % 4 < 2) << j;
}

TEST(Pattern, MinusZeroEqualsZero) {
  EXPECT_EQ(ref::keep_largest({-0.0, 0.0}, 1), (std::vector<bool>{true, false}));
  EXPECT_EQ(ref::keep_largest({0.0, -0.0}, 1), (std::vector<bool>{true, false}));
  EXPECT_EQ(ref::keep_largest({-0.0, -1, 0.0, 0.0}, 2),
            (std::vector<bool>{true, false, true, false}));
}

TEST(Pattern, NaNCountsAsLargest) {
  ScoreCase s(1, 64, "exact/pair64/s0/l0");
  s.score(4, 100);
  s.score(36, kNaN);
  s.score(5, kNaN);
  s.score(37, 100);
  const ref::Output out = s.run();
  EXPECT_FALSE(kept(out, 4));
  EXPECT_TRUE(kept(out, 36));
  EXPECT_TRUE(kept(out, 5));
  EXPECT_FALSE(kept(out, 37));
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(ref::keep_largest({inf, kNaN, kNaN, kNaN}, 2),
            (std::vector<bool>{false, true, true, false}));
}

TEST(Pattern, Nm24StridedKeepsTwoOfFourQuarters) {
  ScoreCase s(1, 128, "exact/nm24_strided128/s0/l0");
  s.score(9, 1);
  s.score(9 + 32, 4);
  s.score(9 + 64, 2);
  s.score(9 + 96, 3);
  const ref::Output out = s.run();
  EXPECT_FALSE(kept(out, 9));
  EXPECT_TRUE(kept(out, 9 + 32));
  EXPECT_FALSE(kept(out, 9 + 64));
  EXPECT_TRUE(kept(out, 9 + 96));
  EXPECT_EQ(kept_keys(out.decisions, 0, 0).size(), 64u);
}

TEST(Pattern, Nm24AdjacentKeepsTwoOfFourNeighbours) {
  ScoreCase s(1, 64, "exact/nm24_adjacent64/s0/l0");
  s.score(8, 1);
  s.score(9, 3);
  s.score(10, 4);
  s.score(11, 2);
  const ref::Output out = s.run();
  EXPECT_FALSE(kept(out, 8));
  EXPECT_TRUE(kept(out, 9));
  EXPECT_TRUE(kept(out, 10));
  EXPECT_FALSE(kept(out, 11));
}

TEST(Pattern, TheTwoLargestOfEveryOrder) {
  // All 24 orders, and all ways of tying: the kept two are those a stable sort puts first.
  for (int code = 0; code < 256; ++code) {
    const std::vector<double> values = {double(code & 3), double(code >> 2 & 3),
                                        double(code >> 4 & 3), double(code >> 6 & 3)};
    std::vector<int> order = {0, 1, 2, 3};
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return values[a] > values[b]; });
    std::vector<bool> expected(4);
    expected[order[0]] = expected[order[1]] = true;
    EXPECT_EQ(ref::keep_largest(values, 2), expected) << code;
  }
}

TEST(Pattern, ComparesScaledScores) {
  AttentionProblem problem = ScoreCase::problem_of(1, 64, "exact/pair64/s0/l0");
  problem.scale = -1.0f;
  ScoreCase s(problem);
  s.score(0, 1);
  s.score(32, 2);
  s.score(1, 2);
  s.score(33, 1);
  const ref::Output out = s.run();
  EXPECT_TRUE(kept(out, 0));
  EXPECT_TRUE(kept(out, 33));
}

TEST(Pattern, EveryRowChoosesForItself) {
  ScoreCase s(2, 64, "exact/pair64/s0/l0");
  s.mark_row(1);
  s.score(0, 1);
  s.marked_score(32, 2);
  const ref::Output out = s.run();
  EXPECT_TRUE(kept(out, 0, 0));
  EXPECT_TRUE(kept(out, 32, 1));
  EXPECT_FALSE(kept(out, 0, 1));
}

TEST(Pattern, PrunedScoresCountAsMinusInfinity) {
  ScoreCase s(1, 64, "exact/pair64/s0/l0");
  s.scores(0, 32, std::log(2.0));
  s.scores(32, 64, std::log(1.5));
  for (std::int64_t j = 0; j < 32; ++j) s.v(j, 1);
  for (std::int64_t j = 32; j < 64; ++j) s.v(j, 1000);
  const ref::Output out = s.run();
  EXPECT_NEAR(out.o[0], 1, 1e-12);  // the normaliser holds what is kept alone
}

TEST(Pattern, LseIsOverWhatIsKept) {
  ScoreCase s(1, 64, "exact/pair64/s0/l0");
  s.scores(0, 64, 3);
  const ref::Output out = s.run();
  EXPECT_NEAR(out.lse[0], 3 + std::log(32.0), 1e-12);
  ScoreCase dense(1, 64, "dense");
  dense.scores(0, 64, 3);
  EXPECT_NEAR(dense.run().lse[0], 3 + std::log(64.0), 1e-12);
}

TEST(Pattern, PlainBlocksKeepEverything) {
  ScoreCase s(1, 128, "exact/pair64/s1/l0");
  const ref::Output out = s.run();
  EXPECT_EQ(kept_keys(out.decisions, 0, 0), range(0, 96));
}

}  // namespace
}  // namespace twofour::test
