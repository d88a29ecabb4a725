// The whole mma.sync kernel on the host: rows of head_dim 128 and 96.
#ifdef TWOFOUR_WITH_CUDA_HEADERS
#include <gtest/gtest.h>

#include "support/host_kernel_check.h"
#include "support/host_mma_kernel.h"

namespace twofour::test {
namespace {

TEST(CudaMmaKernel, Head128) { check_variants<MmaKernels, DType::kF16, 128, 2, 3, 7>(); }
TEST(CudaMmaKernel, Head96) { check_variants<MmaKernels, DType::kBF16, 96, 3>(); }

}  // namespace
}  // namespace twofour::test
#endif  // TWOFOUR_WITH_CUDA_HEADERS
