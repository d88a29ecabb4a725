// The reference itself: cases worked out by hand, and the replay of decisions.
#include "ref/attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ref/everything_pruned.h"
#include "support/score_case.h"

namespace twofour::test {
namespace {

TEST(Reference, ThreeKeysByHand) {
  ScoreCase s(1, 3, "dense");
  s.score(0, std::log(1.0));
  s.score(1, std::log(2.0));
  s.score(2, std::log(5.0));
  s.v(0, 8);
  s.v(1, 16);
  s.v(2, -8);
  const ref::Output out = s.run();
  EXPECT_NEAR(out.o[0], (8 + 2 * 16 - 5 * 8) / 8.0, 1e-6);
  EXPECT_NEAR(out.lse[0], std::log(8.0), 1e-6);  // the logarithms were rounded to fp32
}

TEST(Reference, ScoresSumOverChannelsByHand) {
  AttentionProblem problem = ScoreCase::problem_of(1, 2, "dense");
  problem.scale = 0.5f;
  AttentionCase c = zero_case(problem);
  const double q[] = {1, -2, 3, 0.5, 0, 0, 0, 4};
  const double k[] = {2, 1, 1, -2, 7, 7, 7, 0.25};  // q.k = 2 - 2 + 3 - 1 + 1 = 3
  for (int d = 0; d < 8; ++d) {
    c.q.set(0, 0, 0, d, q[d]);
    c.k.set(0, 1, 0, d, k[d]);
  }
  c.v.set(0, 1, 0, 3, 1);
  const ref::Output out = run_reference(c);
  EXPECT_NEAR(out.o[3], std::exp(1.5) / (1 + std::exp(1.5)), 1e-15);
  EXPECT_NEAR(out.lse[0], std::log(1 + std::exp(1.5)), 1e-15);
}

TEST(Reference, RefusesAnInvalidProblem) {
  AttentionCase c = zero_case(ScoreCase::problem_of(1, 2, "dense"));
  c.problem.scale = std::numeric_limits<float>::infinity();
  const auto out = ref::attention(c.problem, c.args());
  ASSERT_FALSE(out.ok());
  EXPECT_EQ(out.status().code(), Code::kInvalidArgument);
}

TEST(Reference, TwoCallsGiveTheSame) {
  AttentionProblem problem = ScoreCase::problem_of(100, 300, "nm24/pair64/s1/l1/r2/d6");
  problem.heads_q = 3;
  problem.batch = 2;
  problem.scale.reset();
  AttentionCase c = zero_case(problem);
  fill_case(c, Fill::kPeaky, 1);
  const ref::Output a = run_reference(c), b = run_reference(c);
  EXPECT_EQ(a.o, b.o);
  EXPECT_EQ(a.lse, b.lse);
}

TEST(EverythingPruned, KeepsTwoLiveKeysOfEachAdjacentFour) {
  AttentionProblem problem = ScoreCase::problem_of(4, 10, "score");
  problem.causal = true;
  ScoreCase s(problem);
  const double scores[] = {1, 4, 3, 2, 9, 5, 6, 5, 0, 7};
  for (int j = 0; j < 10; ++j) s.score(j, scores[j]);
  const auto out = ref::everything_pruned(s.c.problem, s.c.args());
  ASSERT_TRUE(out.ok()) << out.status().message();
  // Row 0 sees keys 0 .. 6: the dead key 7 takes nobody's place. Row 3 sees all; ties keep key 5.
  EXPECT_EQ(kept_keys(out->decisions, 0, 0), (std::vector<std::int64_t>{1, 2, 4, 6}));
  EXPECT_EQ(kept_keys(out->decisions, 0, 3), (std::vector<std::int64_t>{1, 2, 4, 6, 8, 9}));
  const double sum = std::exp(4) + std::exp(3) + std::exp(9) + std::exp(6);
  EXPECT_NEAR(out->lse[0], std::log(sum), 1e-12);
}

TEST(EverythingPruned, KeepsALoneLiveKey) {
  AttentionProblem problem = ScoreCase::problem_of(5, 5, "score");
  problem.causal = true;
  ScoreCase s(problem);
  s.c.problem.has_mask = false;
  const auto out = ref::everything_pruned(s.c.problem, s.c.args());
  ASSERT_TRUE(out.ok());
  EXPECT_EQ(kept_keys(out->decisions, 0, 0), range(0, 1));
  EXPECT_EQ(kept_keys(out->decisions, 0, 4), (std::vector<std::int64_t>{0, 1, 4}));
}

/// A case with pruned, refined and dropped units, and its decisions.
class Replay : public testing::Test {
 protected:
  Replay() {
    AttentionProblem problem = ScoreCase::problem_of(100, 700, "nm24/pair64/s1/l1/r1/d3");
    problem.causal = true;
    problem.head_dim = 16;
    problem.scale = 0.5f;
    c_ = zero_case(problem);
    fill_case(c_, Fill::kRandom, 21);
    // Strong, faint and middling key blocks in turn.
    const double strength[] = {1, 0.02, 0.4};
    for (std::int64_t j = 0; j < 700; ++j) {
      for (std::int64_t d = 0; d < 16; ++d) {
        c_.k.set(0, j, 0, d, strength[j / 64 % 3] * c_.k.get(0, j, 0, d));
      }
    }
    own_ = run_reference(c_);
  }

