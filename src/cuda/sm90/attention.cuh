// Fused attention on wgmma and wgmma.sp: one persistent CTA per multiprocessor, one warpgroup whose
// warps feed shared memory by TMA, three that compute 64 query rows each.
//
// Two bodies over the same operands. `plain` steps mask element by element and find row maxima;
// `fast` steps serve fully live blocks: no mask, pairs pruned in the accumulator, and instead of a
// row maximum a test that no score has outgrown the reference. docs/kernels/sm90.md has the budget.
#pragma once

#include "cuda/sm90/producer.h"
#include "cuda/sm90/row_block.h"

namespace twofour::cuda::sm90 {

// setmaxnreg: 3 x 128 x 160 + 128 x 32 is the whole register file.
inline constexpr int kConsumerRegisters = 160;
inline constexpr int kProducerRegisters = 32;

template <int kRow>
__global__ void __launch_bounds__(kThreads, 1) attention_kernel(const __grid_constant__ Params p) {
  constexpr Config c = kRows[kRow];
  using S = Shared<c>;
  extern __shared__ unsigned char allocated[];
  const std::uint32_t start = ptx::shared_address(allocated);
  const std::uint32_t shared = (start + 1023) & ~1023u;
  unsigned char* memory = allocated + (shared - start);
  // Warp-uniform by construction, and known to be by the compiler.
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < c.stages; ++stage) {
      ptx::mbarrier_init(shared + S::key_full(stage), 1);
      ptx::mbarrier_init(shared + S::value_full(stage), 1);
      ptx::mbarrier_init(shared + S::key_empty(stage), kWarpgroups);
      ptx::mbarrier_init(shared + S::value_empty(stage), kWarpgroups);
    }
    for (int slot = 0; slot < kItemSlots; ++slot) {
      ptx::mbarrier_init(shared + S::item_full(slot), 1);
      // Every warp of the consumers, and the two that feed them.
      ptx::mbarrier_init(shared + S::item_empty(slot), 4 * kWarpgroups + 2);
    }
    ptx::fence_barrier_init();
  }
  __syncthreads();

  if (warpgroup == kWarpgroups) {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0) - 4 * kWarpgroups;
    if (warp == 0) feed_keys<c>(p, memory, shared);
    if (warp == 1) feed_values<c>(p, memory, shared);
    if (threadIdx.x == 128 * kWarpgroups + 64) hand_out_items<c>(p, memory, shared);
    return;
  }
  ptx::setmaxnreg_inc<kConsumerRegisters>();
  const int thread = static_cast<int>(threadIdx.x) % 128;
  RowBlock<c> consumer(p, memory, shared, warpgroup, thread);
  if (warpgroup == kWarpgroups - 1) consumer.pass_turn();
  const auto* slots = reinterpret_cast<const Item*>(memory + S::kItems);
  Ring<kItemSlots> ring;
  while (true) {
    ptx::mbarrier_wait(shared + S::item_full(ring.stage), ring.parity);
    const Item& item = slots[ring.stage];
    if (item.b < 0) break;
    consumer.run(item);
    __syncwarp();
    if (thread % 32 == 0) ptx::mbarrier_arrive(shared + S::item_empty(ring.stage));
    ring.next();
  }
}

}  // namespace twofour::cuda::sm90
