// Rule 5: the pruned query and the int8 product.
#include <gtest/gtest.h>

#include <cmath>

#include "ref/attention_operands.h"
#include "support/score_case.h"

namespace twofour::test {
namespace {

const double kNaN = std::numeric_limits<double>::quiet_NaN();

std::vector<int> kept_channels(const std::vector<double>& q, const std::vector<float>& w = {}) {
  std::vector<int> kept;
  const std::vector<bool> flags = ref::kept_channels(q, w.empty() ? nullptr : w.data());
  for (std::size_t d = 0; d < flags.size(); ++d) {
    if (flags[d]) kept.push_back(static_cast<int>(d));
  }
  return kept;
}

TEST(PrunedQuery, KeepsTwoOfFourByMagnitude) {
  EXPECT_EQ(kept_channels({1, -4, 3, 2, 0.1, 0.2, -0.3, 0}), (std::vector<int>{1, 2, 5, 6}));
}

TEST(PrunedQuery, TiesKeepTheLowerChannel) {
  EXPECT_EQ(kept_channels({1, -1, 1, 1}), (std::vector<int>{0, 1}));
  EXPECT_EQ(kept_channels({1, 2, -2, 2}), (std::vector<int>{1, 2}));
  EXPECT_EQ(kept_channels({0, -0.0, 0, 0}), (std::vector<int>{0, 1}));
}

TEST(PrunedQuery, NaNCountsAsLargest) {
  EXPECT_EQ(kept_channels({9, 8, kNaN, 1}), (std::vector<int>{0, 2}));
}

TEST(PrunedQuery, WeightsEnterTheComparison) {
  EXPECT_EQ(kept_channels({4, 3, 2, 1}, {1, 1, 1, 10}), (std::vector<int>{0, 3}));
}

TEST(PrunedQuery, IsUsedInPrunedBlocksOnly) {
  ScoreCase s(1, 128, "nm24/none64/s1/l0");
  s.scores(0, 128, 1);
  for (std::int64_t j = 0; j < 128; ++j) s.hidden(j, 10);
  const ref::Output out = s.run();
  // Block 0 is the sink and sees 11 everywhere, block 1 sees 1.
  EXPECT_NEAR(out.lse[0], std::log(64 * std::exp(11.0) + 64 * std::exp(1.0)), 1e-9);
}

TEST(PrunedQuery, WithoutTransformIsIdentityWithWeightOne) {
  ScoreCase s(1, 64, "nm24/none64/s0/l0");
  for (std::int64_t d = 0; d < 8; ++d) s.c.q.set(0, 0, 0, d, d + 1.0);
  for (std::int64_t j = 0; j < 64; ++j) {
    for (std::int64_t d = 0; d < 8; ++d) s.c.k.set(0, j, 0, d, 0.01 * (j + d));
  }
  double sum = 0;
  for (std::int64_t j = 0; j < 64; ++j) {
    double score = 0;
    for (std::int64_t d : {2, 3, 6, 7}) score += (d + 1.0) * static_cast<float>(0.01 * (j + d));
    sum += std::exp(score);
  }
  EXPECT_NEAR(s.run().lse[0], std::log(sum), 1e-9);
}

TEST(PrunedQuery, TransformChangesTheBasisOfBoth) {
  // T exchanges channels 0 and 2 and stretches q' there: the kept channels change, q'.k' does not.
  ScoreCase s(1, 128, "nm24/none64/s1/l0");
  s.c.problem.has_transform = true;
  s.c.t_q.assign(64, 0);
  s.c.t_k.assign(64, 0);
  for (std::int64_t d = 0; d < 8; ++d) {
    const std::int64_t to = d == 0 ? 2 : d == 2 ? 0 : d;
    s.c.t_q[d * 8 + to] = d == 2 ? 4 : 1;
    s.c.t_k[d * 8 + to] = d == 2 ? 0.25 : 1;
  }
  for (std::int64_t j = 0; j < 128; ++j) {
    s.c.k.set(0, j, 0, 0, 1);
    s.c.k.set(0, j, 0, 1, 2);
    s.c.k.set(0, j, 0, 2, 3);
  }
  // q = (1,1,1,0): q' = (4,1,1,0), k' = (0.75,2,1,0). Kept: channels 0 and 1, so 3 + 2 of 6.
  EXPECT_NEAR(s.run().lse[0], std::log(64 * std::exp(6.0) + 64 * std::exp(5.0)), 1e-9);
}

TEST(PrunedQuery, ProductsRoundToTheInputDtypeBeforeTheScale) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    AttentionProblem problem = ScoreCase::problem_of(1, 64, "nm24/none64/s0/l0");
    problem.dtype = dtype;
    problem.scale = 3.0f;
    problem.has_transform = true;
    ScoreCase s(problem);
    s.c.t_q.assign(64, 0);
    s.c.t_k.assign(64, 0);
    for (std::int64_t d = 0; d < 8; ++d) {
      s.c.t_q[d * 9] = 1.0f / 3;
      s.c.t_k[d * 9] = 3.0f * 1.001f;
    }
    for (std::int64_t j = 0; j < 64; ++j) s.c.k.set(0, j, 0, 0, 1);
    const double q = round_to(dtype, 1.0f / 3), k = round_to(dtype, 3.0f * 1.001f);
    EXPECT_NEAR(s.run().lse[0], 3 * q * k + std::log(64.0), 1e-12) << to_string(dtype);
  }
}

