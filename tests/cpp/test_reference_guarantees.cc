// What every row of the registry promises beyond values: ties, NaN, bits that do not depend on
// the batch, chunks and halves that add up.
#include <gtest/gtest.h>

#include <cmath>

#include "support/kernel_row.h"

namespace twofour::test {
namespace {

TEST_P(KernelRow, TiesFallAsTheRulesSay) {
  // Every key is one of two, so that most groups hold equal scores, with zeros of either sign: the
  // decisions must be those of the reference to the bit.
  for (float scale : {1.0f, -0.3f}) {
    AttentionProblem p = problem(70, 256, 16, 8, sparsity(64, 1, 0));
    p.scale = scale;
    AttentionCase c = zero_case(p);
    Random random(1300);
    fill_tensor(c.q, random, 1);
    double key[2][16];
    for (auto& channels : key) {
      for (double& channel : channels) channel = random.integer(0, 2) ? random.normal() : 0;
    }
    for (std::int64_t j = 0; j < 256; ++j) {
      const double* channels = key[random.integer(0, 1)];
      for (std::int64_t d = 0; d < 16; ++d) {
        const bool minus_zero = channels[d] == 0 && random.integer(0, 1);
        c.k.set(0, j, 0, d, minus_zero ? -0.0 : channels[d]);
      }
    }
    const Result<ref::Output> expected = ref::attention(c.problem, c.args());
    ASSERT_TRUE(expected.ok());
    ASSERT_EQ(expected->stats.pruned_pairs > 0, !c.problem.sparsity.is_dense());
    for (const Device& device : devices_) {
      const KernelOutput traced = run_kernel(c, trace_id(), device, true);
      ASSERT_TRUE(traced.status.ok()) << traced.status.message();
      EXPECT_TRUE(traced.decisions.kept == expected->decisions.kept)
          << describe(c) << " on " << device.arch;
    }
  }
}

TEST_P(KernelRow, DeadNaNsNeverMatterAndLiveOnesDoNotSpread) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  AttentionProblem p = problem(500, 500, 16, 16, sparsity(64, 1, 1, 1.0f, 6.0f));
  p.heads_q = p.heads_kv = 2;
  p.causal = true;
  p.window = {300, -1};
  AttentionCase c = zero_case(p);
  fill_case(c, Fill::kRandom, 1400);
  c.key_mask();
  for (std::int64_t j : {70, 71, 330, 499}) {
    c.set_mask(0, 0, 0, j, false);
    for (std::int64_t d = 0; d < 16; ++d) {
      c.k.set(0, j, 0, d, nan);
      c.v.set(0, j, 0, d, nan);
    }
  }
  EXPECT_EQ(check(c).compared, 500 * 2 * 17);  // nothing is tainted
  c.k.set(0, 250, 1, 3, nan);
  c.v.set(0, 400, 1, 3, nan);
  const Agreement agreement = check(c);
  EXPECT_GE(agreement.compared, (500 + 192) * 17);  // head 0, and row block 0 of head 1
  EXPECT_LT(agreement.compared, 500 * 2 * 17);
}

TEST_P(KernelRow, ANaNQueryIsNaNInItsRowAlone) {
  AttentionCase c = zero_case(problem(100, 256, 16, 16, sparsity(64, 1, 0, 1.0f, 6.0f)));
  fill_case(c, Fill::kRandom, 1500);
  c.q.set(0, 33, 0, 3, std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(check(c).compared, 99 * 17);
  const KernelOutput out = run_kernel(c, GetParam().id, devices_.front());
  EXPECT_TRUE(std::isnan(out.lse[33]));
  EXPECT_TRUE(std::isnan(out.o.get(0, 33, 0, 0)));
}

TEST_P(KernelRow, RepeatedRunsGiveTheSameBits) {
  AttentionProblem p = problem(300, 300, 64, 64, sparsity(64, 1, 1, 1.0f, 6.0f));
  p.causal = true;
  p.heads_q = 3;
  AttentionCase c = zero_case(p);
  fill_case(c, Fill::kPeaky, 1600);
  const KernelOutput first = run_kernel(c, GetParam().id, devices_.front());
  const int runs = is_reference() ? 3 : 100;
  for (int n = 1; n < runs; ++n) {
    const KernelOutput again = run_kernel(c, GetParam().id, devices_.front());
    ASSERT_TRUE(again.o.bytes() == first.o.bytes()) << n;
    ASSERT_EQ(again.lse, first.lse) << n;
  }
}

TEST_P(KernelRow, ASequenceGivesTheSameBitsAloneAndInABatch) {
  AttentionProblem p = problem(0, 0, 40, 24, sparsity(64, 1, 1, 1.0f, 6.0f));
  p.heads_q = 2;
  p.causal = true;
  const std::vector<std::int32_t> len_q = {200, 1, 65}, len_k = {200, 500, 300};
  AttentionCase packed = zero_packed(p, len_q, len_k);
  fill_case(packed, Fill::kRandom, 1700);
  const KernelOutput all = run_kernel(packed, GetParam().id, devices_.front());
  ASSERT_TRUE(all.status.ok()) << all.status.message();
  const std::int64_t rows = packed.problem.total_q;
  for (std::size_t b = 0; b < len_q.size(); ++b) {
    p.seqlen_q = len_q[b];
    p.seqlen_k = len_k[b];
    AttentionCase one = zero_case(p);
    for (std::int64_t i = 0; i < len_q[b]; ++i) {
      for (std::int64_t n = 0; n < 2 * 40; ++n) {
        one.q.set(0, i, n / 40, n % 40, packed.q.get(0, packed.cu_q[b] + i, n / 40, n % 40));
      }
    }
    for (std::int64_t j = 0; j < len_k[b]; ++j) {
      for (std::int64_t d = 0; d < 40; ++d) {
        one.k.set(0, j, 0, d, packed.k.get(0, packed.cu_k[b] + j, 0, d));
        if (d < 24) one.v.set(0, j, 0, d, packed.v.get(0, packed.cu_k[b] + j, 0, d));
      }
    }
    const KernelOutput alone = run_kernel(one, GetParam().id, devices_.front());
    ASSERT_TRUE(alone.status.ok()) << alone.status.message();
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t i = 0; i < len_q[b]; ++i) {
        const std::int64_t row = packed.cu_q[b] + i;
        ASSERT_EQ(alone.lse[h * len_q[b] + i], all.lse[h * rows + row]) << b << " " << i;
        for (std::int64_t d = 0; d < 24; ++d) {
          ASSERT_EQ(alone.o.get(0, i, h, d), all.o.get(0, row, h, d)) << b << " " << i;
        }
      }
    }
  }
}

