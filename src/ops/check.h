// Checks of the caller's memory, shared by the operations.
#pragma once

#include <cstddef>

#include "twofour/attention.h"

namespace twofour {

/// kOk when the workspace shares no memory with any array of `args`. Precondition: check_args.
Status check_workspace(const AttentionProblem& problem, const AttentionArgs& args,
                       const void* workspace, std::size_t bytes);

}  // namespace twofour
