// Bounds for kernels that hold the weights exp(score - max) in 16 bits while they multiply V.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "ref/attention.h"
#include "support/random.h"

namespace twofour {
namespace {

constexpr std::int64_t N = 300, D = 64;

struct Data {
  std::vector<float> q = std::vector<float>(D), k = std::vector<float>(N * D),
                     v = std::vector<float>(N * D), o = std::vector<float>(D);
  AttentionProblem problem;
  AttentionArgs args;

  Data() {
    test::Random random(7);
    for (std::vector<float>* values : {&q, &k, &v}) {
      for (float& x : *values) x = static_cast<float>(random.normal());
    }
    problem.seqlen_q = 1;
    problem.seqlen_k = N;
    args.q = contiguous(static_cast<const void*>(q.data()), DType::kF32, {1, 1, 1, D});
    args.k = contiguous(static_cast<const void*>(k.data()), DType::kF32, {1, N, 1, D});
    args.v = contiguous(static_cast<const void*>(v.data()), DType::kF32, {1, N, 1, D});
    args.o = contiguous(o.data(), DType::kF32, {1, 1, 1, D});
  }

  /// The row with every weight off by half a unit of fp16 in the worst direction for each channel,
  /// beside an exact sum.
  std::vector<double> with_unlucky_weights() const {
    std::vector<double> scores(N), out(D);
    double max = -1e30, sum = 0;
    for (std::int64_t j = 0; j < N; ++j) {
      for (std::int64_t d = 0; d < D; ++d) scores[j] += double{q[d]} * k[j * D + d] / 8;
      max = std::max(max, scores[j]);
    }
    for (std::int64_t j = 0; j < N; ++j) {
      const double weight = std::exp(scores[j] - max);
      sum += weight;
      for (std::int64_t d = 0; d < D; ++d) {
        const double x = v[j * D + d];
        out[d] += weight * (1 + std::copysign(0x1p-11, x)) * x;
      }
    }
    for (double& x : out) x /= sum;
    return out;
  }
};

TEST(ReferenceWeights, SixteenBitsAreWithinTheirBoundAndNotWithinThatOfFp32) {
  Data data;
  ref::Options options;
  const auto fp32 = ref::attention(data.problem, data.args, options);
  options.weights = {0x1p-11, 0x1p-24};
  const auto fp16 = ref::attention(data.problem, data.args, options);
  ASSERT_TRUE(fp32.ok() && fp16.ok());
  EXPECT_EQ(fp32->o, fp16->o);
  EXPECT_EQ(fp32->lse_bound, fp16->lse_bound) << "the sum of the weights stays fp32";
  const std::vector<double> got = data.with_unlucky_weights();
  int outside = 0;
  for (std::int64_t d = 0; d < D; ++d) {
    const double error = std::fabs(got[d] - fp16->o[d]);
    EXPECT_LE(error, fp16->o_bound[d]) << d;
    EXPECT_LT(fp16->o_bound[d], 0x1p-9) << "a bound that says something";
    outside += error > fp32->o_bound[d];
  }
  EXPECT_EQ(outside, D);
}

}  // namespace
}  // namespace twofour
