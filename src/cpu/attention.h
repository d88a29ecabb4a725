// The CPU attention kernels as registry rows.
#pragma once

#include <span>

#include "plan/registry.h"

namespace twofour::cpu {

/// attention.cpu.<qk>.<pattern> for every QK product and score pattern, then the same with
/// ".trace": debugging rows that also write Decisions.
std::span<const Kernel> attention_kernels();

}  // namespace twofour::cpu
