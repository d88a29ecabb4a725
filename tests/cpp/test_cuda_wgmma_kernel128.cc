// The whole Hopper kernel on the host: rows of head_dim 128.
#ifdef TWOFOUR_WITH_CUDA_HEADERS
#include <gtest/gtest.h>

#include "support/host_kernel_check.h"
#include "support/host_wgmma_kernel.h"

namespace twofour::test {
namespace {

TEST(CudaWgmmaKernel, Head128) { check_variants<WgmmaKernels, DType::kF16, 128, 1, 2, 7>(); }
TEST(CudaWgmmaKernel, Head128InBf16) { check_variants<WgmmaKernels, DType::kBF16, 128, 3>(); }

}  // namespace
}  // namespace twofour::test
#endif  // TWOFOUR_WITH_CUDA_HEADERS
