// Layouts, and rule 9: rows without keys and non-finite input.
#include <gtest/gtest.h>

#include <cmath>

#include "support/score_case.h"

namespace twofour::test {
namespace {

const double kNaN = std::numeric_limits<double>::quiet_NaN();
const double kInfinity = std::numeric_limits<double>::infinity();

void expect_same(const ref::Output& a, const ref::Output& b) {
  EXPECT_EQ(a.o, b.o);
  EXPECT_EQ(a.lse, b.lse);
  EXPECT_EQ(a.decisions.kept, b.decisions.kept);
  EXPECT_EQ(a.decisions.unit, b.decisions.unit);
}

AttentionProblem problem_of(std::int64_t batch, std::int64_t seqlen_q, std::int64_t seqlen_k,
                            std::int64_t heads_q, std::int64_t heads_kv,
                            const std::string& sparsity) {
  AttentionProblem problem = ScoreCase::problem_of(seqlen_q, seqlen_k, sparsity);
  problem.batch = batch;
  problem.heads_q = heads_q;
  problem.heads_kv = heads_kv;
  problem.head_dim_v = 16;
  return problem;
}

/// Copies the elements of one case into another of the same shape.
void copy_content(const AttentionCase& from, AttentionCase& to) {
  const auto copy = [](const Tensor& a, Tensor& b) {
    const auto& shape = a.shape();
    for (std::int64_t i = 0; i < shape[0] * shape[1] * shape[2] * shape[3]; ++i) {
      const std::int64_t d = i % shape[3], h = i / shape[3] % shape[2];
      const std::int64_t m = i / (shape[3] * shape[2]) % shape[1];
      const std::int64_t n = i / (shape[3] * shape[2] * shape[1]);
      b.set(n, m, h, d, a.get(n, m, h, d));
    }
  };
  copy(from.q, to.q);
  copy(from.k, to.k);
  copy(from.v, to.v);
}

TEST(Layouts, StridesDoNotMatter) {
  for (const char* sparsity : {"exact/pair64/s1/l0", "nm24/pair64/s0/l1/r1", "int8/none64/s0/l0"}) {
    AttentionProblem problem = problem_of(2, 70, 200, 4, 2, sparsity);
    problem.causal = true;
    AttentionCase plain = zero_case(problem);
    fill_case(plain, Fill::kRandom, 3);
    const ref::Output expected = run_reference(plain);
    for (Layout layout : {Layout::kBhmd, Layout::kFused}) {
      AttentionCase other = zero_case(problem, layout);
      copy_content(plain, other);
      expect_same(run_reference(other), expected);
    }
  }
}

TEST(Layouts, QueryHeadsShareKvHeadsInRuns) {
  // Head h uses KV head h / 3: the same as 6 heads with copies of K and V.
  AttentionCase shared = zero_case(problem_of(1, 5, 70, 6, 2, "exact/pair64/s0/l0"));
  fill_case(shared, Fill::kRandom, 4);
  AttentionCase copied = zero_case(problem_of(1, 5, 70, 6, 6, "exact/pair64/s0/l0"));
  for (std::int64_t h = 0; h < 6; ++h) {
    for (std::int64_t d = 0; d < 8; ++d) {
      for (std::int64_t i = 0; i < 5; ++i) copied.q.set(0, i, h, d, shared.q.get(0, i, h, d));
      for (std::int64_t j = 0; j < 70; ++j) copied.k.set(0, j, h, d, shared.k.get(0, j, h / 3, d));
    }
    for (std::int64_t d = 0; d < 16; ++d) {
      for (std::int64_t j = 0; j < 70; ++j) copied.v.set(0, j, h, d, shared.v.get(0, j, h / 3, d));
    }
  }
  expect_same(run_reference(shared), run_reference(copied));
}

TEST(Layouts, PackedSequencesAreThoseOfABatch) {
  const std::vector<std::int32_t> len_q = {5, 0, 130, 1}, len_k = {70, 5, 300, 1};
  for (const char* sparsity : {"exact/pair64/s1/l0", "int8/pair64/s0/l0", "nm24/none64/s0/l0/r1"}) {
    AttentionProblem problem = problem_of(1, 0, 0, 4, 2, sparsity);
    problem.causal = true;
    AttentionCase packed = zero_packed(problem, len_q, len_k);
    fill_case(packed, Fill::kRandom, 5);
    const ref::Output all = run_reference(packed);
    ASSERT_EQ(all.lse.size(), 4u * 136);
    for (std::size_t b = 0; b < len_q.size(); ++b) {
      problem.seqlen_q = len_q[b];
      problem.seqlen_k = len_k[b];
      AttentionCase one = zero_case(problem);
      for (std::int64_t h = 0; h < 4; ++h) {
        for (std::int64_t i = 0; i < len_q[b]; ++i) {
          for (std::int64_t d = 0; d < 8; ++d) {
            one.q.set(0, i, h, d, packed.q.get(0, packed.cu_q[b] + i, h, d));
          }
        }
      }
      for (std::int64_t g = 0; g < 2; ++g) {
        for (std::int64_t j = 0; j < len_k[b]; ++j) {
          for (std::int64_t d = 0; d < 16; ++d) {
            if (d < 8) one.k.set(0, j, g, d, packed.k.get(0, packed.cu_k[b] + j, g, d));
            one.v.set(0, j, g, d, packed.v.get(0, packed.cu_k[b] + j, g, d));
          }
        }
      }
      const ref::Output alone = run_reference(one);
      for (std::int64_t h = 0; h < 4; ++h) {
        for (std::int64_t i = 0; i < len_q[b]; ++i) {
          const std::int64_t row = packed.cu_q[b] + i;
          EXPECT_EQ(all.lse[h * 136 + row], alone.lse[h * len_q[b] + i]);
          EXPECT_EQ(kept_keys(all.decisions, h, row), kept_keys(alone.decisions, h, i));
          for (std::int64_t d = 0; d < 16; ++d) {
            EXPECT_EQ(all.o[(row * 4 + h) * 16 + d], alone.o[(i * 4 + h) * 16 + d]);
          }
        }
      }
    }
  }
}

TEST(Layouts, ABroadcastMaskEqualsAFullOne) {
  AttentionCase c = zero_case(problem_of(2, 70, 200, 4, 2, "exact/pair64/s1/l0"));
  fill_case(c, Fill::kRandom, 6);
  c.key_mask();
  for (std::int64_t j : {3, 64, 65, 150}) c.set_mask(1, 0, 0, j, false);
  const ref::Output broadcast = run_reference(c);
  c.full_mask();
  for (std::int64_t h = 0; h < 4; ++h) {
    for (std::int64_t i = 0; i < 70; ++i) {
      for (std::int64_t j : {3, 64, 65, 150}) c.set_mask(1, h, i, j, false);
    }
  }
  expect_same(broadcast, run_reference(c));
}

TEST(Layouts, SixteenBitInputsAreReadExactly) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    AttentionProblem problem = problem_of(1, 9, 140, 2, 1, "exact/pair64/s0/l0");
    problem.dtype = dtype;
    AttentionCase half = zero_case(problem);
    fill_case(half, Fill::kRandom, 7);
    problem.dtype = DType::kF32;
    AttentionCase full = zero_case(problem);
    copy_content(half, full);
    expect_same(run_reference(half), run_reference(full));
  }
}