TEST(PrunedQuery, TransformIsTakenPerKvHead) {
  AttentionProblem problem = ScoreCase::problem_of(1, 64, "nm24/none64/s0/l0");
  problem.heads_q = 4;
  problem.heads_kv = 2;
  problem.has_transform = true;
  ScoreCase s(problem);
  s.c.t_q.assign(128, 0);
  s.c.t_k.assign(128, 0);
  for (std::int64_t d = 0; d < 8; ++d) {
    s.c.t_q[d * 9] = s.c.t_k[d * 9] = 1;
    s.c.t_q[64 + d * 9] = 2;  // not an inverse: shows which head's matrix was taken
    s.c.t_k[64 + d * 9] = 1;
  }
  for (std::int64_t g : {0, 1}) {
    for (std::int64_t j = 0; j < 64; ++j) s.c.k.set(0, j, g, 0, 1);
  }
  const ref::Output out = s.run();
  for (std::int64_t h = 0; h < 4; ++h) {
    EXPECT_NEAR(out.lse[h], (h < 2 ? 1 : 2) + std::log(64.0), 1e-12) << h;
  }
}

/// int8 cases: 2 rows, blocks of 64.
AttentionCase int8_case(std::int64_t seqlen_k, bool causal = false) {
  AttentionProblem problem = ScoreCase::problem_of(2, seqlen_k, "int8/none64/s0/l0");
  problem.causal = causal;
  return zero_case(problem);
}

PreparedK prepared(AttentionCase& c) {
  Result<PreparedK> out = ref::prepare_k(c.problem, c.args());
  EXPECT_TRUE(out.ok()) << out.status().message();
  return out.ok() ? *std::move(out) : PreparedK{};
}

TEST(Int8, ScaleIsAmaxOver127PerKeyBlock) {
  AttentionCase c = int8_case(128);
  c.k.set(0, 0, 0, 0, 6);
  c.k.set(0, 1, 0, 0, -6);
  c.k.set(0, 64, 0, 1, 0.5);
  c.k.set(0, 65, 0, 1, -0.5);
  const PreparedK k = prepared(c);
  EXPECT_EQ(k.mean, std::vector<float>(8, 0));
  EXPECT_EQ(k.scale, (std::vector<float>{6.0f / 127, 0.5f / 127}));
  EXPECT_EQ(k.codes[0], 127);
  EXPECT_EQ(k.codes[8], -127);
  EXPECT_EQ(k.codes[64 * 8 + 1], 127);
}

TEST(Int8, ScaleOfZeroBecomesOne) {
  AttentionCase c = int8_case(64);
  EXPECT_EQ(prepared(c).scale[0], 1);
  EXPECT_NEAR(run_reference(c).lse[0], std::log(64.0), 1e-12);  // Q is all zero as well
}

TEST(Int8, CodesRoundHalfToEven) {
  AttentionCase c = int8_case(64);
  const double values[] = {127, -127, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5};
  for (int j = 0; j < 8; ++j) c.k.set(0, j, 0, 0, values[j]);
  const PreparedK k = prepared(c);
  ASSERT_EQ(k.scale[0], 1);
  const int expected[] = {127, -127, 0, 0, 2, -2, 2, -2};
  for (int j = 0; j < 8; ++j) EXPECT_EQ(k.codes[j * 8], expected[j]) << j;
}

