// The prepared K of keys on a device, for the reference and whoever wants to look at it.
#pragma once

#include "twofour/attention.h"

namespace twofour::cuda {

/// What an int8 run on the device computes for itself, copied to the host; waits for the device.
/// Errors: as for plan on that device.
Result<PreparedK> prepare_k(const AttentionProblem& problem, const AttentionArgs& args, int device);

}  // namespace twofour::cuda
