// Splitting over keys on the host: the rule, the walks of all parts together, and how partial
// results become one. The kernels themselves run split in test_cuda_*_kernel*.cc.
#include <gtest/gtest.h>

#include "layout/key_parts.h"

namespace twofour {
namespace {

using layout::key_parts;

AttentionProblem problem(std::int64_t m, std::int64_t n) {
  AttentionProblem p;
  p.dtype = DType::kF16;
  p.heads_q = p.heads_kv = 8;
  p.head_dim = p.head_dim_v = 128;
  p.seqlen_q = m;
  p.seqlen_k = n;
  p.sparsity = resolved(preset(Mode::kScore), 128);
  return p;
}

TEST(KeyParts, FewRowsOverManyKeysAreSplit) {
  EXPECT_EQ(key_parts(problem(192, 32768)), 16);
  EXPECT_EQ(key_parts(problem(1, 32768)), 16);
  EXPECT_EQ(key_parts(problem(1, 1 << 20)), 16);
  EXPECT_EQ(key_parts(problem(192, 8192)), 4);
  EXPECT_EQ(key_parts(problem(193, 32768)), 8);
  EXPECT_EQ(key_parts(problem(1536, 8192)), 2);
  EXPECT_EQ(key_parts(problem(1537, 32768)), 1);
  EXPECT_EQ(key_parts(problem(8192, 8192)), 1);
  EXPECT_EQ(key_parts(problem(192, 4095)), 1);
  EXPECT_EQ(key_parts(problem(0, 32768)), 1);
  EXPECT_EQ(key_parts(problem(192, 0)), 1);
}

TEST(KeyParts, NoPartIsSmallAndThereAreNeverMoreThanHelp) {
  for (std::int64_t m = 1; m < 3000; m += 61)
    for (std::int64_t n = 1; n < 300000; n = n * 3 / 2 + 1) {
      const int parts = key_parts(problem(m, n));
      EXPECT_GE(parts, 1);
      EXPECT_TRUE(parts == 1 || n / parts >= layout::kMinPartKeys) << m << "x" << n;
      EXPECT_TRUE(parts == 1 || layout::ceil_div(m, 192) * parts <= layout::kSplitTarget);
      EXPECT_LE(parts, kMaxKeySplits);
    }
}

TEST(KeyParts, BatchAndHeadsDoNotDecide) {
  AttentionProblem p = problem(192, 32768);
  p.batch = 64;
  p.heads_q = 128;
  p.heads_kv = 1;
  EXPECT_EQ(key_parts(p), 16);
}

TEST(KeyParts, AWindowCountsAsTheKeysItShows) {
  AttentionProblem p = problem(192, 32768);
  p.window = {4000, 4000};
  EXPECT_EQ(key_parts(p), 4);
  p.window = {1000, 0};
  EXPECT_EQ(key_parts(p), 1);
  p.window = {4096, -1};
  EXPECT_EQ(key_parts(p), 16);
  p.causal = true;
  EXPECT_EQ(key_parts(p), 2);
  p.window = {std::int64_t{1} << 33, std::int64_t{1} << 33};
  EXPECT_EQ(key_parts(p), 16);
}

TEST(KeyParts, TheCallDecidesWhereItSaysHowMany) {
  AttentionProblem p = problem(192, 32768);
  p.key_splits = 1;
  EXPECT_EQ(key_parts(p), 1);
  p.key_splits = 5;
  EXPECT_EQ(key_parts(p), 5);
  p.seqlen_k = 3;
  EXPECT_EQ(key_parts(p), 5);
}

TEST(KeyParts, UnitsThatDecidePackedCallsAndDebuggingRowsKeepOnePart) {
  for (const int splits : {0, 3}) {
    AttentionProblem refined = problem(192, 32768), dropped = refined, packed = refined,
                     traced = refined;
    refined.sparsity.refine = 2.0f;
    dropped.sparsity.drop = 8.0f;
    packed.packed = true;
    traced.trace = true;
    for (AttentionProblem p : {refined, dropped, packed, traced}) {
      p.key_splits = splits;
      EXPECT_EQ(key_parts(p), 1);
      EXPECT_EQ(layout::may_split_keys(p), p.trace);
    }
  }
}

}  // namespace
}  // namespace twofour

#ifdef TWOFOUR_WITH_CUDA_HEADERS
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "cuda/sm80/item.h"
#include "cuda/sm90/item.h"
#include "cuda/tile/parts.h"
#include "ref/attention.h"
#include "support/attention_case.h"
#ifdef TWOFOUR_WITH_CUDA
#include "cuda/sm80/attention.h"
#include "cuda/sm90/attention.h"
#endif