  Status replay(const Decisions& decisions) {
    ref::Options options;
    options.replay = &decisions;
    auto out = ref::attention(c_.problem, c_.args(), options);
    if (out.ok()) replayed_ = *std::move(out);
    return out.status();
  }

  /// A row and half-block whose unit was decided so; fails the test when there is none.
  std::pair<std::int64_t, std::int64_t> find(UnitDecision decision) {
    for (std::int64_t u = own_.decisions.half_blocks - 1; u >= 0; --u) {
      for (std::int64_t row = 0; row < own_.decisions.rows; ++row) {
        if (own_.decisions.unit_at(0, row, u) == decision) return {row, u};
      }
    }
    ADD_FAILURE() << "no unit was decided " << int(decision);
    return {0, 0};
  }

  void set_unit(Decisions& decisions, std::int64_t row, std::int64_t u, UnitDecision decision) {
    const std::int64_t first = 600;  // the position of row 0
    for (std::int64_t other = 0; other < decisions.rows; ++other) {
      if ((first + other) / 64 == (first + row) / 64) decisions.unit_at(0, other, u) = decision;
    }
  }

  void expect_refused(const Decisions& decisions, const std::string& part) {
    const Status status = replay(decisions);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }

  AttentionCase c_;
  ref::Output own_, replayed_;
};

TEST_F(Replay, OwnDecisionsAreAdmissibleAndGiveTheSame) {
  ASSERT_GT(own_.stats.refined, 0);
  ASSERT_GT(own_.stats.dropped, 0);
  ASSERT_GT(own_.stats.units, own_.stats.refined + own_.stats.dropped);
  const Status status = replay(own_.decisions);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(replayed_.o, own_.o);
  EXPECT_EQ(replayed_.lse, own_.lse);
  EXPECT_EQ(replayed_.stats.refined, own_.stats.refined);
  EXPECT_EQ(replayed_.max_bound_used, 0);
}

TEST_F(Replay, AFlippedPairIsNoticed) {
  const auto [row, u] = find(UnitDecision::kPruned);
  Decisions flipped = own_.decisions;
  const std::int64_t low = u / 2 * 64 + u % 2 * 16, high = low + 32;
  const std::int64_t from = flipped.is_kept(0, row, low) ? low : high;
  const std::int64_t to = from == low ? high : low;
  flipped.kept[row * flipped.words + from / 64] &= ~(std::uint64_t{1} << (from % 64));
  flipped.keep(0, row, to);
  expect_refused(flipped, "head 0 row " + std::to_string(row) + " kept key " + std::to_string(to));
  EXPECT_NE(replay(flipped).message().find("bound"), std::string::npos);
}

TEST_F(Replay, AMissingOrExtraKeyIsNoticed) {
  const auto [row, u] = find(UnitDecision::kRefined);
  Decisions missing = own_.decisions;
  const std::int64_t low = u / 2 * 64 + u % 2 * 16;
  missing.kept[row * missing.words + low / 64] &= ~(std::uint64_t{1} << (low % 64));
  missing.kept[row * missing.words + low / 64] &= ~(std::uint64_t{1} << ((low + 32) % 64));
  expect_refused(missing, "expected 1 kept, got 0");
  Decisions extra = own_.decisions;
  extra.keep(0, row, low);
  extra.keep(0, row, low + 32);
  expect_refused(extra, "expected 1 kept, got 2");
}

TEST_F(Replay, AKeyKeptInADroppedUnitIsNoticed) {
  const auto [row, u] = find(UnitDecision::kDropped);
  Decisions extra = own_.decisions;
  extra.keep(0, row, u / 2 * 64 + u % 2 * 16);
  expect_refused(extra, "expected 0 kept, got 1");
}

TEST_F(Replay, AUnitWronglyDroppedIsNoticed) {
  const auto [row, u] = find(UnitDecision::kPruned);
  Decisions wrong = own_.decisions;
  set_unit(wrong, row, u, UnitDecision::kDropped);
  expect_refused(wrong, " unit " + std::to_string(u) + " was dropped");
}

TEST_F(Replay, AUnitWronglyKeptIsNoticed) {
  const auto [row, u] = find(UnitDecision::kDropped);
  Decisions wrong = own_.decisions;
  set_unit(wrong, row, u, UnitDecision::kPruned);
  expect_refused(wrong, " unit " + std::to_string(u) + " was not dropped");
}

TEST_F(Replay, AUnitWronglyRefinedIsNoticed) {
  const auto [row, u] = find(UnitDecision::kPruned);
  Decisions wrong = own_.decisions;
  set_unit(wrong, row, u, UnitDecision::kRefined);
  expect_refused(wrong, " unit " + std::to_string(u) + " was refined");
}

TEST_F(Replay, AUnitWronglyNotRefinedIsNoticed) {
  const auto [row, u] = find(UnitDecision::kRefined);
  Decisions wrong = own_.decisions;
  set_unit(wrong, row, u, UnitDecision::kPruned);
  expect_refused(wrong, " unit " + std::to_string(u) + " was not refined");
}

TEST_F(Replay, RowsOfAUnitThatDisagreeAreNoticed) {
  const auto [row, u] = find(UnitDecision::kRefined);
  Decisions wrong = own_.decisions;
  wrong.unit_at(0, row + 1, u) = UnitDecision::kPruned;
  expect_refused(wrong, "expected one decision for all rows of the unit");
}

TEST_F(Replay, APlainBlockIsNotForPruning) {
  Decisions wrong = own_.decisions;
  ASSERT_EQ(wrong.unit_at(0, 5, 0), UnitDecision::kPlain);  // the sink
  wrong.unit_at(0, 5, 0) = UnitDecision::kPruned;
  expect_refused(wrong, "expected plain");
  Decisions missing = own_.decisions;
  missing.kept[5 * missing.words] &= ~std::uint64_t{1};
  expect_refused(missing, "key 0 in a block that is not pruned: expected kept");
  Decisions dead = own_.decisions;
  dead.keep(0, 5, 699);  // row 5 is at position 605
  expect_refused(dead, "key 699 in a block that is not pruned: expected not kept");
}

TEST_F(Replay, ADecisionTheModeCannotMakeIsNoticed) {
  c_.problem.sparsity = *parse_sparsity("nm24/pair64/s1/l1");
  own_ = run_reference(c_);
  const auto [row, u] = find(UnitDecision::kPruned);
  Decisions wrong = own_.decisions;
  set_unit(wrong, row, u, UnitDecision::kRefined);
  expect_refused(wrong, "expected a decision that nm24/pair64/s1/l1 can make");
}

TEST_F(Replay, DecisionsOfAnotherShapeAreRefused) {
  AttentionProblem other = c_.problem;
  other.seqlen_q = 99;
  expect_refused(make_decisions(other), "expected decisions of 100 rows");
}

// Two keys whose scores differ by less than fp32 can tell: either may be kept.
TEST(NearTies, AreAdmissibleEitherWayWithinTheBound) {
  AttentionProblem problem = ScoreCase::problem_of(1, 64, "exact/pair64/s0/l0");
  AttentionCase c = zero_case(problem);
  for (std::int64_t d = 0; d < 8; ++d) {
    c.q.set(0, 0, 0, d, 1);
    c.k.set(0, 0, 0, d, 1);
    c.k.set(0, 32, 0, d, 1);
  }
  // The bound of each score: 2 * (8 + 8) * 2^-24 * 8 = 1.53e-5.
  const auto status = [&](double difference, double* used) {
    c.k.set(0, 32, 0, 7, static_cast<double>(static_cast<float>(1 + difference)));
    Decisions wrong = run_reference(c).decisions;
    EXPECT_TRUE(wrong.is_kept(0, 0, 32));
    wrong.kept[0] = (wrong.kept[0] & ~(std::uint64_t{1} << 32)) | 1u;
    ref::Options options;
    options.replay = &wrong;
    const auto out = ref::attention(c.problem, c.args(), options);
    if (out.ok()) *used = out->max_bound_used;
    return out.status();
  };
  double used = 0;
  EXPECT_TRUE(status(2e-5, &used).ok());
  EXPECT_NEAR(used, 2e-5 / 3.05e-5, 0.02);
  EXPECT_FALSE(status(4e-5, &used).ok());
}

TEST(NearTies, AThresholdMayFallEitherWayWithinTheBound) {
  ScoreCase s(1, 128, "exact/none64/s1/l0/d5");
  const auto status = [&](float score, UnitDecision claimed) {
    s.scores(0, 64, 10);
    s.scores(64, 128, score);
    Decisions decisions = s.run().decisions;
    EXPECT_NE(decisions.unit_at(0, 0, 2), claimed);
    for (std::int64_t u : {2, 3}) decisions.unit_at(0, 0, u) = claimed;
    decisions.kept[1] = claimed == UnitDecision::kDropped ? 0 : ~std::uint64_t{0};
    ref::Options options;
    options.replay = &decisions;
    return ref::attention(s.c.problem, s.c.args(), options).status();
  };
  EXPECT_TRUE(status(5.00001f, UnitDecision::kDropped).ok());
  EXPECT_FALSE(status(5.0001f, UnitDecision::kDropped).ok());
  EXPECT_TRUE(status(4.99999f, UnitDecision::kPruned).ok());
  EXPECT_FALSE(status(4.9999f, UnitDecision::kPruned).ok());
}

TEST(NearTies, DoubtfulQueryChannelsAreCounted) {
  AttentionProblem problem = ScoreCase::problem_of(2, 64, "nm24/none64/s0/l0");
  problem.has_transform = true;
  AttentionCase c = zero_case(problem);
  c.t_q.assign(64, 0);
  c.t_k.assign(64, 0);
  for (std::int64_t d = 0; d < 8; ++d) c.t_q[d * 9] = c.t_k[d * 9] = 1;
  for (std::int64_t d = 0; d < 8; ++d) {
    c.q.set(0, 0, 0, d, 1 + 0.1 * static_cast<double>(d));
    c.q.set(0, 1, 0, d, 1 + 1e-7 * static_cast<double>(d));  // closer than the sum rounds
  }
  EXPECT_EQ(run_reference(c).ambiguous_query_groups, 2);
  c.problem.has_transform = false;  // q' is q: nothing rounds
  EXPECT_EQ(run_reference(c).ambiguous_query_groups, 0);
}

}  // namespace
}  // namespace twofour::test
