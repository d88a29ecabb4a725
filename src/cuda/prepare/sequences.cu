// Prefix sums over the sequences of a packed call: where each one's row tiles and key blocks
// start.
#include "cuda/error.h"
#include "cuda/prepare/keys.h"

namespace twofour::cuda {
namespace {

constexpr int kThreads = 1024;

struct Counts {
  int row_blocks, key_blocks;
};

__device__ Counts counts_of(const Sequences& all, int b) {
  const int seqlen_q = all.cu_seqlens_q[b + 1] - all.cu_seqlens_q[b];
  const int seqlen_k = all.cu_seqlens_k[b + 1] - all.cu_seqlens_k[b];
  Counts counts{0, static_cast<int>(layout::ceil_div(seqlen_k, all.block))};
  if (seqlen_q > 0) {
    const std::int64_t first = layout::first_position(all.causal, all.align, seqlen_q, seqlen_k);
    counts.row_blocks = static_cast<int>(layout::floor_div(first + seqlen_q - 1, all.row_tile) -
                                         layout::floor_div(first, all.row_tile)) +
                        1;
  }
  return counts;
}

// One block: a scan of kThreads sequences at a time, carried on.
__global__ void __launch_bounds__(kThreads) count_blocks_kernel(Sequences all) {
  __shared__ Counts warp_sums[32];
  __shared__ Counts carry;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    carry = {0, 0};
    all.row_blocks[0] = all.key_blocks[0] = 0;
  }
  for (int base = 0; base < all.batch; base += kThreads) {
    const int b = base + static_cast<int>(threadIdx.x);
    Counts sum = b < all.batch ? counts_of(all, b) : Counts{0, 0};
    for (int distance = 1; distance < 32; distance *= 2) {
      const int rows = __shfl_up_sync(~0u, sum.row_blocks, distance);
      const int keys = __shfl_up_sync(~0u, sum.key_blocks, distance);
      if (lane >= distance) {
        sum.row_blocks += rows;
        sum.key_blocks += keys;
      }
    }
    if (lane == 31) warp_sums[warp] = sum;
    __syncthreads();
    Counts before = carry;
    for (int w = 0; w < warp; ++w) {
      before.row_blocks += warp_sums[w].row_blocks;
      before.key_blocks += warp_sums[w].key_blocks;
    }
    sum.row_blocks += before.row_blocks;
    sum.key_blocks += before.key_blocks;
    if (b < all.batch) {
      all.row_blocks[b + 1] = sum.row_blocks;
      all.key_blocks[b + 1] = sum.key_blocks;
    }
    __syncthreads();
    if (threadIdx.x == kThreads - 1) carry = sum;
    __syncthreads();
  }
}

}  // namespace

Status count_blocks(const Sequences& sequences, cudaStream_t stream) {
  count_blocks_kernel<<<1, kThreads, 0, stream>>>(sequences);
  return launch_status("count_blocks");
}

}  // namespace twofour::cuda
