// Partial results of a row to its O and LSE: one thread for eight channels of a row, so that a warp
// reads a kilobyte of each part and writes whole rows.
#include "cuda/combine.h"

#include "cuda/error.h"
#include "cuda/tile/parts.h"

namespace twofour::cuda {
namespace {

constexpr int kThreads = 256;

template <DType kType>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const __grid_constant__ CallParams p, std::int64_t count) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index < count) tile::combine_chunk<kType>(p, index);
}

}  // namespace

Status combine_parts(const CallParams& p, DType dtype, cudaStream_t stream) {
  const std::int64_t count = p.rows_of_part * (p.head_dim_v / 8);
  const auto grid = static_cast<unsigned>(layout::ceil_div(count, kThreads));
  if (dtype == DType::kF16)
    combine_kernel<DType::kF16><<<grid, kThreads, 0, stream>>>(p, count);
  else
    combine_kernel<DType::kBF16><<<grid, kThreads, 0, stream>>>(p, count);
  return launch_status("combine_parts");
}

}  // namespace twofour::cuda
