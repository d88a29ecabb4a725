// layout::schedule_row_block against rules 1 to 3 of docs/semantics.md applied pair by pair.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "layout/schedule.h"

namespace twofour::layout {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

/// Rule 1, with the window as a bound on the distance so that no huge window overflows.
bool is_live(const ScheduleShape& shape, std::int64_t position, std::int64_t key) {
  if (key < 0 || key >= shape.seqlen_k) return false;
  if (shape.causal && key > position) return false;
  if (shape.window.left >= 0 && position - key > shape.window.left) return false;
  if (shape.window.right >= 0 && key - position > shape.window.right) return false;
  return true;
}

std::int64_t block_of(std::int64_t position, int block) {  // rounds down, also below zero
  std::int64_t quotient = position / block;
  while (quotient * block > position) --quotient;
  return quotient;
}

/// Rules 2 and 3, literally: the kind of every key block of a row block.
std::vector<BlockKind> kinds_by_definition(const ScheduleShape& shape, std::int64_t row_block) {
  const std::int64_t blocks = (shape.seqlen_k + shape.block - 1) / shape.block;
  std::set<std::int64_t> diagonal;
  if (shape.causal || shape.window.left >= 0 || shape.window.right >= 0)
    for (int i = 0; i < 192; ++i) diagonal.insert(block_of(row_block * 192 + i, shape.block));
  std::set<std::int64_t> local;
  if (!diagonal.empty())
    for (int i = 1; i <= shape.local_blocks; ++i) local.insert(*diagonal.begin() - i);

  std::vector<BlockKind> kinds;
  int live_blocks = 0;
  for (std::int64_t block = 0; block < blocks; ++block) {
    std::int64_t live = 0;
    for (int i = 0; i < 192; ++i)
      for (int j = 0; j < shape.block; ++j)
        live += is_live(shape, row_block * 192 + i, block * shape.block + j);
    if (live == 0) {
      kinds.push_back(BlockKind::kEmpty);
      continue;
    }
    const bool sink = live_blocks++ < shape.sink_blocks;
    // A ragged block has fewer live pairs than this, so it is covered by "partly live".
    const bool full = live == std::int64_t{192} * shape.block;
    const bool plain =
        !full || sink || diagonal.count(block) || local.count(block) || !shape.prunes;
    kinds.push_back(plain ? BlockKind::kPlain : BlockKind::kPruned);
  }
  return kinds;
}

std::string describe(const ScheduleShape& s, std::int64_t row_block) {
  std::ostringstream out;
  out << "N " << s.seqlen_k << " block " << s.block << " causal " << s.causal << " window ("
      << s.window.left << ", " << s.window.right << ") sinks " << s.sink_blocks << " local "
      << s.local_blocks << " prunes " << s.prunes << " row block " << row_block;
  return out.str();
}

/// Compares every key block and, beyond the definition, that nothing outside the keys is live.
/// Returns how many blocks of each kind were seen, so that a test can tell it tested something.
void expect_same(const ScheduleShape& shape, std::int64_t row_block,
                 std::array<std::int64_t, 3>& seen) {
  const RowBlockSchedule schedule = schedule_row_block(shape, row_block);
  const std::vector<BlockKind> want = kinds_by_definition(shape, row_block);
  ASSERT_EQ(shape.key_blocks(), static_cast<std::int64_t>(want.size()));
  for (std::size_t block = 0; block < want.size(); ++block) {
    ASSERT_EQ(static_cast<int>(schedule.kind(static_cast<std::int64_t>(block))),
              static_cast<int>(want[block]))
        << describe(shape, row_block) << " key block " << block;
    ++seen[static_cast<int>(want[block])];
  }
  ASSERT_EQ(schedule.kind(-1), BlockKind::kEmpty) << describe(shape, row_block);
  ASSERT_EQ(schedule.kind(shape.key_blocks()), BlockKind::kEmpty) << describe(shape, row_block);
}

TEST(Schedule, EqualsTheRulesOnAGrid) {
  const std::vector<Window> windows = {
      {-1, -1}, {0, 0},     {0, -1},     {-1, 0},     {63, 0},        {191, 5},       {300, -1},
      {-1, 64}, {400, 400}, {kHuge, -1}, {-1, kHuge}, {kHuge, kHuge}, {kHuge - 1, 17}};
  std::array<std::int64_t, 3> seen{};
  for (std::int64_t n : {0, 1, 64, 129, 384, 577})
    for (int block : {64, 128, 192, 256})
      for (bool causal : {false, true})
        for (const Window& window : windows)
          for (auto [sinks, local] : {std::pair{0, 0}, {1, 0}, {1, 1}, {2, 3}})
            for (std::int64_t row_block : {-2, -1, 0, 1, 3}) {
              const ScheduleShape shape{n, block, causal, window, sinks, local};
              ASSERT_NO_FATAL_FAILURE(expect_same(shape, row_block, seen));
            }
  for (std::int64_t count : seen) EXPECT_GT(count, 1000);
}

TEST(Schedule, EqualsTheRulesOnRandomShapes) {
  std::mt19937_64 random(20240607);
  const auto upto = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit + 1));
  };
  std::array<std::int64_t, 3> seen{};
  for (int trial = 0; trial < 1500; ++trial) {
    ScheduleShape shape;
    shape.seqlen_k = upto(1400);
    shape.block = 64 * static_cast<int>(1 + upto(7));
    shape.causal = upto(1);
    if (upto(2) == 0) shape.window.left = upto(900);
    if (upto(2) == 0) shape.window.right = upto(900);
    shape.sink_blocks = static_cast<int>(upto(3));
    shape.local_blocks = static_cast<int>(upto(3));
    shape.prunes = upto(7) > 0;
    ASSERT_NO_FATAL_FAILURE(expect_same(shape, upto(11) - 3, seen));
  }
  for (std::int64_t count : seen) EXPECT_GT(count, 300);
}

