#include "cuda/sm90/instantiate.cuh"

namespace twofour::cuda::sm90 {

Compiled compiled_d128(int row) { return compiled_row<128>(row); }

}  // namespace twofour::cuda::sm90