TEST(Layouts, TheScaleDefaultsToOneOverRootD) {
  AttentionProblem problem = problem_of(1, 1, 2, 1, 1, "dense");
  problem.head_dim = 16;
  problem.scale.reset();
  AttentionCase c = zero_case(problem);
  c.q.set(0, 0, 0, 0, 4);
  c.k.set(0, 0, 0, 0, 1);
  c.k.set(0, 1, 0, 0, 1);
  EXPECT_NEAR(run_reference(c).lse[0], 1 + std::log(2.0), 1e-12);
}

TEST(Rows, WithoutLiveKeysGiveZeroAndMinusInfinity) {
  for (const char* sparsity : {"dense", "int8/pair64/s1/l0"}) {
    AttentionProblem problem = problem_of(1, 5, 2, 1, 1, sparsity);
    problem.causal = true;  // bottom-right: rows 0 to 2 lie before the first key
    AttentionCase c = zero_case(problem);
    fill_case(c, Fill::kRandom, 8);
    const ref::Output out = run_reference(c);
    for (std::int64_t i = 0; i < 5; ++i) {
      EXPECT_EQ(out.lse[i] == -kInfinity, i < 3) << i;
      for (std::int64_t d = 0; d < 16; ++d) {
        if (i < 3) {
          EXPECT_EQ(out.o[i * 16 + d], 0);
        } else {
          EXPECT_TRUE(std::isfinite(out.o[i * 16 + d]));
        }
      }
    }
  }
}

TEST(Rows, AnAllFalseMaskRowGivesZeroAndTheOthersAreUnharmed) {
  AttentionCase c = zero_case(problem_of(1, 4, 130, 1, 1, "exact/pair64/s1/l0"));
  fill_case(c, Fill::kRandom, 9);
  c.full_mask();
  for (std::int64_t j = 0; j < 130; ++j) c.set_mask(0, 0, 2, j, false);
  const ref::Output out = run_reference(c);
  EXPECT_EQ(out.lse[2], -kInfinity);
  EXPECT_EQ(out.o[2 * 16], 0);
  for (std::int64_t i : {0, 1, 3}) EXPECT_TRUE(std::isfinite(out.lse[i]));
}

TEST(Rows, NoKeysAtAllAndNoRowsAtAll) {
  AttentionCase keyless = zero_case(problem_of(2, 3, 0, 1, 1, "dense"));
  EXPECT_EQ(run_reference(keyless).lse, std::vector<double>(6, -kInfinity));
  AttentionCase rowless = zero_case(problem_of(2, 0, 70, 1, 1, "int8/pair64/s0/l0"));
  EXPECT_EQ(run_reference(rowless).o.size(), 0u);
}

