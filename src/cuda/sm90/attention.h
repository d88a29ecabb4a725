// The rows of attention on Hopper.
#pragma once

#include <span>

#include "plan/registry.h"

namespace twofour::cuda::sm90 {

/// Ids are attention.<dtype>.sm90.d<head_dim>.<qk>.<score>.
std::span<const Kernel> attention_kernels();

}  // namespace twofour::cuda::sm90
