// Checks of the caller's memory, shared by the operations.
#pragma once

#include <cstddef>

#include "twofour/attention.h"

namespace twofour {

/// The part of check_args that preparing K needs: k, the mask and cu_seqlens.
Status check_keys(const AttentionProblem& problem, const AttentionArgs& args,
                  const Device& device = {});

/// kOk when the workspace shares no memory with any array of `args`. Precondition: check_args.
Status check_workspace(const AttentionProblem& problem, const AttentionArgs& args,
                       const void* workspace, std::size_t bytes);

}  // namespace twofour