TEST_P(KernelRow, AChunkedPrefillEqualsOneCall) {
  // Chunks end on multiples of 64, so that units vote as in one call.
  AttentionProblem p = problem(448, 448, 16, 16, sparsity(64, 1, 1, 1.0f));
  if (p.sparsity.qk == QKProduct::kInt8) GTEST_SKIP() << "int8 scales follow the keys of the call";
  p.causal = true;
  AttentionCase c = zero_case(p);
  fill_case(c, Fill::kRandom, 1800);
  const KernelOutput whole = run_kernel(c, GetParam().id, devices_.front());
  ASSERT_TRUE(whole.status.ok());
  const Result<ref::Output> bounds = ref::attention(c.problem, c.args());
  ASSERT_TRUE(bounds.ok());
  const std::int64_t ends[] = {64, 320, 384, 448};
  std::int64_t first = 0;
  for (std::int64_t end : ends) {
    p.seqlen_q = end - first;
    p.seqlen_k = end;
    AttentionCase chunk = zero_case(p);
    for (std::int64_t d = 0; d < 16; ++d) {
      for (std::int64_t i = first; i < end; ++i)
        chunk.q.set(0, i - first, 0, d, c.q.get(0, i, 0, d));
      for (std::int64_t j = 0; j < end; ++j) {
        chunk.k.set(0, j, 0, d, c.k.get(0, j, 0, d));
        chunk.v.set(0, j, 0, d, c.v.get(0, j, 0, d));
      }
    }
    const KernelOutput part = run_kernel(chunk, GetParam().id, devices_.front());
    ASSERT_TRUE(part.status.ok());
    for (std::int64_t i = first; i < end; ++i) {
      for (std::int64_t d = 0; d < 16; ++d) {
        ASSERT_NEAR(part.o.get(0, i - first, 0, d), whole.o.get(0, i, 0, d),
                    2 * bounds->o_bound[i * 16 + d])
            << i;
      }
    }
    first = end;
  }
}

TEST_P(KernelRow, LseMergesTwoHalvesOfTheKeys) {
  if (is_reference() || GetParam().config.score != ScorePattern::kNone) {
    GTEST_SKIP() << "halves are pruned apart";
  }
  AttentionProblem p = problem(30, 256, 16, 16, sparsity(64, 0, 0));
  AttentionCase c = zero_case(p);
  fill_case(c, Fill::kRandom, 1900);
  const KernelOutput whole = run_kernel(c, GetParam().id, devices_.front());
  p.seqlen_k = 128;
  std::vector<KernelOutput> halves;
  for (std::int64_t half : {0, 1}) {
    AttentionCase part = zero_case(p);
    part.q = c.q;
    for (std::int64_t j = 0; j < 128; ++j) {
      for (std::int64_t d = 0; d < 16; ++d) {
        part.k.set(0, j, 0, d, c.k.get(0, 128 * half + j, 0, d));
        part.v.set(0, j, 0, d, c.v.get(0, 128 * half + j, 0, d));
      }
    }
    halves.push_back(run_kernel(part, GetParam().id, devices_.front()));
    ASSERT_TRUE(halves.back().status.ok());
  }
  // int8: each half has its own mean and scales, so a score may differ by two quantisation steps.
  const double tolerance = p.sparsity.qk == QKProduct::kInt8 ? 0.1 : 1e-5;
  for (std::int64_t i = 0; i < 30; ++i) {
    const double a = halves[0].lse[i], b = halves[1].lse[i];
    const double merged = std::max(a, b) + std::log1p(std::exp(-std::fabs(a - b)));
    ASSERT_NEAR(merged, whole.lse[i], tolerance);
    for (std::int64_t d = 0; d < 16; ++d) {
      const double o = std::exp(a - merged) * halves[0].o.get(0, i, 0, d) +
                       std::exp(b - merged) * halves[1].o.get(0, i, 0, d);
      ASSERT_NEAR(o, whole.o.get(0, i, 0, d), tolerance);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, KernelRow, testing::ValuesIn(all_params()), param_name);

}  // namespace
}  // namespace twofour::test
