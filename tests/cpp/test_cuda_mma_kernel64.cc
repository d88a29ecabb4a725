// The whole mma.sync kernel on the host: the rows of head_dim 64 that decide nothing.
#ifdef TWOFOUR_WITH_CUDA_HEADERS
#include <gtest/gtest.h>

#include "support/host_kernel_check.h"
#include "support/host_mma_kernel.h"

namespace twofour::test {
namespace {

TEST(CudaMmaKernel, Head64) { check_variants<MmaKernels, DType::kF16, 64, 0, 1, 2, 3>(); }

}  // namespace
}  // namespace twofour::test
#endif  // TWOFOUR_WITH_CUDA_HEADERS