TEST(Schedule, LiveKeysEqualsRuleOne) {
  for (bool causal : {false, true})
    for (std::int64_t left : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{7}, kHuge})
      for (std::int64_t right : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{3}, kHuge}) {
        const ScheduleShape shape{20, 64, causal, {left, right}, 0, 0};
        for (std::int64_t position = -25; position < 50; ++position) {
          const KeyRange range = shape.live_keys(position);
          ASSERT_GE(range.begin, 0);
          ASSERT_LE(range.end, 20);
          for (std::int64_t key = 0; key < 20; ++key)
            ASSERT_EQ(key >= range.begin && key < range.end, is_live(shape, position, key))
                << describe(shape, 0) << " position " << position << " key " << key;
        }
      }
}

// The schedule of a row depends on its position alone, so chunks of a prompt meet the same one.
TEST(Schedule, PositionOfARowDoesNotDependOnTheChunk) {
  EXPECT_EQ(first_position(true, Align::kBottomRight, 1000, 1000), 0);
  EXPECT_EQ(first_position(true, Align::kBottomRight, 100, 1000), 900);
  EXPECT_EQ(first_position(true, Align::kBottomRight, 1000, 100), -900);
  EXPECT_EQ(first_position(true, Align::kTopLeft, 100, 1000), 0);
  EXPECT_EQ(first_position(false, Align::kBottomRight, 100, 1000), 0);
  // Keys that a chunk does not have yet only add plain or empty blocks: where both know a block in
  // full, they agree.
  const ScheduleShape whole{1536, 128, true, {}, 1, 1};
  const ScheduleShape chunk{1024, 128, true, {}, 1, 1};
  for (std::int64_t row_block = 0; row_block < 5; ++row_block)
    for (std::int64_t block = 0; block < chunk.key_blocks(); ++block)
      EXPECT_EQ(schedule_row_block(chunk, row_block).kind(block),
                schedule_row_block(whole, row_block).kind(block));
}

// A few cases at compile time, as a kernel would use them. Causal, block 128: row block 2 holds
// positions 384..575, so block 0 is the sink, 1 is free, 2 is local, 3 and 4 are diagonal.
constexpr ScheduleShape kCausal{1024, 128, true, {}, 1, 1};
constexpr RowBlockSchedule kRow2 = schedule_row_block(kCausal, 2);
static_assert(kRow2.kind(0) == BlockKind::kPlain && kRow2.kind(1) == BlockKind::kPruned);
static_assert(kRow2.kind(2) == BlockKind::kPlain && kRow2.kind(3) == BlockKind::kPlain);
static_assert(kRow2.kind(4) == BlockKind::kPlain && kRow2.kind(5) == BlockKind::kEmpty);
// No causality, no window: only sinks and a ragged end are plain.
constexpr RowBlockSchedule kFull = schedule_row_block({300, 128, false, {}, 1, 1}, 0);
static_assert(kFull.kind(0) == BlockKind::kPlain && kFull.kind(1) == BlockKind::kPruned);
static_assert(kFull.kind(2) == BlockKind::kPlain && kFull.kind(3) == BlockKind::kEmpty);
// Rows before the first key see nothing; the widest windows are the open one.
static_assert(schedule_row_block(kCausal, -1).kind(0) == BlockKind::kEmpty);
static_assert(ScheduleShape{100, 64, false, {kHuge, kHuge}, 0, 0}.live_keys(-5) ==
              KeyRange{0, 100});
static_assert(ScheduleShape{100, 64, true, {kHuge, -1}, 0, 0}.live_keys(7) == KeyRange{0, 8});

}  // namespace
}  // namespace twofour::layout
