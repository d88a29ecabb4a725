// The CUDA device: there, or the one reason why not. Runs with and without a GPU.
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "cuda/device.h"
#include "cuda/memory.h"
#include "twofour/attention.h"

namespace twofour {
namespace {

TEST(CudaDevice, IsThereOrSaysWhyNotInOneLine) {
  const auto device = cuda_device();
  if (device.ok()) {
    EXPECT_GT(cuda_device_count(), 0);
    EXPECT_EQ(device->kind, DeviceKind::kCuda);
    EXPECT_EQ(device->index, 0);
    EXPECT_FALSE(device->name.empty());
    EXPECT_EQ(device->arch.rfind("sm_", 0), 0u);
    EXPECT_GT(device->multiprocessors, 0);
    EXPECT_GE(device->shared_memory, 48 * 1024);
    EXPECT_GT(device->peak_gflops, 1000);
    return;
  }
  const std::string& message = device.status().message();
  EXPECT_EQ(message.rfind("CUDA", 0), 0u) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
#ifdef TWOFOUR_WITH_CUDA
  EXPECT_NE(device.status().code(), Code::kInternal) << message;
  EXPECT_NE(message.find("expected"), std::string::npos) << message;
  if (cuda_device_count() > 0) {
    EXPECT_NE(message.find("which this build has kernels for"), std::string::npos) << message;
  }
#else
  EXPECT_EQ(device.status().code(), Code::kUnsupported);
  EXPECT_EQ(message, "CUDA: this build of twofour has no CUDA kernels");
  EXPECT_EQ(cuda_device_count(), 0);
#endif
}

TEST(CudaDevice, AnIndexBeyondTheLastIsNotFound) {
  const int count = cuda_device_count();
  if (count == 0) GTEST_SKIP() << "no CUDA device";
  for (const int index : {-1, count}) {
    const auto device = cuda_device(index);
    ASSERT_FALSE(device.ok());
    EXPECT_EQ(device.status().code(), Code::kNotFound);
    EXPECT_EQ(device.status().message(),
              "CUDA device " + std::to_string(index) + ": expected an index in 0.." +
                  std::to_string(count - 1) + ", got " + std::to_string(index));
  }
}

TEST(CudaDevice, ManyThreadsGetTheSameAnswer) {
  std::vector<std::string> answers(8);
  std::vector<std::thread> threads;
  for (std::string& answer : answers) {
    threads.emplace_back([&answer] {
      const auto device = cuda_device();
      answer = device.ok() ? device->name + device->arch : device.status().message();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& answer : answers) EXPECT_EQ(answer, answers[0]);
}

TEST(CudaDevice, MemoryOfTheHostIsOnNoDevice) {
  std::vector<float> memory(16);
  EXPECT_FALSE(cuda::device_of(memory.data()));
  EXPECT_FALSE(cuda::device_of(&memory));
  EXPECT_FALSE(cuda::device_of(nullptr));
}

TEST(CudaDevice, MemoryGoesThereAndBack) {
  const auto device = cuda_device();
  const std::vector<int> sent{3, 1, 4, 1, 5};
  std::vector<int> received(sent.size());
  const std::size_t bytes = sent.size() * sizeof(int);
  const auto buffer = cuda::Buffer::allocate(0, bytes);
  if (!device.ok()) {
    EXPECT_FALSE(buffer.ok());
    EXPECT_FALSE(buffer.status().message().empty());
    GTEST_SKIP() << device.status().message();
  }
  ASSERT_TRUE(buffer.ok()) << buffer.status().message();
  EXPECT_EQ(cuda::device_of(buffer->data()), 0);
  ASSERT_TRUE(cuda::copy_to_device(buffer->data(), sent.data(), bytes).ok());
  ASSERT_TRUE(cuda::copy_to_host(received.data(), buffer->data(), bytes).ok());
  EXPECT_EQ(received, sent);
  ASSERT_TRUE(cuda::fill(buffer->data(), 0, bytes).ok());
  ASSERT_TRUE(cuda::copy_to_host(received.data(), buffer->data(), bytes).ok());
  EXPECT_EQ(received, std::vector<int>(sent.size()));
  EXPECT_TRUE(cuda::synchronize(0).ok());
}

TEST(CudaDevice, TooMuchMemoryIsRefused) {
  const auto device = cuda_device();
  if (!device.ok()) GTEST_SKIP() << device.status().message();
  const auto buffer = cuda::Buffer::allocate(0, std::size_t{1} << 50);
  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.status().code(), Code::kOutOfMemory) << buffer.status().message();
}

// A run on the host must work where no driver is, and must not start one.
TEST(CudaDevice, AConvenienceCallOnTheHostStaysThere) {
  std::vector<float> q(8 * 64, 0.5f), o(8 * 64, -1.0f);
  AttentionArgs args;
  args.q = contiguous(static_cast<const void*>(q.data()), DType::kF32, {1, 8, 1, 64});
  args.k = args.v = args.q;
  args.o = contiguous(o.data(), DType::kF32, {1, 8, 1, 64});
  const Status status = attention({}, args);
  ASSERT_TRUE(status.ok()) << status.message();
  for (const float value : o) EXPECT_FLOAT_EQ(value, 0.5f);
}

}  // namespace
}  // namespace twofour
