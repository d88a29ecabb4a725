// The instruction sets the CPU kernels are built for, and which of them a run uses.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace twofour::cpu {

/// Names of the built instruction sets, widest first: "avx3_dl", "avx3", "avx2", "sse4", ...
std::vector<std::string> built_targets();

/// Those of built_targets() that this machine has, widest first.
std::vector<std::string> supported_targets();

/// Highway's bit of a built target's name, 0 when there is none.
std::int64_t target_bit(const std::string& name);

}  // namespace twofour::cpu