TEST(Int8, QueryCodesRoundHalfToEven) {
  AttentionCase c = int8_case(64);
  const double q[] = {127, 0.5, 1.5, 2.5, -0.5, -1.5, 3.5, 0};
  const double codes[] = {127, 0, 2, 2, 0, -2, 4, 0};
  for (int d = 0; d < 8; ++d) c.q.set(0, 0, 0, d, q[d]);
  const PreparedK k = prepared(c);
  AttentionProblem problem = c.problem;
  const AttentionArgs args = c.args();
  const ref::Inputs inputs(problem, args);
  const ref::Sequence s = inputs.sequence(0);
  const ref::Keys keys = ref::make_keys(inputs, s, 0, &k);
  const ref::Query query = ref::make_query(inputs, s, 0, 0, keys);
  EXPECT_EQ(query.scale, 1);
  EXPECT_EQ(query.value, std::vector<double>(codes, codes + 8));
}

TEST(Int8, QueryHasOneScalePerRow) {
  AttentionCase c = int8_case(64);
  c.q.set(0, 0, 0, 0, 2);
  c.q.set(0, 1, 0, 0, 0.001);
  c.k.set(0, 0, 0, 0, 1);
  c.k.set(0, 1, 0, 0, -1);
  // Both rows are exact: each has one channel, which gets code 127.
  const ref::Output out = run_reference(c);
  const auto expected = [](double q) { return std::log(62 + std::exp(q) + std::exp(-q)); };
  EXPECT_NEAR(out.lse[0], expected(2), 1e-6);
  EXPECT_NEAR(out.lse[1], expected(0.001), 1e-9);
}

TEST(Int8, MeanIsOverFiniteLiveKeys) {
  AttentionCase c = int8_case(128);
  c.key_mask();
  for (std::int64_t j = 0; j < 128; ++j) c.k.set(0, j, 0, 0, 10 + j % 2);
  for (std::int64_t j = 64; j < 128; ++j) c.k.set(0, j, 0, 0, 1000);
  for (std::int64_t j = 64; j < 128; ++j) c.set_mask(0, 0, 0, j, false);  // dead
  EXPECT_EQ(prepared(c).mean[0], 10.5f);
  c.k.set(0, 3, 0, 0, kNaN);  // live and non-finite: 31 of 63 keys are odd
  EXPECT_FLOAT_EQ(prepared(c).mean[0], static_cast<float>(10 + 31.0 / 63));
}

TEST(Int8, KeysDeadForEveryRowHaveCodeZero) {
  AttentionCase c = int8_case(64);
  c.key_mask();
  c.k.set(0, 0, 0, 0, 3);
  c.k.set(0, 1, 0, 0, -3);
  c.k.set(0, 5, 0, 0, 1e6);
  c.k.set(0, 6, 0, 0, kNaN);
  c.set_mask(0, 0, 0, 5, false);
  c.set_mask(0, 0, 0, 6, false);
  const PreparedK k = prepared(c);
  EXPECT_EQ(k.scale[0], 3.0f / 127);
  EXPECT_EQ(k.codes[0], 127);
  for (int d = 0; d < 8; ++d) EXPECT_EQ(k.codes[5 * 8 + d], 0);
  EXPECT_EQ(k.codes[6 * 8], 0);
}

TEST(Int8, AKeyIsLiveWhenSomeRowOfSomeHeadOfTheGroupSeesIt) {
  AttentionProblem problem = ScoreCase::problem_of(2, 64, "int8/none64/s0/l0");
  problem.heads_q = 2;
  AttentionCase c = zero_case(problem);
  c.full_mask();
  for (std::int64_t h : {0, 1}) {
    for (std::int64_t i : {0, 1}) c.set_mask(0, h, i, 9, h == 1 && i == 1);
  }
  c.k.set(0, 9, 0, 0, 64);
  EXPECT_EQ(prepared(c).mean[0], 1);
  c.set_mask(0, 1, 1, 9, false);
  EXPECT_EQ(prepared(c).mean[0], 0);
}

TEST(Int8, CausalKeysAfterTheLastRowAreDead) {
  AttentionCase c = int8_case(64, true);
  c.problem.align = Align::kTopLeft;  // rows at positions 0 and 1
  c.k.set(0, 1, 0, 0, 4);
  c.k.set(0, 2, 0, 0, 1000);
  EXPECT_EQ(prepared(c).mean[0], 2);
}

TEST(Int8, ANonFiniteLiveKeyMakesItsBlocksScaleNaN) {
  AttentionCase c = int8_case(192);
  for (std::int64_t j = 0; j < 192; ++j) c.k.set(0, j, 0, 0, j % 2 ? 1 : -1);
  c.k.set(0, 70, 0, 3, std::numeric_limits<double>::infinity());
  const PreparedK k = prepared(c);
  EXPECT_TRUE(std::isfinite(k.scale[0]));
  EXPECT_TRUE(std::isnan(k.scale[1]));
  EXPECT_TRUE(std::isfinite(k.scale[2]));
  EXPECT_TRUE(std::isfinite(k.mean[3]));
}

