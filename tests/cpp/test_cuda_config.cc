// Every row of the Hopper kernel: what its configuration must satisfy, and its shared memory.
#ifdef TWOFOUR_WITH_CUDA_HEADERS
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/sm90/shared.h"
#include "support/shared_regions.h"

namespace twofour::cuda::sm90 {
namespace {

using test::Region;

/// What a swizzled tile must start at a multiple of, so that its descriptors need no base offset.
constexpr int alignment_of(layout::Swizzle swizzle) { return 8 * layout::swizzle_bytes(swizzle); }

/// All that a CTA keeps in shared memory; O where it has memory of its own.
template <Config c>
std::vector<Region> regions() {
  using S = Shared<c>;
  std::vector<Region> all;
  const auto add = [&all](std::string name, int number, int begin, int bytes, int alignment) {
    all.push_back({std::move(name) + " " + std::to_string(number), begin, bytes, alignment});
  };
  for (int stage = 0; stage < c.stages; ++stage) {
    add("key", stage, S::kKeys + stage * S::Key::kTileBytes, S::Key::kTileBytes,
        alignment_of(S::kSwizzle));
    add("value", stage, S::kValues + stage * S::Value::kTileBytes, S::Value::kTileBytes,
        alignment_of(layout::Swizzle::k128B));
    add("key_full", stage, S::key_full(stage), 8, 8);
    add("key_empty", stage, S::key_empty(stage), 8, 8);
    add("value_full", stage, S::value_full(stage), 8, 8);
    add("value_empty", stage, S::value_empty(stage), 8, 8);
  }
  for (int slot = 0; slot < kItemSlots; ++slot) {
    add("item_full", slot, S::item_full(slot), 8, 8);
    add("item_empty", slot, S::item_empty(slot), 8, 8);
    add("item", slot, S::kItems + slot * static_cast<int>(sizeof(Item)), sizeof(Item),
        alignof(Item));
  }
  for (int w = 0; w < kWarpgroups; ++w) {
    add("query", w, S::kQueries + w * S::Query::kTileBytes, S::Query::kTileBytes,
        alignment_of(S::kSwizzle));
    if (S::kOwnOut)
      add("out", w, S::out_at(w), S::Out::kTileBytes, alignment_of(layout::Swizzle::k128B));
    if (is_nm24(c)) {
      add("pruned query", w, S::kPruned + w * S::PrunedQuery::kTileBytes,
          S::PrunedQuery::kTileBytes, alignment_of(S::kPrunedSwizzle));
      add("metadata", w, S::kMetadata + w * S::kMetadataBytes, S::kMetadataBytes, 2);
    }
    if (is_int8(c)) {
      add("row scales", w, S::kRowScale + 4 * 64 * w, 4 * 64, 4);
      add("row shifts", w, S::kRowShift + 4 * 64 * w, 4 * 64, 4);
    }
  }
  return all;
}

/// Tiles of the row whose elements a descriptor would not find.
template <Config c>
void expect_tiles_are_whole() {
  using S = Shared<c>;
  // Of each panel, which descriptors step to by its bytes.
  EXPECT_EQ(S::Key::kPanelBytes % alignment_of(S::kSwizzle), 0);
  EXPECT_EQ(S::Query::kPanelBytes % alignment_of(S::kSwizzle), 0);
  EXPECT_EQ(S::PrunedQuery::kPanelBytes % alignment_of(S::kPrunedSwizzle), 0);
  EXPECT_EQ(S::Value::kPanelBytes % alignment_of(layout::Swizzle::k128B), 0);
  EXPECT_EQ(S::kKeyPanels * S::Key::kPanelBytes, S::Key::kTileBytes);
  EXPECT_EQ(S::kValuePanels * S::Value::kPanelBytes, S::Value::kTileBytes);
  if (!S::kOwnOut) {
    EXPECT_LE(S::Out::kTileBytes, S::Query::kTileBytes);
    EXPECT_EQ(S::out_at(1) - S::out_at(0), S::Query::kTileBytes);
  }
}

/// What the kernel's loops and the copies take for granted.
void expect_consistent(const Config& c) {
  EXPECT_EQ(c.block % 64, 0);
  EXPECT_EQ(c.block % c.tile, 0);
  EXPECT_LE(c.tile, 256) << "a box has at most 256 rows, a product at most 256 keys";
  EXPECT_GE(c.stages, 2);
  if (c.score == ScorePattern::kPair) {
    // A step of pairs is a block or a half-block; units that decide are half-blocks.
    EXPECT_TRUE(c.tile == c.block || 2 * c.tile == c.block);
    EXPECT_EQ(c.tile % 32, 0) << "sparse products take 32 keys";
    EXPECT_EQ(c.block, default_block(c.head_dim));
  }
  if (c.decides()) {
    EXPECT_EQ(2 * c.tile, c.block);
  }
  EXPECT_TRUE(!c.refine || c.qk == QKProduct::kNm24);
}

template <int kRow>
void expect_row() {
  constexpr Config c = kRows[kRow];
  using S = Shared<c>;
  SCOPED_TRACE("row " + std::to_string(kRow));
  EXPECT_LE(S::kAllocated, 232448) << "227 KiB are there for a CTA";
  EXPECT_EQ(S::kAllocated, S::kBytes + 1024);
  EXPECT_EQ(test::expect_apart(regions<c>()), S::kBytes);
  expect_tiles_are_whole<c>();
  expect_consistent(c);
}

template <int... kRow>
void expect_rows(std::integer_sequence<int, kRow...>) {
  (expect_row<kRow>(), ...);
}

TEST(CudaConfig, SharedMemoryOfEveryRowFitsIsAlignedAndDoesNotOverlap) {
  expect_rows(std::make_integer_sequence<int, kRowCount>());
}

// The fields that make a row's id, and by which the plan chooses it.
TEST(CudaConfig, RowsAreDifferentAndHaveDifferentIds) {
  std::set<std::tuple<DType, int, QKProduct, ScorePattern, bool, bool, bool>> ids;
  for (const Config& c : kRows)
    EXPECT_TRUE(ids.emplace(c.dtype, c.head_dim, c.qk, c.score, c.refine, c.drop, c.trace).second)
        << "row " << ids.size();
  EXPECT_EQ(ids.size(), std::size_t{kRowCount});
}

// A debugging row is checked in the place of the row that it traces.
TEST(CudaConfig, EveryRowHasADebuggingRowOfTheSameShape) {
  for (const Config& c : kRows) {
    if (c.trace) continue;
    const auto traces_it = [&c](const Config& t) {
      return t.trace && t.dtype == c.dtype && t.head_dim == c.head_dim && t.qk == c.qk &&
             t.score == c.score && t.block == c.block && t.tile == c.tile && t.refine == c.refine &&
             t.drop == c.drop;
    };
    EXPECT_EQ(std::ranges::count_if(kRows, traces_it), 1);
  }
}

}  // namespace
}  // namespace twofour::cuda::sm90
#endif  // TWOFOUR_WITH_CUDA_HEADERS
