#include "cuda/sm80/instantiate.cuh"

namespace twofour::cuda::sm80 {
namespace {

constexpr bool chosen(const Config& c) { return c.dtype == DType::kBF16 && c.trace; }

}  // namespace

Compiled compiled_bf16_trace(int row) { return compiled_row<chosen>(row); }

}  // namespace twofour::cuda::sm80
