// The whole Hopper kernel on the host: the rows of head_dim 64 whose units refine or drop.
#ifdef TWOFOUR_WITH_CUDA_HEADERS
#include <gtest/gtest.h>

#include "support/host_kernel_check.h"
#include "support/host_wgmma_kernel.h"

namespace twofour::test {
namespace {

TEST(CudaWgmmaKernel, UnitsThatDecide) {
  check_variants<WgmmaKernels, DType::kF16, 64, 4, 5, 6, 7>();
}

}  // namespace
}  // namespace twofour::test
#endif  // TWOFOUR_WITH_CUDA_HEADERS
