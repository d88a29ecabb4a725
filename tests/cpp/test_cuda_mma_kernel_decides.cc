// The whole mma.sync kernel on the host: the rows of head_dim 64 whose units refine or drop.
#ifdef TWOFOUR_WITH_CUDA_HEADERS
#include <gtest/gtest.h>

#include "support/host_kernel_check.h"
#include "support/host_mma_kernel.h"

namespace twofour::test {
namespace {

TEST(CudaMmaKernel, UnitsThatDecide) { check_variants<MmaKernels, DType::kF16, 64, 4, 5, 6, 7>(); }

}  // namespace
}  // namespace twofour::test
#endif  // TWOFOUR_WITH_CUDA_HEADERS
