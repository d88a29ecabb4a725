#include "cuda/sm80/instantiate.cuh"

namespace twofour::cuda::sm80 {
namespace {

constexpr bool chosen(const Config& c) {
  return c.dtype == DType::kF16 && c.head_dim == 96 && !c.trace;
}

}  // namespace

Compiled compiled_fp16_d96(int row) { return compiled_row<chosen>(row); }

}  // namespace twofour::cuda::sm80
