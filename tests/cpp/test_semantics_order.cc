// Rules 6 to 8: the running maximum, refine and drop.
#include <gtest/gtest.h>

#include <cmath>

#include "support/score_case.h"

namespace twofour::test {
namespace {

const double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr auto kPlain = UnitDecision::kPlain;
constexpr auto kPruned = UnitDecision::kPruned;
constexpr auto kRefined = UnitDecision::kRefined;
constexpr auto kDropped = UnitDecision::kDropped;

/// Decisions of all half-blocks of a row.
std::vector<UnitDecision> units(const ref::Output& out, std::int64_t row = 0) {
  std::vector<UnitDecision> all;
  for (std::int64_t u = 0; u < out.decisions.half_blocks; ++u) {
    all.push_back(out.decisions.unit_at(0, row, u));
  }
  return all;
}

// With blocks of 64, half-block 0 of block s holds its keys 0 .. 15 and 32 .. 47.

TEST(Order, TheFirstUnitHasNoMaximumBeforeIt) {
  ScoreCase s(1, 64, "exact/none64/s0/l0/d0");
  s.scores(0, 64, -100);
  s.scores(16, 32, -101);
  s.scores(48, 64, -101);
  // m is -inf before unit 0, which therefore stays; unit 1 is below it.
  EXPECT_EQ(units(s.run()), (std::vector{kPruned, kDropped}));
}

TEST(Order, PlainBlocksComeFirst) {
  // The plain block is the ragged one at the end, yet m holds its score before unit 0 is tested.
  ScoreCase s(1, 70, "exact/none64/s0/l0/d5");
  s.score(69, 10);
  const ref::Output out = s.run();
  EXPECT_EQ(units(out), (std::vector{kDropped, kDropped, kPlain, kPlain}));
  EXPECT_EQ(kept_keys(out.decisions, 0, 0), range(64, 70));
}

TEST(Order, UnitsFollowInAscendingOrder) {
  // Rising scores drop nothing; falling ones drop all but the first.
  ScoreCase rising(1, 128, "exact/none64/s0/l0/d1");
  ScoreCase falling(1, 128, "exact/none64/s0/l0/d1");
  for (std::int64_t j = 0; j < 128; ++j) {
    const std::int64_t unit = 2 * (j / 64) + (j % 32 >= 16);
    rising.score(j, 3.0 * static_cast<double>(unit));
    falling.score(j, -3.0 * static_cast<double>(unit));
  }
  EXPECT_EQ(units(rising.run()), (std::vector{kPruned, kPruned, kPruned, kPruned}));
  EXPECT_EQ(units(falling.run()), (std::vector{kPruned, kDropped, kDropped, kDropped}));
}

// That m covers what was not kept cannot be told from outside: a pattern keeps the largest of each
// group, and a dropped unit lies below m. What can be told is that m outlives a dropped unit.
TEST(Order, TheMaximumOutlivesADroppedUnit) {
  ScoreCase s(1, 128, "exact/pair64/s0/l0/d2");
  s.scores(0, 16, 10);
  s.scores(16, 32, 7);  // unit 1: dropped
  s.scores(48, 64, 6);
  s.scores(64, 80, 7.5);
  s.scores(80, 96, 8);
  EXPECT_EQ(units(s.run()), (std::vector{kPruned, kDropped, kDropped, kPruned}));
}

TEST(Drop, EveryRowMustBeBelow) {
  ScoreCase s(3, 128, "exact/none64/s1/l0/d5");
  s.scores(0, 64, 10);
  EXPECT_EQ(units(s.run()), (std::vector{kPlain, kPlain, kDropped, kDropped}));
  s.mark_row(2);
  s.marked_score(70, 6);  // row 2 sees 6 in unit 2, above 10 - 5
  const ref::Output out = s.run();
  for (std::int64_t row : {0, 1, 2}) {
    EXPECT_EQ(units(out, row), (std::vector{kPlain, kPlain, kPruned, kDropped})) << row;
  }
  EXPECT_EQ(out.stats.dropped, 1);
  EXPECT_EQ(out.stats.units, 2);
}

TEST(Drop, RowsOfAnotherUnitAreNotAsked) {
  // Rows 0 .. 63 and 64 .. 99 are two units.
  ScoreCase s(100, 128, "exact/none64/s1/l0/d5");
  s.scores(0, 64, 10);
  s.mark_row(64);
  s.marked_score(70, 6);
  const ref::Output out = s.run();
  EXPECT_EQ(units(out, 63), (std::vector{kPlain, kPlain, kDropped, kDropped}));
  EXPECT_EQ(units(out, 64), (std::vector{kPlain, kPlain, kPruned, kDropped}));
  EXPECT_EQ(units(out, 99), (std::vector{kPlain, kPlain, kPruned, kDropped}));
}

TEST(Drop, UnitsAreAlignedByPosition) {
  // Causal with 100 rows and 250 keys: rows at positions 150 .. 249, so that row 42, at 192, opens
  // a row block and its only unit. Blocks 1 and 2 are pruned for it.
  AttentionProblem problem = ScoreCase::problem_of(100, 250, "exact/none64/s1/l0/d5");
  problem.causal = true;
  ScoreCase s(problem);
  s.scores(0, 64, 10);
  s.mark_row(43);
  s.marked_score(70, 6);
  const ref::Output out = s.run();
  EXPECT_EQ(out.decisions.unit_at(0, 41, 2), kPlain);
  for (std::int64_t row : {42, 43, 63, 64, 99}) {
    EXPECT_EQ(out.decisions.unit_at(0, row, 2), kPruned) << row;
    EXPECT_EQ(out.decisions.unit_at(0, row, 3), kDropped) << row;
  }
}

TEST(Drop, IsStrict) {
  ScoreCase s(1, 128, "exact/none64/s1/l0/d5");
  s.scores(0, 64, 10);
  s.scores(64, 128, 5);  // exactly m - 5: not below
  EXPECT_EQ(units(s.run()), (std::vector{kPlain, kPlain, kPruned, kPruned}));
  s.scores(64, 128, 4.999);
  EXPECT_EQ(units(s.run()), (std::vector{kPlain, kPlain, kDropped, kDropped}));
}

TEST(Drop, ADroppedUnitContributesNothing) {
  ScoreCase s(1, 128, "exact/pair64/s1/l0/d5");
  s.scores(0, 64, 10);
  for (std::int64_t j = 64; j < 128; ++j) s.v(j, 1e9);
  const ref::Output out = s.run();
  EXPECT_EQ(out.o[0], 0);
  EXPECT_NEAR(out.lse[0], 10 + std::log(64.0), 1e-12);
  EXPECT_EQ(kept_keys(out.decisions, 0, 0), range(0, 64));
}

TEST(Drop, NaNNeverDrops) {
  ScoreCase s(1, 192, "exact/none64/s1/l0/d5");
  s.scores(0, 64, 10);
  s.score(70, kNaN);
  // The NaN is in unit 2; it stays in m, so that nothing after it is dropped either.
  EXPECT_EQ(units(s.run()), (std::vector{kPlain, kPlain, kPruned, kPruned, kPruned, kPruned}));
}

TEST(Drop, IsTestedBeforeRefine) {
  // Far below m, with a refine so wide that it would take every unit.
  ScoreCase s(1, 128, "nm24/none64/s1/l0/r100/d5");
  s.scores(0, 64, 10);
  EXPECT_EQ(units(s.run()), (std::vector{kPlain, kPlain, kDropped, kDropped}));
}

TEST(Drop, JudgesTheEstimate) {
  // The exact score of unit 2 would be 9, but the pruned query sees 0.
  ScoreCase s(1, 128, "nm24/none64/s1/l0/r2/d5");
  s.scores(0, 64, 10);
  s.hidden(70, 9);
  EXPECT_EQ(units(s.run()), (std::vector{kPlain, kPlain, kDropped, kDropped}));
}

TEST(Refine, AUnitNearTheMaximumIsRecomputedWithAllChannels) {
  ScoreCase s(1, 128, "nm24/none64/s1/l0/r2");
  s.scores(0, 64, 10);
  s.score(70, 9);  // unit 2: 9 >= 10 - 2
  s.hidden(70, -4);
  s.score(90, 7);  // unit 3: 7 < 8
  s.hidden(90, 50);
  const ref::Output out = s.run();
  EXPECT_EQ(units(out), (std::vector{kPlain, kPlain, kRefined, kPruned}));
  EXPECT_EQ(out.stats.refined, 1);
  const double sum = 64 * std::exp(10.0) + std::exp(5.0) + std::exp(7.0) + 62;
  EXPECT_NEAR(out.lse[0], std::log(sum), 1e-12);
}

TEST(Refine, TheThresholdItselfRefines) {
  ScoreCase s(1, 128, "nm24/none64/s1/l0/r2");
  s.scores(0, 64, 10);
  s.scores(64, 128, 8);
  EXPECT_EQ(units(s.run()), (std::vector{kPlain, kPlain, kRefined, kRefined}));
  s.scores(64, 128, 7.999);
  EXPECT_EQ(units(s.run()), (std::vector{kPlain, kPlain, kPruned, kPruned}));
}

TEST(Refine, OneRowIsEnough) {
  ScoreCase s(3, 128, "nm24/none64/s1/l0/r2");
  s.scores(0, 64, 10);
  // Channels 4 and 5 are those a marked row keeps of the second four.
  s.mark_row(1);
  s.marked_score(70, 9);
  const ref::Output out = s.run();
  for (std::int64_t row : {0, 1, 2}) {
    EXPECT_EQ(units(out, row), (std::vector{kPlain, kPlain, kRefined, kPruned})) << row;
  }
}

TEST(Refine, OnlyRowsOfThisCallAreAsked) {
  // The second call holds only row 0 of the first: nobody asks for the refinement.
  ScoreCase both(2, 128, "nm24/none64/s1/l0/r2");
  ScoreCase alone(1, 128, "nm24/none64/s1/l0/r2");
  for (ScoreCase* s : {&both, &alone}) {
    s->scores(0, 64, 10);
    s->marked_score(70, 9);
  }
  both.mark_row(1);
  EXPECT_EQ(units(both.run())[2], kRefined);
  EXPECT_EQ(units(alone.run())[2], kPruned);
}

TEST(Refine, TheFirstUnitIsRefinedWhenNothingWasSeen) {
  ScoreCase s(1, 64, "nm24/none64/s0/l0/r0");
  s.scores(0, 64, -50);
  EXPECT_EQ(units(s.run())[0], kRefined);
}

TEST(Refine, TheMaximumTakesTheRecomputedScores) {
  // Unit 0 is estimated at 10 and recomputed to 2: unit 1 at 1 is within 2 nats of that.
  ScoreCase s(1, 64, "nm24/none64/s0/l0/r2");
  s.scores(0, 64, 1);
  s.score(3, 10);
  s.hidden(3, -8);
  EXPECT_EQ(units(s.run()), (std::vector{kRefined, kRefined}));
  // Recomputed upwards, to 18: unit 1 at 1 is then far below, although the estimate was 1 as well.
  s.score(3, 1);
  s.hidden(3, 17);
  EXPECT_EQ(units(s.run()), (std::vector{kRefined, kPruned}));
}

TEST(Refine, TheMaximumElseTakesTheEstimate) {
  // Drop alone (no refine): unit 0 is estimated at 10, though exactly 2; unit 1 at 1 is dropped.
  ScoreCase s(1, 64, "nm24/none64/s0/l0/d5");
  s.scores(0, 64, 1);
  s.score(3, 10);
  s.hidden(3, -8);
  EXPECT_EQ(units(s.run()), (std::vector{kPruned, kDropped}));
}

TEST(Refine, HappensBeforeThePattern) {
  ScoreCase s(1, 128, "nm24/pair64/s1/l0/r2");
  s.scores(0, 64, 10);
  s.score(64, 10);
  s.score(96, 9);
  s.hidden(96, 2);  // exactly 11, larger than key 64
  const ref::Output out = s.run();
  EXPECT_TRUE(out.decisions.is_kept(0, 0, 96));
  EXPECT_FALSE(out.decisions.is_kept(0, 0, 64));
  ScoreCase without(1, 128, "nm24/pair64/s1/l0");
  without.score(64, 10);
  without.score(96, 9);
  without.hidden(96, 2);
  EXPECT_TRUE(without.run().decisions.is_kept(0, 0, 64));
}

TEST(Refine, NaNRefines) {
  ScoreCase s(1, 192, "nm24/none64/s1/l0/r2");
  s.scores(0, 64, 10);
  s.score(70, kNaN);  // unit 2; m is NaN from there on
  EXPECT_EQ(units(s.run()), (std::vector{kPlain, kPlain, kRefined, kRefined, kRefined, kRefined}));
}

TEST(Refine, ANaNQueryRowRefinesItsUnits) {
  ScoreCase s(100, 128, "nm24/none64/s1/l0/r2");
  s.scores(0, 64, 10);
  s.c.q.set(0, 80, 0, 1, kNaN);
  const ref::Output out = s.run();
  EXPECT_EQ(units(out, 0), (std::vector{kPlain, kPlain, kPruned, kPruned}));
  EXPECT_EQ(units(out, 99), (std::vector{kPlain, kPlain, kRefined, kRefined}));
  EXPECT_TRUE(std::isfinite(out.lse[99]));
  EXPECT_TRUE(std::isnan(out.lse[80]));
}

TEST(Stats, CountUnitsPrunedPairsAndLivePairs) {
  AttentionProblem problem = ScoreCase::problem_of(300, 300, "exact/pair64/s0/l0");
  problem.causal = true;
  ScoreCase s(problem);
  const ref::Output out = s.run();
  EXPECT_EQ(out.stats.live_pairs, 300 * 301 / 2);
  // Row block 0 prunes nothing; row block 1 (108 rows, two units) prunes blocks 0 to 2.
  EXPECT_EQ(out.stats.pruned_pairs, 108 * 192);
  EXPECT_EQ(out.stats.units, 2 * 3 * 2);
}

}  // namespace
}  // namespace twofour::test