namespace twofour::cuda {
namespace {

using test::Random;

// ---- walks -------------------------------------------------------------------------------------

/// A step of a row block: what is computed there, whoever does it.
struct Step {
  int row_block, block, half;
  bool fast;
  auto operator<=>(const Step&) const = default;
};
/// Of each batch index, head and row tile, and how often each step is computed.
using Steps = std::map<std::tuple<int, int, int>, std::map<Step, int>>;

CallParams call_params(const AttentionProblem& p, const layout::ScheduleShape& shape, int parts) {
  CallParams params{};
  params.batch = static_cast<int>(p.batch);
  params.heads_q = static_cast<int>(p.heads_q);
  params.heads_kv = static_cast<int>(p.heads_kv);
  params.group = params.heads_q / params.heads_kv;
  params.seqlen_q = static_cast<int>(p.seqlen_q);
  params.seqlen_k = static_cast<int>(p.seqlen_k);
  params.causal = p.causal;
  params.align = p.align;
  params.window = p.window;
  params.sink_blocks = shape.sink_blocks;
  params.local_blocks = shape.local_blocks;
  params.parts = parts;
  return params;
}

/// The steps of all items, which `visit(item, add)` walks through; no step may come twice within
/// a part, and every part of every row tile is there once.
template <class Item, class Params, class Config, class Visit>
Steps steps_of(const Params& params, const Config& c, int rows, Visit visit) {
  Steps all;
  std::set<std::tuple<int, int, int, int>> seen;
  const int tiles = total_row_tiles(params, rows);
  const int items = work_items(params, tiles);
  EXPECT_EQ(items, tiles * params.heads_q * params.parts);
  for (int index = 0; index < items; ++index) {
    Item item;
    make_item(item, params, c, index, tiles);
    const int tile = item.position_of(0);
    EXPECT_TRUE(seen.emplace(item.b, item.head, tile, item.part).second);
    EXPECT_TRUE(item.part >= 0 && item.part < params.parts);
    std::map<Step, int>& steps = all[{item.b, item.head, tile}];
    visit(item, [&](const Step& step) { ++steps[step]; });
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(items));
  return all;
}

template <int kRow>
Steps mma_steps(CallParams of, int parts) {
  static constexpr sm80::Config c = sm80::kRows[kRow];
  sm80::Params params{};
  static_cast<CallParams&>(params) = of;
  params.parts = parts;
  return steps_of<sm80::Item>(params, c, c.rows(), [](const sm80::Item& item, auto add) {
    sm80::Cursor<c> at;
    for (at.next(item); !at.done(); at.next(item))
      for (const Walk& walk : item.walk)
        if (at.fast ? walk.is_fast(at.block) : sm80::is_live(c, walk, at.block, at.half))
          add({walk.row_block, at.block, at.half, at.fast});
  });
}

template <int kRow>
Steps wgmma_steps(CallParams of, int parts) {
  static constexpr sm90::Config c = sm90::kRows[kRow];
  sm90::Params params{};
  static_cast<CallParams&>(params) = of;
  params.parts = parts;
  constexpr int kRowBlock = static_cast<int>(layout::kRowBlock);
  return steps_of<sm90::Item>(params, c, kRowBlock, [](const sm90::Item& item, auto add) {
    for (int i = 0; i < item.plain_blocks(); ++i)
      for (int half = 0; half < c.block / c.tile; ++half)
        if (is_live(c, item, plain_step(c, item.plain_block(i), half)))
          add({item.row_block, item.plain_block(i), half, false});
    for (int i = 0; i < item.fast_blocks(); ++i)
      for (int half = 0; half < c.block / c.tile; ++half)
        add({item.row_block, item.fast_block(i), half, true});
  });
}

void expect_same(const Steps& whole, const Steps& parts) {
  EXPECT_TRUE(whole == parts);
  for (const auto& [tile, steps] : parts)
    for (const auto& [step, times] : steps) ASSERT_EQ(times, 1) << "a step came again";
}

TEST(KeyPartsWalk, PartsTogetherVisitEveryStepOnce) {
  Random random(7);
  std::size_t steps = 0, fast = 0;
  for (int round = 0; round < 150; ++round) {
    AttentionProblem p;
    p.batch = random.integer(1, 2);
    p.heads_kv = random.integer(1, 3);
    p.heads_q = p.heads_kv * random.integer(1, 2);
    p.seqlen_q = random.integer(1, 700);
    p.seqlen_k = random.integer(0, 4000);
    p.causal = random.integer(0, 1) == 1;
    p.align = random.integer(0, 1) == 1 ? Align::kTopLeft : Align::kBottomRight;
    p.window.left = random.integer(0, 1) == 1 ? random.integer(0, 1500) : -1;
    p.window.right = random.integer(0, 1) == 1 ? random.integer(0, 1500) : -1;
    layout::ScheduleShape shape;
    shape.sink_blocks = random.integer(0, 2);
    shape.local_blocks = random.integer(0, 2);
    const CallParams params = call_params(p, shape, 1);
    const int parts = random.integer(2, round % 10 == 0 ? kMaxKeySplits : 9);
    SCOPED_TRACE("M" + std::to_string(p.seqlen_q) + " N" + std::to_string(p.seqlen_k) + " in " +
                 std::to_string(parts));
    expect_same(mma_steps<1>(params, 1), mma_steps<1>(params, parts));    // head_dim 128
    expect_same(mma_steps<17>(params, 1), mma_steps<17>(params, parts));  // head_dim 64
    expect_same(wgmma_steps<1>(params, 1), wgmma_steps<1>(params, parts));
    const Steps whole = wgmma_steps<9>(params, 1);
    expect_same(whole, wgmma_steps<9>(params, parts));
    for (const auto& [tile, of_tile] : whole)
      for (const auto& [step, times] : of_tile) {
        ++steps;
        fast += step.fast;
      }
  }
  EXPECT_GT(fast, steps / 10);
  EXPECT_LT(fast, steps);
}

TEST(KeyPartsWalk, RowsThatDecideAndDebuggingRowsAreNotSplit) {
  int split = 0;
  const auto check = [&split](const auto& rows) {
    for (const auto& c : rows) {
      EXPECT_EQ(may_split(c), !c.refine && !c.drop && !c.trace);
      split += may_split(c);
    }
  };
  check(sm80::kRows);
  check(sm90::kRows);
  EXPECT_EQ(split, (sm80::kRowCount + sm90::kRowCount) / 4);
}

TEST(KeyPartsWalk, PartsDifferByABlockAtMost) {
  for (const int last : {5, 17, 100, 1 << 24})
    for (const int parts : {1, 2, 5, 64}) {
      int least = INT_MAX, most = 0, next = 3;
      for (int part = 0; part < parts; ++part) {
        Walk walk{};
        walk.first = 3;
        walk.last = last;
        keep_part(walk, part, parts);
        EXPECT_EQ(walk.first, next);
        next = walk.last;
        least = std::min(least, walk.last - walk.first);
        most = std::max(most, walk.last - walk.first);
      }
      EXPECT_EQ(next, last);
      EXPECT_LE(most - least, 1);
    }
}

// ---- partial results ---------------------------------------------------------------------------

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Partial results of a call of one sequence and head, and where their sum goes: rows apart.
struct Parts {
  static constexpr int kRows = 3, kChannels = 16, kPitch = 24;
  int parts;
  std::vector<PartRow> rows;
  std::vector<float> o;
  std::vector<std::uint16_t> out = std::vector<std::uint16_t>(kRows * kPitch, 0xFFFF);
  std::array<float, kRows * 2> lse{};
  CallParams params{};

