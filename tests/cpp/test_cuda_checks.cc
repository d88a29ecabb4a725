// Arguments in the memory of a CUDA device: faults are named, and nothing there is read. The
// addresses are made up, so that a check that reads from one crashes; no GPU is needed.
#include <gtest/gtest.h>

#include <functional>

#include "ops/check.h"
#include "plan/registry.h"
#include "twofour/attention.h"

namespace twofour {
namespace {

constexpr std::int64_t B = 2, M = 20, N = 70, Hq = 4, Hkv = 2, D = 64, Dv = 64;

Device hopper() {
  Device device;
  device.kind = DeviceKind::kCuda;
  device.name = "a GPU";
  device.arch = "sm_90";
  device.multiprocessors = 132;
  device.shared_memory = 232448;
  return device;
}

/// An address on no page of this process, `bytes` into tensor number `slot`.
template <class T>
T* made_up(int slot, std::int64_t bytes = 0) {
  return reinterpret_cast<T*>(std::uintptr_t{0x40} + std::uintptr_t{0x100000} * slot + bytes);
}

struct Call {
  AttentionProblem problem;
  AttentionArgs args;
  KeyTransform transform;
};

Call make_call(bool packed) {
  Call call;
  AttentionProblem& p = call.problem;
  p.dtype = DType::kF16;
  p.batch = B;
  p.heads_q = Hq;
  p.heads_kv = Hkv;
  p.head_dim = D;
  p.head_dim_v = Dv;
  p.seqlen_q = M;
  p.seqlen_k = N;
  p.packed = packed;
  AttentionArgs& a = call.args;
  if (packed) {
    p.total_q = 30;
    p.total_k = 90;
    a.q = contiguous(made_up<const void>(1), p.dtype, {30, Hq, D});
    a.k = contiguous(made_up<const void>(2), p.dtype, {90, Hkv, D});
    a.v = contiguous(made_up<const void>(3), p.dtype, {90, Hkv, Dv});
    a.o = contiguous(made_up<void>(4), p.dtype, {30, Hq, Dv});
    a.lse = contiguous(made_up<void>(5), DType::kF32, {Hq, 30});
    a.cu_seqlens_q = made_up<const std::int32_t>(6);
    a.cu_seqlens_k = made_up<const std::int32_t>(7);
  } else {
    a.q = contiguous(made_up<const void>(1), p.dtype, {B, M, Hq, D});
    a.k = contiguous(made_up<const void>(2), p.dtype, {B, N, Hkv, D});
    a.v = contiguous(made_up<const void>(3), p.dtype, {B, N, Hkv, Dv});
    a.o = contiguous(made_up<void>(4), p.dtype, {B, M, Hq, Dv});
    a.lse = contiguous(made_up<void>(5), DType::kF32, {B, Hq, M});
  }
  a.stats = made_up<AttentionStats>(8);
  return call;
}

void with_transform(Call& call) {
  call.problem.sparsity = preset(Mode::kDual);
  call.problem.has_transform = true;
  call.transform = {Hkv, D, made_up<const float>(9), made_up<const float>(10),
                    made_up<const float>(11)};
  call.args.transform = &call.transform;
}

std::string fault(bool packed, const std::function<void(Call&)>& change) {
  Call call = make_call(packed);
  change(call);
  const Status status = check_args(call.problem, call.args, hopper());
  return status.ok() ? "" : std::string(to_string(status.code())) + " " + status.message();
}

TEST(CudaChecks, WhatIsRightIsAcceptedWithoutBeingRead) {
  for (const bool packed : {false, true}) EXPECT_EQ(fault(packed, [](Call&) {}), "");
  EXPECT_EQ(fault(false, with_transform), "");
  EXPECT_EQ(fault(true, with_transform), "");
  const auto sliced_heads = [](Call& c) { c.args.k.stride[2] = 3 * D; };
  EXPECT_EQ(fault(false, [](Call& c) { c.args.k.stride[2] = 0; }), "") << "broadcast heads";
  EXPECT_EQ(fault(false,
                  [&](Call& c) {
                    sliced_heads(c);
                    c.args.k.stride[1] = 2 * 3 * D;
                    c.args.k.stride[0] = N * 2 * 3 * D;
                  }),
            "");
}

TEST(CudaChecks, AxesOfOneElementMayHaveAnyStride) {
  Call call = make_call(false);
  call.problem.batch = 1;
  for (TensorView* view : {&call.args.o}) view->shape[0] = 1, view->stride[0] = 3;
  for (ConstTensorView* view : {&call.args.q, &call.args.k, &call.args.v}) {
    view->shape[0] = 1;
    view->stride[0] = 3;
  }
  call.args.lse.shape[0] = 1;
  EXPECT_TRUE(check_args(call.problem, call.args, hopper()).ok());
}

TEST(CudaChecks, AddressesAndStridesAreMultiplesOf16Bytes) {
  using Pick = ConstTensorView* (*)(Call&);
  const std::pair<const char*, Pick> inputs[] = {
      {"q", [](Call& c) { return &c.args.q; }},
      {"k", [](Call& c) { return &c.args.k; }},
      {"v", [](Call& c) { return &c.args.v; }},
  };
  for (const auto& [name, pick] : inputs) {
    EXPECT_EQ(
        fault(false, [&, pick = pick](
                         Call& c) { pick(c)->data = static_cast<const char*>(pick(c)->data) + 8; }),
        std::string("invalid_argument ") + name +
            ": expected an address aligned to 16 bytes on CUDA, got one that is not");
    for (const bool packed : {false, true}) {
      const int row = packed ? 0 : 1;
      EXPECT_EQ(fault(packed, [&, pick = pick](Call& c) { pick(c)->stride[row] += 4; }),
                std::string("invalid_argument ") + name +
                    ": expected strides of a multiple of 16 bytes on CUDA, got stride " +
                    std::to_string((name[0] == 'q' ? Hq : Hkv) * D + 4) + " (" +
                    std::to_string(((name[0] == 'q' ? Hq : Hkv) * D + 4) * 2) + " bytes) of axis " +
                    std::to_string(row));
    }
  }
  EXPECT_EQ(fault(false, [](Call& c) { c.args.o.data = made_up<void>(4, 2); }),
            "invalid_argument o: expected an address aligned to 16 bytes on CUDA, got one that is "
            "not");
  EXPECT_EQ(fault(false, [](Call& c) { c.args.o.stride[0] += 1; }),
            "invalid_argument o: expected strides of a multiple of 16 bytes on CUDA, got stride " +
                std::to_string(M * Hq * Dv + 1) + " (" + std::to_string(2 * (M * Hq * Dv + 1)) +
                " bytes) of axis 0");
  EXPECT_EQ(fault(false, [](Call& c) { c.args.stats = made_up<AttentionStats>(8, 4); }),
            "invalid_argument stats: expected an address aligned to 8 bytes, got one that is not");
}

TEST(CudaChecks, TheSameMemoryIsFineOnTheCpu) {
  Call call = make_call(false);
  call.args.q.data = made_up<const void>(1, 2);
  call.args.o.stride[0] += 1;
  EXPECT_TRUE(check_args(call.problem, call.args).ok());
}

TEST(CudaChecks, OffsetsAreThereAndAligned) {
  EXPECT_EQ(fault(true, [](Call& c) { c.args.cu_seqlens_k = nullptr; }),
            "invalid_argument cu_seqlens_k: expected 3 offsets with packed, got a null pointer");
  EXPECT_EQ(fault(true, [](Call& c) { c.args.cu_seqlens_q = made_up<const std::int32_t>(6, 2); }),
            "invalid_argument cu_seqlens_q: expected an address aligned to 4 bytes, got one that "
            "is not");
  EXPECT_EQ(fault(false, [](Call& c) { c.args.cu_seqlens_q = made_up<const std::int32_t>(6); }),
            "invalid_argument cu_seqlens: expected none, since the problem is not packed, got "
            "offsets");
}

TEST(CudaChecks, OverlapIsFoundByAddress) {
  EXPECT_EQ(fault(false, [](Call& c) { c.args.o.data = made_up<void>(2, 16); }),
            "invalid_argument o: expected memory that overlaps nothing else, got an overlap with "
            "k");
  EXPECT_EQ(fault(true, [](Call& c) { c.args.lse.data = made_up<void>(7); }),
            "invalid_argument lse: expected memory that overlaps nothing else, got an overlap with "
            "cu_seqlens_k");
  EXPECT_EQ(fault(false, [](Call& c) { c.args.lse.data = made_up<void>(4); }),
            "invalid_argument o: expected memory that overlaps nothing else, got an overlap with "
            "lse");
  EXPECT_EQ(fault(false, [](Call& c) { c.args.stats = made_up<AttentionStats>(4); }),
            "invalid_argument o: expected memory that overlaps nothing else, got an overlap with "
            "stats");
  EXPECT_EQ(fault(false, [](Call& c) { c.args.stats = made_up<AttentionStats>(3); }),
            "invalid_argument stats: expected memory that overlaps nothing else, got an overlap "
            "with v");
  EXPECT_EQ(fault(false,
                  [](Call& c) {
                    with_transform(c);
                    c.args.lse.data = made_up<void>(11);
                  }),
            "invalid_argument lse: expected memory that overlaps nothing else, got an overlap with "
            "transform.w");
  const Call call = make_call(false);
  EXPECT_EQ(check_workspace(call.problem, call.args, made_up<void>(8), 16).message(),
            "workspace: expected memory that overlaps nothing else, got an overlap with stats");
  EXPECT_TRUE(check_workspace(call.problem, call.args, made_up<void>(12), 4096).ok());
}

TEST(CudaChecks, APreparedKIsRefusedByName) {
  AttentionProblem problem = make_call(false).problem;
  problem.sparsity = preset(Mode::kInt8);
  problem.has_prepared_k = true;
  const auto made = plan(problem, hopper());
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), Code::kUnsupported);
  EXPECT_EQ(made.status().message(),
            "prepared_k: expected none on CUDA, where every run prepares its own, got one");
}

TEST(CudaChecks, RowsOfTheCpuRefuseADeviceByReason) {
  for (const Kernel& row : kernels()) {
    if (row.arch != "cpu" && row.arch != "any") continue;
    AttentionProblem problem = make_call(false).problem;
    problem.sparsity.qk = row.config.qk;
    problem.sparsity.score = row.config.score;
    problem.trace = row.config.trace;
    const std::string why = row.why_not(row, problem, hopper());
    EXPECT_TRUE(why == "runs on the CPU only" || why == "reads memory of the host only")
        << row.id << ": " << why;
  }
}

TEST(CudaChecks, RowsOfADeviceRefuseTheCpu) {
  const auto cpu = cpu_device();
  ASSERT_TRUE(cpu.ok());
  for (const Kernel& row : kernels()) {
    if (row.arch.rfind("sm_", 0) != 0) continue;
    AttentionProblem problem = make_call(false).problem;
    problem.sparsity.qk = row.config.qk;
    problem.sparsity.score = row.config.score;
    problem.trace = row.config.trace;
    EXPECT_NE(row.why_not(row, problem, *cpu), "") << row.id;
  }
}

}  // namespace
}  // namespace twofour
