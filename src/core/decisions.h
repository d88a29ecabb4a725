// The sizes of Decisions, without the memory: for making them and for checking them.
#pragma once

#include "twofour/attention.h"

namespace twofour {

/// Decisions of `problem` with every count filled in and both vectors empty.
Decisions decisions_shape(const AttentionProblem& problem);

}  // namespace twofour
