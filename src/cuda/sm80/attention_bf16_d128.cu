#include "cuda/sm80/instantiate.cuh"

namespace twofour::cuda::sm80 {
namespace {

constexpr bool chosen(const Config& c) {
  return c.dtype == DType::kBF16 && c.head_dim == 128 && !c.trace;
}

}  // namespace

Compiled compiled_bf16_d128(int row) { return compiled_row<chosen>(row); }

}  // namespace twofour::cuda::sm80
