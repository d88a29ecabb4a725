// Fused attention on mma.sync and mma.sp, for every GPU from sm_80 on: one CTA a row tile, whose
// warps copy K and V with cp.async and compute 32 query rows each.
//
// Two bodies over the same stages. `plain` steps mask element by element and find row maxima;
// `fast` steps serve fully live blocks: no mask, pairs pruned in the accumulator, and instead of a
// row maximum a test that no score has outgrown the reference. docs/kernels/sm80.md has the budget.
#pragma once

#include "cuda/sm80/warp_rows.h"

namespace twofour::cuda::sm80 {

template <int kRow>
__global__ void __launch_bounds__(kRows[kRow].threads(), 1)
    attention_kernel(const __grid_constant__ Params p) {
  constexpr Config c = kRows[kRow];
  using S = Shared<c>;
  extern __shared__ unsigned char allocated[];
  const std::uint32_t start = ptx::shared_address(allocated);
  const std::uint32_t shared = (start + 127) & ~127u;
  Item& item = *reinterpret_cast<Item*>(allocated + (shared - start) + S::kItem);
  const int row_tiles = total_row_tiles(p, c.rows());
  const int index = static_cast<int>(blockIdx.x);
  if (index >= work_items(p, row_tiles)) return;
  if (threadIdx.x == 0) {
    make_item(item, p, c, index, row_tiles);
    Pipeline<c>::init_barriers(shared, p.stages);
  }
  __syncthreads();
  Pipeline<c> pipeline(p, item, shared);
  pipeline.start();
  WarpRows<c> rows(p, shared);
  rows.run(item, pipeline);
}

}  // namespace twofour::cuda::sm80
