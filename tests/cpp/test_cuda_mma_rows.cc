// Every row of the mma.sync kernel: what its configuration must satisfy, its shared memory, and on
// which architectures it is offered.
#ifdef TWOFOUR_WITH_CUDA_HEADERS
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/sm80/shared.h"
#include "plan/registry.h"
#include "support/shared_regions.h"
#ifdef TWOFOUR_WITH_CUDA
#include "cuda/sm80/attention.h"
#endif

namespace twofour::cuda::sm80 {
namespace {

/// What the kernel's loops take for granted.
void expect_consistent(const Config& c) {
  EXPECT_EQ(c.block % 64, 0);
  EXPECT_EQ(c.tile % c.chunk, 0);
  EXPECT_EQ(c.chunk % 32, 0) << "sparse products take 32 keys";
  EXPECT_EQ(64 % (16 * c.row_tiles), 0) << "a unit is whole warps";
  EXPECT_LE(c.row_tiles * c.chunk, 128) << "two words hold the metadata of a chunk";
  // A step is a part of a half-block and its partners; a unit is a half-block.
  EXPECT_EQ(c.block / 2 % (c.tile / 2), 0);
  if (c.decides()) {
    EXPECT_EQ(2 * c.tile, c.block);
  }
  if (c.score == ScorePattern::kPair) {
    EXPECT_EQ(c.block, default_block(c.head_dim));
  }
  EXPECT_TRUE(!c.refine || c.qk == QKProduct::kNm24);
}

template <int kRow>
void expect_row() {
  constexpr Config c = kRows[kRow];
  using S = Shared<c>;
  SCOPED_TRACE("row " + std::to_string(kRow));
  std::vector<test::Region> all = {
      {"query", S::kQueries, S::Out::kBytes, 128},
      {"item", S::kItem, static_cast<int>(sizeof(Item)), alignof(Item)},
      {"barriers", S::kBarriers, 16 * S::kMaxStages, 8},
      {"stages", S::kStages, 2 * S::kStageBytes, 128}};
  if (is_int8(c)) {
    all.push_back({"row scales", S::kRowScale, 4 * c.rows(), 4});
    all.push_back({"row shifts", S::kRowShift, 4 * c.rows(), 4});
  }
  EXPECT_EQ(S::allocated(2), test::expect_apart(std::move(all)) + 128);
  EXPECT_LE(S::allocated(2), 163 * 1024) << "what a CTA of sm_80 may have";
  EXPECT_TRUE(tile::reads_without_conflict<typename S::Value>());
  EXPECT_TRUE(tile::reads_without_conflict<typename S::Key>());
  expect_consistent(c);
}
template <int... kRow>
void expect_rows(std::integer_sequence<int, kRow...>) {
  (expect_row<kRow>(), ...);
}

TEST(CudaMmaRows, SharedMemoryOfEveryRowFitsIsAlignedAndDoesNotOverlap) {
  expect_rows(std::make_integer_sequence<int, kRowCount>());
}

TEST(CudaMmaRows, RowsAreDifferentAndEachHasADebuggingRow) {
  std::set<std::tuple<DType, int, QKProduct, ScorePattern, bool, bool, bool>> ids;
  for (const Config& c : kRows) {
    EXPECT_TRUE(ids.emplace(c.dtype, c.head_dim, c.qk, c.score, c.refine, c.drop, c.trace).second);
    const auto traces_it = [&c](const Config& t) {
      return t.trace && t.dtype == c.dtype && t.head_dim == c.head_dim && t.qk == c.qk &&
             t.score == c.score && t.block == c.block && t.tile == c.tile && t.chunk == c.chunk &&
             t.refine == c.refine && t.drop == c.drop;
    };
    EXPECT_EQ(std::ranges::count_if(kRows, traces_it), 1);
  }
}

#ifdef TWOFOUR_WITH_CUDA

/// Shared memory of each row with the fewest stages.
template <int... kRow>
std::vector<int> least_shared_memory(std::integer_sequence<int, kRow...>) {
  return {Shared<kRows[kRow]>::allocated(2)...};
}

Device device_of(std::string arch, int kibibytes) {
  Device device;
  device.kind = DeviceKind::kCuda;
  device.arch = std::move(arch);
  device.shared_memory = std::int64_t{1024} * kibibytes;
  device.multiprocessors = 100;
  device.peak_gflops = 3e5;
  return device;
}

AttentionProblem problem_of(const Config& c) {
  AttentionProblem p;
  p.dtype = c.dtype;
  p.batch = 1;
  p.heads_q = p.heads_kv = 4;
  p.seqlen_q = p.seqlen_k = 4096;
  p.head_dim = p.head_dim_v = c.head_dim;
  p.sparsity.qk = c.qk;
  p.sparsity.score = c.score;
  p.sparsity.block = c.block;
  if (c.refine) p.sparsity.refine = 4.0f;
  if (c.drop) p.sparsity.drop = 12.0f;
  p.trace = c.trace;
  return p;
}

TEST(CudaMmaRows, EveryArchitectureFromAmpereOnIsServed) {
  const auto rows = attention_kernels();
  ASSERT_EQ(rows.size(), std::size_t{kRowCount});
  const std::pair<const char*, int> kLarge[] = {
      {"sm_80", 163}, {"sm_90", 227}, {"sm_100", 227}, {"sm_103", 227}};
  const std::pair<const char*, int> kSmall[] = {{"sm_86", 99}, {"sm_89", 99}, {"sm_120", 99}};
  const auto least = least_shared_memory(std::make_integer_sequence<int, kRowCount>());
  int served = 0;
  for (const Kernel& row : rows) {
    const Config& c = kRows[row.number];
    const AttentionProblem p = problem_of(c);
    for (const auto& [arch, kibibytes] : kLarge) {
      const Device device = device_of(arch, kibibytes);
      EXPECT_TRUE(is_for(row, device)) << arch;
      EXPECT_EQ(row.why_not(row, p, device), "") << row.id << " on " << arch;
      EXPECT_GT(row.cost(row, p, device), 0);
    }
    for (const auto& [arch, kibibytes] : kSmall) {
      const Device device = device_of(arch, kibibytes);
      EXPECT_TRUE(is_for(row, device)) << arch;
      const std::string reason = row.why_not(row, p, device);
      if (least[row.number] <= 99 * 1024) {
        ++served;
        EXPECT_EQ(reason, "") << row.id << " on " << arch;
      } else {
        EXPECT_GT(c.head_dim, 64);
        EXPECT_TRUE(reason.starts_with("needs ")) << row.id << ": " << reason;
        EXPECT_TRUE(reason.ends_with(" KiB of shared memory, this device has 99")) << reason;
      }
    }
  }
  EXPECT_GE(served, 3 * kRowCount / 3) << "all of head_dim 64, on three architectures";
}

TEST(CudaMmaRows, OlderArchitecturesAreToldWhatIsExpected) {
  for (const Kernel& row : attention_kernels()) {
    const AttentionProblem p = problem_of(kRows[row.number]);
    for (const char* arch : {"sm_75", "sm_70"}) {
      const Device device = device_of(arch, 64);
      EXPECT_FALSE(is_for(row, device));
      EXPECT_EQ(row.why_not(row, p, device),
                "runs on compute capability 8.0 (Ampere) and newer, this device has " +
                    std::string(arch));
    }
    EXPECT_EQ(row.why_not(row, p, Device{}), "runs on NVIDIA GPUs only");
  }
}

TEST(CudaMmaRows, APlanOfAnAmpereOrAdaDeviceTakesThem) {
  for (const Config& c : kRows) {
    if (c.trace || c.head_dim != 64) continue;
    for (const auto& [arch, kibibytes] : {std::pair{"sm_80", 163}, std::pair{"sm_89", 99}}) {
      const auto chosen = plan(problem_of(c), device_of(arch, kibibytes));
      ASSERT_TRUE(chosen.ok()) << chosen.status().message();
      EXPECT_NE(chosen->kernel_id().find(".sm80.d64."), std::string::npos) << chosen->kernel_id();
    }
  }
  const auto none = plan(problem_of(kRows[0]), device_of("sm_75", 64));
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.status().message().find("sm_75"), std::string::npos) << none.status().message();
}

#endif  // TWOFOUR_WITH_CUDA

}  // namespace
}  // namespace twofour::cuda::sm80
#endif  // TWOFOUR_WITH_CUDA_HEADERS
