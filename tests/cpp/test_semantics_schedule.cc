// Rules 1 to 3: which pairs are live, and which blocks are pruned.
#include <gtest/gtest.h>

#include "layout/pair_scores.h"
#include "layout/schedule.h"
#include "ref/attention_schedule.h"
#include "support/score_case.h"

namespace twofour::test {
namespace {

using ref::Block;

/// The schedule of a row block as letters: '.' empty, 'p' plain, 'x' pruned.
std::string schedule(AttentionCase& c, std::int64_t row_block, std::int64_t head = 0) {
  AttentionProblem problem = c.problem;
  problem.sparsity = resolved(problem.sparsity, problem.head_dim);
  const AttentionArgs args = c.args();
  const ref::Inputs inputs(problem, args);
  std::string text;
  for (Block kind : ref::block_schedule(inputs, inputs.sequence(0), head, row_block)) {
    text += kind == Block::kEmpty ? '.' : kind == Block::kPlain ? 'p' : 'x';
  }
  return text;
}

AttentionCase case_of(std::int64_t seqlen_q, std::int64_t seqlen_k, const std::string& sparsity,
                      bool causal, Window window = {}, Align align = Align::kBottomRight) {
  AttentionProblem problem = ScoreCase::problem_of(seqlen_q, seqlen_k, sparsity);
  problem.causal = causal;
  problem.window = window;
  problem.align = align;
  return zero_case(problem);
}

TEST(Positions, BottomRightIsTheDefaultWithCausal) {
  AttentionCase c = case_of(2, 5, "dense", true);
  const ref::Output out = run_reference(c);
  EXPECT_EQ(kept_keys(out.decisions, 0, 0), range(0, 4));
  EXPECT_EQ(kept_keys(out.decisions, 0, 1), range(0, 5));
}

TEST(Positions, TopLeftStartsAtZero) {
  AttentionCase c = case_of(2, 5, "dense", true, {}, Align::kTopLeft);
  const ref::Output out = run_reference(c);
  EXPECT_EQ(kept_keys(out.decisions, 0, 0), range(0, 1));
  EXPECT_EQ(kept_keys(out.decisions, 0, 1), range(0, 2));
}

TEST(Positions, WithoutCausalRowsStartAtZero) {
  AttentionCase c = case_of(2, 6, "dense", false, {1, 2}, Align::kBottomRight);
  const ref::Output out = run_reference(c);
  EXPECT_EQ(kept_keys(out.decisions, 0, 0), range(0, 3));
  EXPECT_EQ(kept_keys(out.decisions, 0, 1), range(0, 4));
}

TEST(Positions, WindowIsMeasuredFromThePosition) {
  AttentionCase c = case_of(3, 10, "dense", true, {2, -1});
  const ref::Output out = run_reference(c);
  EXPECT_EQ(kept_keys(out.decisions, 0, 0), range(5, 8));  // position 7
  EXPECT_EQ(kept_keys(out.decisions, 0, 2), range(7, 10));
}

TEST(Positions, AWindowSideOfMinusOneIsOpen) {
  AttentionCase right = case_of(4, 8, "dense", false, {-1, 1});
  EXPECT_EQ(kept_keys(run_reference(right).decisions, 0, 3), range(0, 5));
  AttentionCase left = case_of(4, 8, "dense", false, {1, -1});
  EXPECT_EQ(kept_keys(run_reference(left).decisions, 0, 3), range(2, 8));
}

TEST(Positions, TheWidestWindowIsNoWindow) {
  const std::int64_t widest = std::numeric_limits<std::int64_t>::max();
  AttentionCase c = case_of(7, 3, "dense", true, {widest, widest});  // positions from -4
  const ref::Output out = run_reference(c);
  EXPECT_EQ(kept_keys(out.decisions, 0, 3), range(0, 0));
  EXPECT_EQ(kept_keys(out.decisions, 0, 6), range(0, 3));
}

TEST(Positions, MaskRemovesFurtherPairs) {
  AttentionCase c = case_of(2, 4, "dense", true);
  c.full_mask();
  c.set_mask(0, 0, 1, 1, false);
  c.set_mask(0, 0, 0, 3, true);  // not live by causality: a mask revives nothing
  const ref::Output out = run_reference(c);
  EXPECT_EQ(kept_keys(out.decisions, 0, 0), range(0, 3));
  EXPECT_EQ(kept_keys(out.decisions, 0, 1), (std::vector<std::int64_t>{0, 2, 3}));
}

TEST(Schedule, WithoutMasksEverythingWholeIsPruned) {
  AttentionCase c = case_of(10, 256, "exact/pair64/s0/l0", false);
  EXPECT_EQ(schedule(c, 0), "xxxx");
}

TEST(Schedule, ADenseSparsityPrunesNothing) {
  for (const char* dense : {"dense", "exact/none/s0"}) {
    AttentionCase c = case_of(200, 512, dense, false);
    EXPECT_EQ(schedule(c, 0), "pppp");
    const ref::Output out = run_reference(c);
    EXPECT_EQ(out.stats.units, 0);
    EXPECT_EQ(out.stats.pruned_pairs, 0);
    EXPECT_EQ(out.stats.live_pairs, 200 * 512);
    EXPECT_EQ(kept_keys(out.decisions, 0, 199), range(0, 512));
    for (UnitDecision unit : out.decisions.unit) EXPECT_EQ(unit, UnitDecision::kPlain);
  }
  // Dropping is pruning: its units are decided one by one.
  AttentionCase drops = case_of(10, 512, "exact/none/s1/d9", false);
  EXPECT_EQ(schedule(drops, 0), "pxxx");
  AttentionCase int8 = case_of(10, 512, "int8/none/s0", false);
  EXPECT_EQ(schedule(int8, 0), "xxxx");
}

TEST(Schedule, RaggedLastBlockIsPlain) {
  AttentionCase c = case_of(10, 200, "exact/pair64/s0/l0", false);
  EXPECT_EQ(schedule(c, 0), "xxxp");
  const ref::Output out = run_reference(c);
  for (std::int64_t j : range(192, 200)) EXPECT_TRUE(out.decisions.is_kept(0, 3, j)) << j;
  EXPECT_EQ(kept_keys(out.decisions, 0, 3).size(), 3u * 32 + 8);
}

TEST(Schedule, DiagonalBlocksArePlain) {
  AttentionCase c = case_of(576, 576, "exact/pair64/s0/l0", true);
  EXPECT_EQ(schedule(c, 0), "ppp......");
  EXPECT_EQ(schedule(c, 1), "xxxppp...");
  EXPECT_EQ(schedule(c, 2), "xxxxxxppp");
}

TEST(Schedule, DiagonalBlocksArePlainWithAWindowThatCoversThemWhole) {
  AttentionCase c = case_of(192, 576, "exact/pair64/s0/l0", false, {1000, 1000});
  EXPECT_EQ(schedule(c, 0), "pppxxxxxx");
}

TEST(Schedule, DiagonalIsJudgedOver192Positions) {
  // Rows at positions 64 .. 127 only, but the row block reaches position 191: block 2 is diagonal
  // and block 0 holds positions of the row block as well.
  AttentionCase c = case_of(64, 128, "exact/pair64/s0/l0", true);
  EXPECT_EQ(schedule(c, 0), "pp");
  // One row at position 383, the last of its row block: blocks 3 to 5 are diagonal.
  AttentionCase last = case_of(1, 384, "exact/pair64/s0/l0", true);
  EXPECT_EQ(schedule(last, 1), "xxxppp");
}

TEST(Schedule, LivenessIsJudgedOver192Positions) {
  // The one row, at position 192, sees all of blocks 1 and 2; position 383 sees nothing below 233.
  AttentionCase c = case_of(1, 193, "exact/pair64/s0/l0", true, {150, -1});
  EXPECT_EQ(schedule(c, 1), "pppp");
  // The one row, at position 0, sees keys up to 384; position 191 sees the last block too.
  AttentionCase right = case_of(1, 576, "exact/pair64/s0/l0", false, {-1, 384});
  EXPECT_EQ(schedule(right, 0), "pppxxxppp");
}

TEST(Schedule, WindowEdgeIsPlain) {
  // Row block 3 (576 .. 767) with 400 keys to the left: position 576 sees from 176, 767 from 367.
  AttentionCase c = case_of(768, 768, "exact/pair64/s0/l0", true, {400, -1});
  EXPECT_EQ(schedule(c, 3), "..ppppxxxppp");
}

TEST(Schedule, SinksAreTheFirstLiveBlocks) {
  AttentionCase c = case_of(10, 320, "exact/pair64/s2/l0", false);
  EXPECT_EQ(schedule(c, 0), "ppxxx");
  // The first block with a live pair is block 2 here; it is the sink, although partly live.
  AttentionCase w = case_of(768, 768, "exact/pair64/s1/l0", true, {400, -1});
  EXPECT_EQ(schedule(w, 3), "..ppppxxxppp");
  w.problem.sparsity.sink_blocks = 5;
  EXPECT_EQ(schedule(w, 3), "..pppppxxppp");
}

TEST(Schedule, SinksNeverReviveMaskedKeys) {
  AttentionCase c = case_of(10, 320, "exact/pair64/s1/l0", false);
  c.key_mask();
  for (std::int64_t j = 0; j < 130; ++j) c.set_mask(0, 0, 0, j, false);
  EXPECT_EQ(schedule(c, 0), "..pxx");  // blocks 0 and 1 have no live pair; block 2 is the sink
  const ref::Output out = run_reference(c);
  for (std::int64_t j : range(0, 130)) EXPECT_FALSE(out.decisions.is_kept(0, 0, j)) << j;
  for (std::int64_t j : range(130, 192)) EXPECT_TRUE(out.decisions.is_kept(0, 0, j)) << j;
}

TEST(Schedule, LocalBlocksLieBelowTheLowestDiagonalOne) {
  AttentionCase c = case_of(576, 576, "exact/pair64/s0/l2", true);
  EXPECT_EQ(schedule(c, 0), "ppp......");
  EXPECT_EQ(schedule(c, 1), "xppppp...");
  EXPECT_EQ(schedule(c, 2), "xxxxppppp");
}

TEST(Schedule, LocalBlocksNeedCausalOrWindow) {
  AttentionCase c = case_of(576, 576, "exact/pair64/s0/l2", false);
  EXPECT_EQ(schedule(c, 2), "xxxxxxxxx");
  AttentionCase w = case_of(576, 576, "exact/pair64/s0/l1", false, {-1, 1000});
  EXPECT_EQ(schedule(w, 1), "xxppppxxx");
}

TEST(Schedule, MaskIsJudgedOverTheRowsThatExist) {
  AttentionCase c = case_of(200, 256, "exact/pair64/s0/l0", false);
  c.full_mask();
  c.set_mask(0, 0, 195, 70, false);  // row block 1, key block 1
  EXPECT_EQ(schedule(c, 0), "xxxx");
  EXPECT_EQ(schedule(c, 1), "xpxx");
  for (std::int64_t i = 192; i < 200; ++i) {
    for (std::int64_t j = 128; j < 192; ++j) c.set_mask(0, 0, i, j, false);
  }
  EXPECT_EQ(schedule(c, 1), "xp.x");
}

TEST(Schedule, MaskIsJudgedHeadByHead) {
  AttentionProblem problem = ScoreCase::problem_of(10, 128, "exact/pair64/s0/l0");
  problem.heads_q = 2;
  AttentionCase c = zero_case(problem);
  c.full_mask();
  c.set_mask(0, 1, 3, 5, false);
  EXPECT_EQ(schedule(c, 0, 0), "xx");
  EXPECT_EQ(schedule(c, 0, 1), "px");
}

TEST(Schedule, AMaskOfTrueIsNoMask) {
  Random random(11);
  for (int round = 0; round < 40; ++round) {
    const bool causal = round % 2;
    const Window window{random.integer(-1, 300), random.integer(-1, 300)};
    AttentionCase c = case_of(random.integer(1, 400), random.integer(1, 600), "exact/pair64/s1/l1",
                              causal, window);
    const std::int64_t position = causal ? c.problem.seqlen_k - c.problem.seqlen_q : 0;
    const std::int64_t row_block = ref::floor_quotient(position, ref::kRowBlockPositions);
    const std::string without = schedule(c, row_block);
    c.key_mask();
    EXPECT_EQ(schedule(c, row_block), without);
  }
}

TEST(Schedule, AChunkIsPrunedAsInOneCall) {
  // 500 rows in one call, and the rows 130 .. 299 alone with the keys before them.
  const auto run = [](std::int64_t first, std::int64_t end) {
    AttentionCase c = case_of(end - first, end, "exact/pair64/s1/l1", true, {350, -1});
    Random random(5);
    std::vector<double> values;
    for (std::int64_t n = 0; n < 500 * 16; ++n) values.push_back(random.normal());
    for (std::int64_t i = first; i < end; ++i) {
      for (std::int64_t d = 0; d < 8; ++d) c.q.set(0, i - first, 0, d, values[i * 16 + d]);
    }
    for (std::int64_t j = 0; j < end; ++j) {
      for (std::int64_t d = 0; d < 8; ++d) c.k.set(0, j, 0, d, values[j * 16 + 8 + d]);
    }
    return run_reference(c);
  };
  const ref::Output whole = run(0, 500), chunk = run(130, 300);
  ASSERT_GT(chunk.stats.pruned_pairs, 0);
  for (std::int64_t i = 130; i < 300; ++i) {
    EXPECT_EQ(kept_keys(chunk.decisions, 0, i - 130), kept_keys(whole.decisions, 0, i)) << i;
  }
}

TEST(Schedule, BlockLengthFollowsHeadDim) {
  AttentionCase small = case_of(5, 384, "exact/pair/s0/l0", false);
  EXPECT_EQ(schedule(small, 0), "xxx");
  AttentionProblem problem = ScoreCase::problem_of(5, 384, "exact/pair/s0/l0");
  problem.head_dim = 72;
  AttentionCase large = zero_case(problem);
  EXPECT_EQ(schedule(large, 0), "xx");
}

TEST(Schedule, HalfBlocksAreClosedUnderPairing) {
  for (std::int64_t block : {64, 128, 192, 256}) {
    for (std::int64_t j = 0; j < block; ++j) {
      EXPECT_EQ(ref::half_block(j, block), (j % (block / 2)) < block / 4 ? 0 : 1);
      EXPECT_EQ(ref::half_block(j, block), ref::half_block((j + block / 2) % block, block));
    }
    for (int half : {0, 1}) {
      for (int row = 0; row < block / 2; ++row) {
        const int key = layout::half_block_key(half, row, static_cast<int>(block));
        EXPECT_EQ(ref::half_block(key, block), half) << "row " << row << " of a tile";
      }
    }
  }
}

// The arithmetic schedule that kernels use, against the definition.
TEST(Schedule, ArithmeticEqualsDefinition) {
  Random random(7);
  std::int64_t seen[3] = {0, 0, 0};
  std::int64_t late_sinks = 0;  // sinks of a row block whose first keys are out of its window
  for (int round = 0; round < 400; ++round) {
    const bool causal = random.integer(0, 1);
    Window window;
    if (random.integer(0, 1)) window.left = random.integer(0, 1500);
    if (random.integer(0, 1)) window.right = random.integer(0, 1500);
    const Align align = random.integer(0, 1) ? Align::kTopLeft : Align::kBottomRight;
    // Far from the first key, with room for whole blocks in the window.
    const bool late = causal && align == Align::kBottomRight && random.integer(0, 1);
    if (late) window = {random.integer(700, 1500), -1};
    AttentionCase c = case_of(random.integer(1, 500), late ? 2600 : random.integer(0, 1600),
                              "dense", causal, window, align);
    if (random.integer(0, 7) > 0) c.problem.sparsity.score = ScorePattern::kPair;
    c.problem.sparsity.block = 64 * static_cast<int>(random.integer(1, 4));
    c.problem.sparsity.sink_blocks = static_cast<int>(random.integer(0, 6));
    c.problem.sparsity.local_blocks = static_cast<int>(random.integer(0, 3));
    const layout::ScheduleShape shape{c.problem.seqlen_k,
                                      c.problem.sparsity.block,
                                      causal,
                                      window,
                                      c.problem.sparsity.sink_blocks,
                                      c.problem.sparsity.local_blocks,
                                      !c.problem.sparsity.is_dense()};
    const std::int64_t first =
        layout::first_position(causal, align, c.problem.seqlen_q, c.problem.seqlen_k);
    for (std::int64_t r = layout::floor_div(first, layout::kRowBlock);
         r <= layout::floor_div(first + c.problem.seqlen_q - 1, layout::kRowBlock); ++r) {
      const std::string expected = schedule(c, r);
      const layout::RowBlockSchedule row_block = layout::schedule_row_block(shape, r);
      late_sinks +=
          row_block.first > 0 && shape.sink_blocks > 0 && expected.find('x') != std::string::npos;
      ASSERT_EQ(static_cast<std::int64_t>(expected.size()), shape.key_blocks());
      for (std::size_t s = 0; s < expected.size(); ++s) {
        const layout::BlockKind kind = row_block.kind(static_cast<std::int64_t>(s));
        ++seen[static_cast<int>(kind)];
        EXPECT_EQ(".px"[static_cast<int>(kind)], expected[s])
            << "row block " << r << " key block " << s << " block " << shape.block << " N "
            << shape.seqlen_k << " causal " << causal << " window " << window.left << ","
            << window.right;
      }
    }
  }
  for (std::int64_t count : seen) EXPECT_GT(count, 300);
  EXPECT_GT(late_sinks, 20);
}

}  // namespace
}  // namespace twofour::test
