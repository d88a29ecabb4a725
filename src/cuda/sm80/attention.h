// The rows of attention on mma.sync, for every GPU from sm_80 on.
#pragma once

#include <span>

#include "plan/registry.h"

namespace twofour::cuda::sm80 {

/// Ids are attention.<dtype>.sm80.d<head_dim>.<qk>.<score>.
std::span<const Kernel> attention_kernels();

}  // namespace twofour::cuda::sm80
