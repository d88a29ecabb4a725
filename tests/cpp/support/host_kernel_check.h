// Rows of a kernel family on the host over calls of many kinds, against the reference, which
// replays the decisions that the debugging row writes. Warps run in an order that differs from call
// to call and copies arrive late, so that a missing wait shows.
#pragma once

#include "cuda/variants.h"
#include "host_call.h"
#include "ref/attention.h"

namespace twofour::test {

/// The row of variant `variant` of kVariants.
template <class Kernels>
constexpr int row_of(DType dtype, int head_dim, int variant) {
  constexpr auto& kRows = Kernels::kRows;
  for (int row = 0; row < static_cast<int>(kRows.size()); row += cuda::kVariantCount)
    if (kRows[row].dtype == dtype && kRows[row].head_dim == head_dim && !kRows[row].trace)
      return row + variant;
  return -1;
}

// Fibers are slow under AddressSanitizer, which is there for the odd shapes.
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// A row and its debugging row over calls of many kinds.
template <class Kernels, int kRow>
class Checked {
  static constexpr auto& kRows = Kernels::kRows;
  static constexpr auto config = kRows[kRow];
  static constexpr int kTraced = kRow + static_cast<int>(kRows.size()) / 2;
  static_assert(!config.trace && kRows[kTraced].trace &&
                kRows[kTraced].head_dim == config.head_dim);

 public:
  AttentionProblem problem(std::int64_t m, std::int64_t n, int heads_q = 1, int heads_kv = 1) {
    AttentionProblem p;
    p.dtype = config.dtype;
    p.seqlen_q = m;
    p.seqlen_k = n;
    p.heads_q = heads_q;
    p.heads_kv = heads_kv;
    p.head_dim = p.head_dim_v = config.head_dim;
    p.sparsity = {config.qk, config.score, config.block, 1, 1, {}, {}};
    if (p.sparsity.is_dense()) p.sparsity = Sparsity{};
    if (config.refine) p.sparsity.refine = 1.0f;
    if (config.drop) p.sparsity.drop = config.refine ? 8.0f : 4.0f;
    p.sparsity.block = config.block;
    return p;
  }

  void check(AttentionCase c, Fill fill) {
    if (testing::Test::HasFailure()) return;
    SCOPED_TRACE(std::string(to_string(fill)) + " M" + std::to_string(c.problem.seqlen_q) + " N" +
                 std::to_string(c.problem.seqlen_k));
    fill_case(c, fill, ++seed_);
    for (std::int64_t j = 0; j < c.k.shape()[1] && config.decides(); ++j) {
      // Key blocks of rising and falling strength, so that every kind of decision occurs.
      const double strength[] = {2.5, 0.02, 1};
      for (std::int64_t b = 0; b < c.k.shape()[0]; ++b)
        for (std::int64_t h = 0; h < c.k.shape()[2]; ++h)
          for (std::int64_t d = 0; d < c.k.shape()[3]; ++d)
            c.k.set(b, j, h, d, strength[j / config.block % 3] * c.k.get(b, j, h, d));
    }
    PreparedK prepared;
    if (config.qk == QKProduct::kInt8) {
      Result<PreparedK> made = ref::prepare_k(c.problem, c.args());
      ASSERT_TRUE(made.ok()) << made.status().message();
      prepared = *std::move(made);
      c.prepared = &prepared;
    }
    const KernelOutput plain = Kernels::template run<kRow>(c, &prepared, seed_);
    const KernelOutput traced = Kernels::template run<kTraced>(c, &prepared, ~seed_);
    if (layout::key_parts(c.problem) == 1) {
      EXPECT_TRUE(plain.o.bytes() == traced.o.bytes()) << "tracing changed the output";
    }
    ref::Options options;
    options.replay = &traced.decisions;
    options.weights = ref::weights_in(config.dtype);
    const Result<ref::Output> expected = ref::attention(c.problem, c.args(), options);
    ASSERT_TRUE(expected.ok()) << expected.status().message();
    for (const KernelOutput* out : {&plain, &traced}) expect_counts(out->stats, expected->stats);
    units_ += expected->stats.units;
    refined_ += expected->stats.refined;
    dropped_ += expected->stats.dropped;
    EXPECT_GT(compare_with_reference(c, plain, *expected).compared, 0);
  }

  void check_all() {
    SCOPED_TRACE("row " + std::to_string(kRow));
    check(zero_case(problem(1, 1)), Fill::kRandom);
    AttentionProblem window = problem(130, 4 * config.block + 9);
    window.window = {300, 40};
    window.head_dim_v = 40;
    check(zero_case(window), Fill::kHostile);
    AttentionProblem packed = problem(0, 0);
    packed.causal = true;
    check(zero_packed(packed, {5, 0, 200}, {2 * config.block + 3, 7, 3 * config.block}),
          Fill::kRandom);
    if (kSanitized) return;
    check(zero_case(problem(70, 3 * config.block + 40)), Fill::kPeaky);
    check(zero_case(problem(300, 2 * config.block + 5)), Fill::kFlat);
    AttentionProblem causal = problem(200, 4 * config.block, 2, 1);
    causal.causal = true;
    check(zero_case(causal), Fill::kRandom);
    if (!config.decides()) check_split();
    if (testing::Test::HasFailure()) return;
    EXPECT_EQ(units_ > 0, config.score == ScorePattern::kPair);
    EXPECT_EQ(refined_ > 0, config.refine);
    EXPECT_EQ(dropped_ > 0, config.drop);
    EXPECT_TRUE(!config.decides() || refined_ + dropped_ < units_);
  }

 private:
  /// Keys in parts: more of them than there are key blocks, rows that see no key of some part, and
  /// row tiles whose row blocks are split at different keys.
  void check_split() {
    const auto split = [this](AttentionProblem p, int parts, Fill fill) {
      p.key_splits = parts;
      check(zero_case(p), fill);
    };
    split(problem(1, 3), 5, Fill::kRandom);
    split(problem(70, 5 * config.block + 40), 2, Fill::kPeaky);
    AttentionProblem causal = problem(200, 4 * config.block, 2, 1);
    causal.causal = true;
    causal.batch = 2;
    split(causal, 3, Fill::kRandom);
    causal.batch = 1;
    causal.seqlen_q = 5 * config.block;  // the first rows see nothing
    split(causal, 2, Fill::kFlat);
    AttentionProblem window = problem(130, 5 * config.block + 9);
    window.window = {400, 40};
    window.head_dim_v = 40;
    split(window, 3, Fill::kHostile);
  }

  // Others with --gtest_shuffle, at each repetition.
  std::uint64_t seed_ = 10 * kRow + 1000 * static_cast<std::uint64_t>(
                                               testing::UnitTest::GetInstance()->random_seed());
  std::int64_t units_ = 0, refined_ = 0, dropped_ = 0;
};

template <class Kernels, DType kType, int kHeadDim, int... kVariant>
void check_variants() {
  (Checked<Kernels, row_of<Kernels>(kType, kHeadDim, kVariant)>().check_all(), ...);
}

}  // namespace twofour::test
