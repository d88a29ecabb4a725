#include "cuda/sm90/instantiate.cuh"

namespace twofour::cuda::sm90 {

Compiled compiled_d64(int row) { return compiled_row<64>(row); }

}  // namespace twofour::cuda::sm90
