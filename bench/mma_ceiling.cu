// What the warp-level tensor instructions reach when nothing else is done: the ceilings of the
// mma.sync kernel (docs/kernels/sm80.md). Dense mma.m16n8k16 and mma.sp::ordered_metadata.m16n8k32,
// with B in registers, and with B by ldmatrix used for 16 or for 32 rows of A.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "cuda/ptx/mma.h"

namespace {

using twofour::DType;
namespace ptx = twofour::cuda::ptx;

constexpr int kWarps = 8;
constexpr int kBlocks = 16;  // n-blocks of a warp: accumulators of 128 channels
constexpr int kRepeats = 2048;
constexpr std::uint32_t kMetadata = 0xDDDDDDDDu;  // of each group the second and the last

void require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "mma_ceiling: %s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

/// kTiles row tiles of 16; each fragment of B is used for all of them.
template <bool kSparse, bool kLoad, int kTiles>
__global__ void __launch_bounds__(32 * kWarps, 1) products(float* out) {
  // Of many values, as clocks fall with the bits that flip.
  extern __shared__ __align__(128) unsigned char memory[];
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x; i < 16384 / 4; i += blockDim.x)
    reinterpret_cast<std::uint32_t*>(memory)[i] = (i * 0x9E3779B9u) & 0x3FFF3FFFu;
  __syncthreads();
  const auto start = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
  float d[kTiles][kBlocks][4] = {};
  std::uint32_t a[kTiles][4], b[4];
  for (int r = 0; r < kTiles; ++r)
    for (int i = 0; i < 4; ++i) a[r][i] = (0x3C003C00u + 37 * lane + r) ^ (lane << 20);
  for (int i = 0; i < 4; ++i) b[i] = (threadIdx.x * 0x9E3779B9u >> i) & 0x3FFF3FFFu;
#pragma unroll 1
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    // Eight rows of 16 bytes in a row lie in eight bank groups.
    const std::uint32_t at = start + 512 * (repeat % 16) + 16 * lane;
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      if constexpr (kLoad) {
        // One load is B of one sparse product, or of two dense ones.
        if (kSparse || n % 2 == 0) ptx::ldmatrix_x4(b, at + 512 * (n % 16));
      }
#pragma unroll
      for (int r = 0; r < kTiles; ++r) {
        if constexpr (kSparse)
          ptx::mma_sp_m16n8k32<DType::kF16, 0>(d[r][n], a[r], b, kMetadata);
        else
          ptx::mma_m16n8k16<DType::kF16>(d[r][n], a[r], b[n % 2 * 2], b[n % 2 * 2 + 1]);
      }
    }
  }
  float sum = 0;
  for (int r = 0; r < kTiles; ++r)
    for (int n = 0; n < kBlocks; ++n)
      for (int i = 0; i < 4; ++i) sum += d[r][n][i];
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

/// Best of five, in TFLOPS of the dense product (a multiply-add counts as two).
template <bool kSparse, bool kLoad, int kTiles>
void measure(const char* name, int multiprocessors, float* out) {
  constexpr int kTrials = 5;
  cudaEvent_t begin, end;
  require(cudaEventCreate(&begin), "event");
  require(cudaEventCreate(&end), "event");
  float best = 1e30f;
  for (int trial = 0; trial <= kTrials; ++trial) {  // the first warms up
    require(cudaEventRecord(begin), "record");
    products<kSparse, kLoad, kTiles><<<multiprocessors, 32 * kWarps, 16384>>>(out);
    require(cudaGetLastError(), name);
    require(cudaEventRecord(end), "record");
    require(cudaEventSynchronize(end), name);
    float milliseconds = 0;
    require(cudaEventElapsedTime(&milliseconds, begin, end), "time");
    if (trial > 0) best = std::min(best, milliseconds);
  }
  const double flops =
      2.0 * 16 * 8 * (kSparse ? 32 : 16) * kTiles * kBlocks * kRepeats * kWarps * multiprocessors;
  std::printf("%-44s %7.1f TFLOPS\n", name, flops / (best * 1e-3) / 1e12);
  require(cudaEventDestroy(begin), "event");
  require(cudaEventDestroy(end), "event");
}

}  // namespace

int main() {
  cudaDeviceProp device;
  require(cudaGetDeviceProperties(&device, 0), "device 0");
  const int count = device.multiProcessorCount;
  std::printf("%s, sm_%d%d, %d multiprocessors, %d warps each, fp16 with fp32 accumulators\n",
              device.name, device.major, device.minor, count, kWarps);
  float* out = nullptr;
  require(cudaMalloc(&out, sizeof(float) * count * 32 * kWarps), "memory");
  measure<false, false, 2>("mma m16n8k16, registers only", count, out);
  measure<false, true, 1>("mma m16n8k16, ldmatrix for 16 rows", count, out);
  measure<false, true, 2>("mma m16n8k16, ldmatrix for 32 rows", count, out);
  measure<true, false, 2>("mma.sp m16n8k32, registers only", count, out);
  measure<true, true, 1>("mma.sp m16n8k32, ldmatrix for 16 rows", count, out);
  measure<true, true, 2>("mma.sp m16n8k32, ldmatrix for 32 rows", count, out);
  require(cudaFree(out), "memory");
  return 0;
}
