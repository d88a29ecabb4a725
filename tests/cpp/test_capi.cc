// The C API beside the C++ API: same results, errors per thread, no exceptions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "capi/convert.h"
#include "support/random.h"
#include "twofour/attention.h"
#include "twofour/twofour.h"

namespace {

constexpr std::int64_t M = 130, N = 400, Hq = 4, Hkv = 2, D = 32, Dv = 16;

struct Data {
  std::vector<float> q, k, v, o = std::vector<float>(M * Hq * Dv), lse = std::vector<float>(Hq * M);

  Data() {
    twofour::test::Random random(3);
    for (auto [data, size] : {std::pair(&q, M * Hq * D), {&k, N * Hkv * D}, {&v, N * Hkv * Dv}}) {
      data->resize(size);
      for (float& x : *data) x = static_cast<float>(random.normal());
    }
  }
};

twofour_attention_problem c_problem(const char* sparsity) {
  twofour_attention_problem p;
  twofour_attention_problem_init(&p);
  p.sparsity = sparsity;
  p.heads_q = Hq;
  p.heads_kv = Hkv;
  p.head_dim = D;
  p.head_dim_v = Dv;
  p.seqlen_q = M;
  p.seqlen_k = N;
  p.causal = 1;
  return p;
}

/// Four-dimensional tensors, or packed ones of a single sequence.
twofour_attention_args c_args(Data& data, bool packed = false) {
  twofour_attention_args a;
  twofour_attention_args_init(&a);
  const auto tensor = [packed](const void* memory, std::vector<std::int64_t> shape) {
    const int skip = packed ? 1 : 0;
    return twofour_contiguous(memory, TWOFOUR_FP32, static_cast<int>(shape.size()) - skip,
                              shape.data() + skip);
  };
  a.q = tensor(data.q.data(), {1, M, Hq, D});
  a.k = tensor(data.k.data(), {1, N, Hkv, D});
  a.v = tensor(data.v.data(), {1, N, Hkv, Dv});
  a.o = tensor(data.o.data(), {1, M, Hq, Dv});
  a.lse = tensor(data.lse.data(), {1, Hq, M});
  return a;
}

void run(const twofour_attention_problem& problem, const twofour_attention_args& args) {
  ASSERT_EQ(twofour_attention(&problem, &args), TWOFOUR_OK) << twofour_last_error();
}

TEST(CApi, EveryModeGivesTheBitsOfTheCppApi) {
  for (const char* mode : {"dense", "score", "int8", "dual", "refined", "exact/nm24_adjacent128"}) {
    Data c, cpp;
    run(c_problem(mode), c_args(c));
    twofour::AttentionProblem problem;
    problem.causal = true;
    problem.sparsity = *twofour::parse_sparsity(mode);
    twofour::AttentionArgs args;
    const auto f32 = twofour::DType::kF32;
    args.q = twofour::contiguous(cpp.q.data(), f32, {1, M, Hq, D});
    args.k = twofour::contiguous(cpp.k.data(), f32, {1, N, Hkv, D});
    args.v = twofour::contiguous(cpp.v.data(), f32, {1, N, Hkv, Dv});
    args.o = twofour::contiguous(cpp.o.data(), f32, {1, M, Hq, Dv});
    args.lse = twofour::contiguous(cpp.lse.data(), f32, {1, Hq, M});
    ASSERT_TRUE(twofour::attention(problem, args).ok());
    EXPECT_EQ(c.o, cpp.o) << mode;
    EXPECT_EQ(c.lse, cpp.lse) << mode;
  }
}

TEST(CApi, PackedAndPlanAndRunAgreeWithOneShot) {
  Data one, packed;
  run(c_problem("score"), c_args(one));
  twofour_attention_problem problem = c_problem("score");
  problem.packed = 1;
  problem.total_q = M;
  problem.total_k = N;
  twofour_attention_args args = c_args(packed, true);
  const std::int32_t offsets_q[] = {0, M}, offsets_k[] = {0, N};
  args.cu_seqlens_q = offsets_q;
  args.cu_seqlens_k = offsets_k;
  twofour_plan* plan = nullptr;
  ASSERT_EQ(twofour_plan_create(&problem, nullptr, &plan), TWOFOUR_OK) << twofour_last_error();
  std::vector<char> workspace(twofour_plan_workspace_bytes(plan));
  EXPECT_EQ(twofour_plan_run(plan, &args, workspace.data(), workspace.size(), nullptr), TWOFOUR_OK)
      << twofour_last_error();
  EXPECT_STREQ(twofour_plan_sparsity(plan), "exact/pair128/s1/l0");
  twofour_plan_destroy(plan);
  EXPECT_EQ(one.o, packed.o);
}

TEST(CApi, ScaleWindowAndMaskReachTheKernel) {
  Data plain, scaled, window, masked;
  twofour_attention_problem problem = c_problem("dense");
  run(problem, c_args(plain));
  problem.has_scale = 1;
  problem.scale = 0;  // every live key alike
  run(problem, c_args(scaled));
  EXPECT_NEAR(scaled.lse[0], std::log(N - M + 1.0), 1e-5);
  problem.window_left = 9;
  run(problem, c_args(window));
  EXPECT_NEAR(window.lse[0], std::log(10.0), 1e-5);
  problem = c_problem("dense");
  problem.causal = 0;
  problem.has_scale = 1;
  std::vector<char> live(N, 0);
  std::fill_n(live.begin(), 5, 1);
  twofour_attention_args args = c_args(masked);
  const std::int64_t shape[] = {1, Hq, M, N};
  args.mask = twofour_contiguous(live.data(), TWOFOUR_BOOL, 4, shape);
  args.mask.stride[0] = args.mask.stride[1] = args.mask.stride[2] = 0;
  run(problem, args);
  EXPECT_NEAR(masked.lse[0], std::log(5.0), 1e-5);
}

TEST(CApi, PreparedKeysAndTransformAreUsed) {
  Data own, given;
  twofour_attention_problem problem = c_problem("int8");
  run(problem, c_args(own));
  twofour_prepared_k* prepared = nullptr;
  twofour_attention_args args = c_args(given);
  ASSERT_EQ(twofour_prepare_k(&problem, &args, &prepared), TWOFOUR_OK) << twofour_last_error();
  args.prepared_k = prepared;
  run(problem, args);
  EXPECT_EQ(own.o, given.o);
  twofour_prepared_k_destroy(prepared);
  problem.sparsity = "dense";
  EXPECT_EQ(twofour_prepare_k(&problem, &args, nullptr), TWOFOUR_INVALID_ARGUMENT);

  // T = 2 I with T^-T = I / 2 keeps every product and every choice.
  Data plain, scaled;
  problem = c_problem("dual");
  run(problem, c_args(plain));
  std::vector<float> twice(Hkv * D * D), half(Hkv * D * D);
  for (std::int64_t i = 0; i < Hkv * D; ++i) {
    twice[i * D + i % D] = 2;
    half[i * D + i % D] = 0.5;
  }
  twofour_key_transform transform = {sizeof transform, Hkv, D, twice.data(), half.data(), nullptr};
  args = c_args(scaled);
  args.transform = &transform;
  run(problem, args);
  for (std::size_t i = 0; i < plain.o.size(); ++i) ASSERT_NEAR(plain.o[i], scaled.o[i], 1e-5);
  transform.heads_kv = 7;
  EXPECT_EQ(twofour_attention(&problem, &args), TWOFOUR_INVALID_ARGUMENT);
  EXPECT_STREQ(twofour_last_error(),
               "transform: expected heads_kv 2 and head_dim 32, got 7 and 32");
  transform.struct_size = 3;
  EXPECT_EQ(twofour_attention(&problem, &args), TWOFOUR_INVALID_ARGUMENT);
}

TEST(CApi, CountsGoWhereTheDeviceIs) {
  Data data;
  const twofour_attention_problem problem = c_problem("dense");
  twofour_attention_args args = c_args(data);
  std::int64_t counts[5];
  args.device_stats = counts;
  EXPECT_EQ(twofour_attention(&problem, &args), TWOFOUR_INVALID_ARGUMENT);
  EXPECT_STREQ(twofour_last_error(),
               "device_stats: expected NULL on the CPU, whose counts go to stats, got a pointer");

  twofour_attention_stats stats;
  stats.struct_size = sizeof stats;
  args.stats = &stats;
  twofour::capi::Arguments arguments;
  const twofour::Status status =
      twofour::capi::to_arguments(&args, twofour::DeviceKind::kCuda, arguments);
  EXPECT_EQ(status.message(),
            "stats: expected NULL on CUDA, whose counts go to device_stats, got a pointer");
  args.stats = nullptr;
  ASSERT_TRUE(twofour::capi::to_arguments(&args, twofour::DeviceKind::kCuda, arguments).ok());
  EXPECT_EQ(static_cast<void*>(arguments.args.stats), counts);
}

TEST(CApi, CudaDevicesAreThoseOfTheCppApi) {
  EXPECT_EQ(twofour_cuda_device_count(), twofour::cuda_device_count());
  twofour_device_info info;
  info.struct_size = sizeof info;
  twofour_plan* plan = nullptr;
  twofour_attention_problem problem = c_problem("dense");
  const auto device = twofour::cuda_device(0);
  if (!device.ok()) {
    const auto code = static_cast<twofour_code>(device.status().code());
    EXPECT_EQ(twofour_cuda_device(0, &info), code);
    EXPECT_EQ(twofour_last_error(), device.status().message());
    EXPECT_EQ(twofour_plan_create_cuda(&problem, 0, nullptr, &plan), code);
    EXPECT_EQ(twofour_last_error(), device.status().message());
    EXPECT_EQ(plan, nullptr);
    return;
  }
  ASSERT_EQ(twofour_cuda_device(0, &info), TWOFOUR_OK) << twofour_last_error();
  EXPECT_EQ(info.kind, TWOFOUR_CUDA);
  EXPECT_EQ(info.arch, device->arch);
  EXPECT_EQ(info.multiprocessors, device->multiprocessors);
  EXPECT_EQ(info.shared_memory, device->shared_memory);
  problem.dtype = TWOFOUR_FP16;
  problem.head_dim = problem.head_dim_v = 64;
  ASSERT_EQ(twofour_plan_create_cuda(&problem, 0, nullptr, &plan), TWOFOUR_OK)
      << twofour_last_error();
  EXPECT_NE(std::string(twofour_plan_explain(plan)).find(device->name), std::string::npos);
  twofour_plan_destroy(plan);
}

TEST(CApi, LastErrorBelongsToTheThread) {
  EXPECT_EQ(twofour_plan_create(nullptr, nullptr, nullptr), TWOFOUR_INVALID_ARGUMENT);
  const std::string mine = twofour_last_error();
  std::string first = "unset", second;
  std::thread([&] {
    first = twofour_last_error();
    char text[8];
    EXPECT_EQ(twofour_sparsity_canonical("nonsense", text, sizeof text), TWOFOUR_INVALID_ARGUMENT);
    second = twofour_last_error();
  }).join();
  EXPECT_EQ(first, "");
  EXPECT_NE(second.find("nonsense"), std::string::npos);
  EXPECT_EQ(twofour_last_error(), mine);
}

TEST(CApi, NoExceptionLeaves) {
  using twofour::capi::guarded;
  EXPECT_EQ(guarded([]() -> twofour::Status { throw std::bad_alloc(); }), TWOFOUR_OUT_OF_MEMORY);
  EXPECT_STREQ(twofour_last_error(), "out of memory");
  EXPECT_EQ(guarded([]() -> twofour::Status { throw std::runtime_error("oops"); }),
            TWOFOUR_INTERNAL);
  EXPECT_STREQ(twofour_last_error(), "oops");
  EXPECT_EQ(guarded([]() -> twofour::Status { throw 3; }), TWOFOUR_INTERNAL);
}

}  // namespace
