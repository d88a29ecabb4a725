// prepare_k reads the caller's memory on its own, so it checks it as a run does.
#include <gtest/gtest.h>

#include <vector>

#include "twofour/attention.h"

namespace twofour {
namespace {

struct Call {
  AttentionProblem problem;
  AttentionArgs args;
  std::vector<float> k = std::vector<float>(16 * 64);
  std::vector<std::int32_t> offsets;

  Call() {
    problem.sparsity = preset(Mode::kInt8);
    problem.seqlen_q = problem.seqlen_k = 16;
    args.k = contiguous(static_cast<const void*>(k.data()), DType::kF32, {1, 16, 1, 64});
  }
  void pack(std::vector<std::int32_t> cu_seqlens) {
    offsets = std::move(cu_seqlens);
    problem.packed = true;
    problem.batch = static_cast<std::int64_t>(offsets.size()) - 1;
    problem.total_q = problem.total_k = 16;
    args.k = contiguous(static_cast<const void*>(k.data()), DType::kF32, {16, 1, 64});
    args.cu_seqlens_q = args.cu_seqlens_k = offsets.data();
  }
  std::string refusal() const { return prepare_k(problem, args).status().message(); }
};

TEST(PrepareK, TakesWhatARunTakes) {
  Call padded;
  ASSERT_TRUE(prepare_k(padded.problem, padded.args).ok()) << padded.refusal();
  Call packed;
  packed.pack({0, 5, 5, 16});
  const auto prepared = prepare_k(packed.problem, packed.args);
  ASSERT_TRUE(prepared.ok()) << packed.refusal();
  EXPECT_EQ(prepared->block_offset, (std::vector<std::int64_t>{0, 1, 1, 2}));
}

TEST(PrepareK, RefusesAMissingMask) {
  Call call;
  call.problem.has_mask = true;
  EXPECT_EQ(call.refusal().rfind("mask: expected", 0), 0u) << call.refusal();
}

TEST(PrepareK, RefusesOffsetsOutsideTheKeys) {
  Call call;
  call.pack({0, 100000, 16});
  EXPECT_EQ(call.refusal().rfind("cu_seqlens_", 0), 0u) << call.refusal();
  call.args.cu_seqlens_k = nullptr;
  EXPECT_EQ(call.refusal().rfind("cu_seqlens_", 0), 0u) << call.refusal();
}

TEST(PrepareK, RefusesStridesItCannotFollow) {
  Call call;
  call.args.k.stride[1] = std::int64_t{1} << 62;
  EXPECT_EQ(call.refusal().rfind("k: expected", 0), 0u) << call.refusal();
  call.args.k.stride[1] = -64;
  EXPECT_EQ(call.refusal().rfind("k: expected", 0), 0u) << call.refusal();
}

}  // namespace
}  // namespace twofour