  explicit Parts(int count)
      : parts(count),
        rows(static_cast<std::size_t>(count) * kRows, PartRow{-kInfinity, 0, 0}),
        o(rows.size() * kChannels, 0) {}

  void combine() {
    params.batch = params.heads_q = 1;
    params.seqlen_q = kRows;
    params.head_dim_v = kChannels;
    params.parts = parts;
    params.part_rows = rows.data();
    params.part_o = o.data();
    params.rows_of_part = kRows;
    params.o = {out.data(), 0, kPitch, 0};
    params.lse = lse.data();
    params.lse_row = 2;
    for (int i = 0; i < kRows * kChannels / 8; ++i) tile::combine_chunk<DType::kF16>(params, i);
  }
  PartRow& row(int part, int i) { return rows[static_cast<std::size_t>(part * kRows + i)]; }
  float& value(int part, int i, int d) {
    return o[static_cast<std::size_t>((part * kRows + i) * kChannels + d)];
  }
  float got(int i, int d) const {
    return __half2float(std::bit_cast<__half>(out[static_cast<std::size_t>(i * kPitch + d)]));
  }
};

TEST(KeyPartsCombine, PartsOfTheReferenceAreTheReference) {
  for (const double size : {0.01, 1.0, 30.0}) {
    AttentionProblem p;
    p.seqlen_q = Parts::kRows;
    p.seqlen_k = 100;
    p.head_dim = p.head_dim_v = Parts::kChannels;
    test::AttentionCase c = test::zero_case(p);
    Random random(11);
    test::fill_tensor(c.q, random, size);
    test::fill_tensor(c.k, random, size);
    test::fill_tensor(c.v, random, 1);
    const Result<ref::Output> whole = ref::attention(p, c.args());
    ASSERT_TRUE(whole.ok());
    const int ends[] = {0, 1, 40, 90, 100};
    Parts parts(4);
    for (int part = 0; part < 4; ++part) {
      AttentionProblem own = p;
      own.seqlen_k = ends[part + 1] - ends[part];
      test::AttentionCase of_part = test::zero_case(own);
      of_part.q = c.q;
      for (std::int64_t j = 0; j < own.seqlen_k; ++j)
        for (int d = 0; d < Parts::kChannels; ++d) {
          of_part.k.set(0, j, 0, d, c.k.get(0, ends[part] + j, 0, d));
          of_part.v.set(0, j, 0, d, c.v.get(0, ends[part] + j, 0, d));
        }
      const Result<ref::Output> out = ref::attention(own, of_part.args());
      ASSERT_TRUE(out.ok());
      for (int i = 0; i < Parts::kRows; ++i) {
        const double log2_sum = out->lse[static_cast<std::size_t>(i)] / std::log(2.0);
        const double reference = std::floor(log2_sum) + 1, sum = std::exp2(log2_sum - reference);
        parts.row(part, i) = {static_cast<float>(reference), static_cast<float>(sum), 0.25f};
        for (int d = 0; d < Parts::kChannels; ++d)
          parts.value(part, i, d) =
              static_cast<float>(sum * out->o[static_cast<std::size_t>(i * Parts::kChannels + d)]);
      }
    }
    parts.combine();
    for (int i = 0; i < Parts::kRows; ++i) {
      const double lse = whole->lse[static_cast<std::size_t>(i)];
      EXPECT_NEAR(parts.lse[static_cast<std::size_t>(2 * i)], lse + 0.25,
                  1e-6 * (1 + std::fabs(lse)));
      EXPECT_EQ(parts.lse[static_cast<std::size_t>(2 * i + 1)], 0) << "beside the stride";
      for (int d = 0; d < Parts::kChannels; ++d) {
        const double o = whole->o[static_cast<std::size_t>(i * Parts::kChannels + d)];
        EXPECT_NEAR(parts.got(i, d), o, 1e-6 + std::fabs(o) * 0x1p-11);
      }
      for (int d = Parts::kChannels; d < Parts::kPitch; ++d)
        EXPECT_EQ(parts.out[static_cast<std::size_t>(i * Parts::kPitch + d)], 0xFFFF);
    }
  }
}

TEST(KeyPartsCombine, PartsWithoutKeysCountForNothing) {
  Parts parts(3);
  parts.row(1, 0) = {7, 2, 0};
  for (int d = 0; d < Parts::kChannels; ++d) {
    parts.value(1, 0, d) = static_cast<float>(d);
    // 0 * NaN of keys that only other rows see.
    parts.value(0, 0, d) = parts.value(2, 0, d) = kNan;
  }
  parts.combine();
  EXPECT_FLOAT_EQ(parts.lse[0], static_cast<float>(8 * std::log(2.0)));
  EXPECT_EQ(parts.got(0, 6), 3.0f);
  for (const int i : {1, 2}) {
    EXPECT_EQ(parts.lse[static_cast<std::size_t>(2 * i)], -kInfinity);
    for (int d = 0; d < Parts::kChannels; ++d) EXPECT_EQ(parts.got(i, d), 0.0f);
  }
}

TEST(KeyPartsCombine, FarReferencesNeitherOverflowNorLose) {
  Parts parts(2);
  parts.row(0, 0) = {-30000, 1, 0};
  parts.row(1, 0) = {30000, 0.5f, 0};
  parts.row(0, 1) = {20000, 0.5f, 0};
  parts.row(1, 1) = {20001, 0.5f, 0};
  for (const int i : {0, 1}) {
    parts.value(0, i, 0) = 1;
    parts.value(1, i, 0) = 4;
  }
  parts.combine();
  EXPECT_EQ(parts.got(0, 0), 8.0f);
  EXPECT_FLOAT_EQ(parts.lse[0], static_cast<float>(29999 * std::log(2.0)));
  EXPECT_EQ(parts.got(1, 0), 6.0f);  // (1 / 2 + 4) / (1 / 4 + 1 / 2)
}

TEST(KeyPartsCombine, NaNReachesItsRowAlone) {
  for (int what = 0; what < 4; ++what) {
    Parts parts(2);
    for (int part = 0; part < 2; ++part)
      for (int i = 0; i < Parts::kRows; ++i) {
        parts.row(part, i) = {3, 1, 0};
        for (int d = 0; d < Parts::kChannels; ++d) parts.value(part, i, d) = 1;
      }
    PartRow& row = parts.row(1, 1);
    if (what == 0) row.reference = kNan;
    if (what == 1) row.sum = kNan;
    if (what == 2) row.reference = kInfinity;
    if (what == 3) parts.value(1, 1, 5) = kNan;
    parts.combine();
    for (int i = 0; i < Parts::kRows; ++i)
      for (int d = 0; d < Parts::kChannels; ++d)
        EXPECT_EQ(std::isnan(parts.got(i, d)), i == 1 && (what < 3 || d == 5)) << what;
    EXPECT_EQ(std::isnan(parts.lse[2]), what < 3) << what;
    EXPECT_FALSE(std::isnan(parts.lse[0]));
  }
}

// ---- rows of the registry ----------------------------------------------------------------------
#ifdef TWOFOUR_WITH_CUDA

Device hopper() {
  Device device;
  device.kind = DeviceKind::kCuda;
  device.arch = "sm_90";
  device.shared_memory = 227 * 1024;
  device.multiprocessors = 132;
  device.peak_gflops = 9e5;
  return device;
}

AttentionProblem few_rows(Mode mode) {
  AttentionProblem p;
  p.dtype = DType::kF16;
  p.batch = 3;
  p.heads_q = p.heads_kv = 4;
  p.head_dim = 128;
  p.head_dim_v = 64;
  p.seqlen_q = 100;
  p.seqlen_k = 8192;
  p.sparsity = resolved(preset(mode), 128);
  return p;
}

TEST(KeyPartsRows, WorkspaceHoldsThePartialResults) {
  const Device device = hopper();
  for (const auto rows : {sm80::attention_kernels(), sm90::attention_kernels()})
    for (const Kernel& row : rows) {
      AttentionProblem p = few_rows(Mode::kScore);
      if (!row.why_not(row, p, device).empty()) continue;
      ASSERT_NE(row.key_parts, nullptr);
      EXPECT_EQ(row.key_parts(p), 4);
      const std::size_t split = row.workspace(row, p, device);
      p.key_splits = 1;
      const std::size_t whole = row.workspace(row, p, device);
      const std::size_t results = 4 * 3 * 4 * 100 * (sizeof(PartRow) + 64 * sizeof(float));
      EXPECT_GE(split, whole + results);
      EXPECT_LE(split, whole + results + 512);
    }
}

TEST(KeyPartsRows, SplittingIsRefusedWhereItCannotBe) {
  const Device device = hopper();
  AttentionProblem refined = few_rows(Mode::kRefined), packed = few_rows(Mode::kScore);
  packed.packed = true;
  packed.total_q = 300;
  packed.total_k = 3 * 8192;
  for (AttentionProblem p : {refined, packed}) {
    EXPECT_TRUE(plan(p, device).ok());
    p.key_splits = 2;
    const auto refused = plan(p, device);
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.status().message().find("splits keys only without refine and drop"),
              std::string::npos)
        << refused.status().message();
  }
}

TEST(KeyPartsRows, ThePlanSaysHowMany) {
  const auto chosen = plan(few_rows(Mode::kScore), hopper());
  ASSERT_TRUE(chosen.ok()) << chosen.status().message();
  EXPECT_NE(chosen->explain().find("chosen, splits keys in 4"), std::string::npos)
      << chosen->explain();
  AttentionProblem p = few_rows(Mode::kScore);
  p.key_splits = 1;
  EXPECT_EQ(plan(p, hopper())->explain().find("splits keys in"), std::string::npos);
}

#endif  // TWOFOUR_WITH_CUDA

}  // namespace
}  // namespace twofour::cuda
#endif  // TWOFOUR_WITH_CUDA_HEADERS