TEST(Rows, KeysDeadForAWholeRowBlockNeverMatter) {
  for (const char* sparsity : {"exact/pair64/s1/l0", "nm24/pair64/s0/l0/r1", "int8/pair64/s0/l0"}) {
    AttentionProblem problem = problem_of(1, 500, 500, 1, 1, sparsity);
    problem.causal = true;
    problem.window = {250, -1};
    const auto run = [&](double dead) {
      AttentionCase c = zero_case(problem);
      fill_case(c, Fill::kRandom, 10);
      c.key_mask();
      for (std::int64_t j : {70, 71, 330, 499}) {
        c.set_mask(0, 0, 0, j, false);
        for (std::int64_t d = 0; d < 8; ++d) c.k.set(0, j, 0, d, dead);
        for (std::int64_t d = 0; d < 16; ++d) c.v.set(0, j, 0, d, dead);
      }
      return run_reference(c);
    };
    const ref::Output zero = run(0);
    for (double dead : {kNaN, kInfinity, 1e30}) {
      const ref::Output out = run(dead);
      expect_same(out, zero);
      for (std::uint8_t tainted : out.tainted) ASSERT_EQ(tainted, 0);
    }
  }
}

TEST(Rows, CausalityHidesNaNFromEarlierRowBlocks) {
  AttentionProblem problem = problem_of(1, 400, 400, 2, 2, "exact/pair64/s0/l0");
  problem.causal = true;
  const auto run = [&](double value) {
    AttentionCase c = zero_case(problem);
    fill_case(c, Fill::kRandom, 12);
    c.k.set(0, 250, 1, 0, value);
    c.v.set(0, 260, 1, 0, value);
    return run_reference(c);
  };
  const ref::Output clean = run(0), dirty = run(kNaN);
  for (std::int64_t i = 0; i < 400; ++i) {
    EXPECT_EQ(dirty.tainted[i], 0);                    // head 0 never
    EXPECT_EQ(dirty.tainted[400 + i], i >= 192) << i;  // head 1 from row block 1
    EXPECT_EQ(dirty.lse[i], clean.lse[i]);
    if (i < 250) {
      EXPECT_EQ(dirty.lse[400 + i], clean.lse[400 + i]) << i;
    } else {
      EXPECT_TRUE(std::isnan(dirty.lse[400 + i])) << i;
      EXPECT_TRUE(std::isnan(dirty.o[(i * 2 + 1) * 16])) << i;
    }
  }
}

TEST(Rows, ANonFiniteLiveKeyTakesItsWholeBlockInInt8) {
  AttentionProblem problem = problem_of(1, 400, 400, 1, 1, "int8/none128/s0/l0");
  problem.causal = true;
  AttentionCase c = zero_case(problem);
  fill_case(c, Fill::kRandom, 13);
  c.k.set(0, 255, 0, 0, kNaN);  // the last key of block 1 (128 .. 255), dead for row block 0
  const ref::Output out = run_reference(c);
  for (std::int64_t i = 0; i < 400; ++i) {
    EXPECT_EQ(std::isnan(out.lse[i]), i >= 128) << i;
    EXPECT_EQ(out.tainted[i], 1) << i;  // the block is live for every row block
  }
  c.problem.sparsity.qk = QKProduct::kExact;
  const ref::Output exact = run_reference(c);
  for (std::int64_t i = 0; i < 400; ++i) EXPECT_EQ(exact.tainted[i], i >= 192) << i;
}

TEST(Rows, ANaNQueryStaysInItsRow) {
  AttentionCase c = zero_case(problem_of(1, 5, 130, 1, 1, "exact/pair64/s0/l0"));
  fill_case(c, Fill::kRandom, 14);
  c.q.set(0, 3, 0, 5, kNaN);
  const ref::Output out = run_reference(c);
  for (std::int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(std::isnan(out.lse[i]), i == 3);
    EXPECT_EQ(std::isnan(out.o[i * 16]), i == 3);
    EXPECT_EQ(out.tainted[i], 0);
  }
}

TEST(Rows, HugeLogitsDoNotOverflow) {
  AttentionProblem problem = problem_of(1, 1, 3, 1, 1, "dense");
  AttentionCase c = zero_case(problem);
  c.q.set(0, 0, 0, 0, 1e4);
  for (std::int64_t j = 0; j < 3; ++j) {
    c.k.set(0, j, 0, 0, j == 1 ? 1 : -1);
    c.v.set(0, j, 0, 0, static_cast<double>(j));
  }
  const ref::Output out = run_reference(c);
  EXPECT_EQ(out.o[0], 1);
  EXPECT_EQ(out.lse[0], 1e4);
}

}  // namespace
}  // namespace twofour::test
