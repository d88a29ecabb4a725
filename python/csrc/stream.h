// The stream that torch runs on, for a library that is also loaded by a torch without CUDA.
#pragma once

#include <cstdint>

#include "twofour/device.h"

namespace twofour::py {

/// torch's current stream of a CUDA device, a cudaStream_t. Raises kUnsupported when the torch that
/// is loaded has none.
Stream current_cuda_stream(std::int32_t device_index);

}  // namespace twofour::py