TEST(Int8, ANonFiniteQueryRowIsNaNAndNoOther) {
  for (double value : {kNaN, std::numeric_limits<double>::infinity()}) {
    AttentionCase c = int8_case(64);
    c.q.set(0, 1, 0, 2, value);
    const ref::Output out = run_reference(c);
    EXPECT_TRUE(std::isfinite(out.lse[0]));
    EXPECT_TRUE(std::isnan(out.lse[1]));
    EXPECT_TRUE(std::isnan(out.o[8]));
  }
}

TEST(Int8, TheLseGetsTheMeanBack) {
  AttentionProblem problem = ScoreCase::problem_of(1, 64, "int8/none64/s0/l0");
  problem.scale = 0.5f;
  AttentionCase c = zero_case(problem);
  for (std::int64_t j = 0; j < 64; ++j) {
    c.k.set(0, j, 0, 0, 20 + (j % 2 ? 1 : -1));
    c.v.set(0, j, 0, 0, j % 2);
  }
  c.q.set(0, 0, 0, 0, 2);
  const ref::Output out = run_reference(c);
  // K - mean is +-1 and q is 2: both are exact in int8, up to the fp32 rounding of the scales.
  EXPECT_NEAR(out.lse[0], 20 + std::log(32 * (std::exp(1.0) + std::exp(-1.0))), 1e-6);
  EXPECT_NEAR(out.o[0], 1 / (1 + std::exp(-2.0)), 1e-6);
}

TEST(Int8, IsUsedInPlainBlocksToo) {
  AttentionProblem problem = ScoreCase::problem_of(1, 64, "int8/pair64/s1/l0");
  AttentionCase c = zero_case(problem);
  c.q.set(0, 0, 0, 0, 1);
  c.k.set(0, 0, 0, 0, 127);
  c.k.set(0, 1, 0, 0, -127.25);  // codes 127 and -127 of a scale of about 1.002
  c.k.set(0, 2, 0, 0, 0.25);     // code 0
  const ref::Output out = run_reference(c);
  const PreparedK k = prepared(c);
  ASSERT_EQ(out.stats.units, 0);  // one sink block: plain
  double sum = 0;
  const double qs = static_cast<float>(1.0f / 127);
  for (int j = 0; j < 64; ++j) sum += std::exp(qs * k.scale[0] * 127.0 * k.codes[j * 8]);
  EXPECT_NEAR(out.lse[0], std::log(sum) + k.mean[0], 1e-9);
  EXPECT_EQ(k.codes[2 * 8], 0);
}

TEST(Int8, ThePreparedKIsTakenAsItIs) {
  AttentionCase c = int8_case(64);
  for (std::int64_t i : {0, 1}) c.q.set(0, i, 0, 0, 1);
  PreparedK k = prepared(c);
  k.scale[0] = 0.5f;
  k.codes[0] = 4;  // key 0, channel 0: a score of 2
  k.mean[0] = 7;
  ref::Options options;
  options.prepared = &k;
  const double expected = 7 + std::log(63 + std::exp(2.0));
  EXPECT_NEAR(run_reference(c, options).lse[0], expected, 1e-6);
  c.prepared = &k;
  EXPECT_NEAR(run_reference(c).lse[0], expected, 1e-6);
}

TEST(Int8, APreparedKOfAnotherShapeIsRefused) {
  AttentionCase c = int8_case(64), other = int8_case(128);
  const PreparedK k = prepared(other);
  ref::Options options;
  options.prepared = &k;
  const auto out = ref::attention(c.problem, c.args(), options);
  ASSERT_FALSE(out.ok());
  EXPECT_EQ(out.status().code(), Code::kInvalidArgument);
}

TEST(Int8, SequencesHaveTheirOwnMeanAndBlocks) {
  AttentionProblem problem = ScoreCase::problem_of(0, 0, "int8/none64/s0/l0");
  AttentionCase c = zero_packed(problem, {1, 2, 1}, {70, 0, 3});
  for (std::int64_t j = 0; j < 70; ++j) c.k.set(0, j, 0, 0, 5);
  for (std::int64_t j = 70; j < 73; ++j) c.k.set(0, j, 0, 0, -1);
  const PreparedK k = prepared(c);
  EXPECT_EQ(k.block_offset, (std::vector<std::int64_t>{0, 2, 2, 3}));
  EXPECT_EQ(k.blocks, 3);
  EXPECT_EQ(k.mean[0], 5);
  EXPECT_EQ(k.mean[8], 0);
  EXPECT_EQ(k.mean[16], -1);
}

}  // namespace
}  // namespace twofour::test
