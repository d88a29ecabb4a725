// The last step of a call whose keys were split.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/call_params.h"
#include "twofour/status.h"

namespace twofour::cuda {

/// O and LSE from the p.parts partial results of every row, in a fixed order.
Status combine_parts(const CallParams& p, DType dtype, cudaStream_t stream);

}  // namespace twofour::cuda
