// The instruction sets the CPU kernels are built for, and which of them a run uses.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace twofour::cpu {

/// Names of the built instruction sets, widest first: "avx3_vnni", "avx3", "avx2", "sse4"; "neon".
std::vector<std::string> built_targets();

/// Those of built_targets() that this machine has, widest first.
std::vector<std::string> supported_targets();

/// A built instruction set: Highway's bit, and whether 8-bit dot products may be used with it.
struct Target {
  std::int64_t bit = 0;  // 0: no such name
  bool vnni = false;
  int lanes = 1;  // floats in a vector
};
Target find_target(const std::string& name);

}  // namespace twofour::cpu
