// Errors of the CUDA runtime as a Status. For files that see CUDA's headers.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "twofour/status.h"

namespace twofour::cuda {

/// kOk for cudaSuccess, else "CUDA: `what` failed: ..." with the error's name and text. Clears the
/// runtime's memory of the error, so that it is not reported again by a later launch.
inline Status to_status(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();
  const Code code = error == cudaErrorMemoryAllocation ? Code::kOutOfMemory : Code::kInternal;
  return {code, std::string("CUDA: ") + what + " failed: " + cudaGetErrorName(error) + ", " +
                    cudaGetErrorString(error)};
}

/// Of the launch just made.
inline Status launch_status(const char* kernel) { return to_status(cudaGetLastError(), kernel); }

}  // namespace twofour::cuda
