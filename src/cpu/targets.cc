#include "cpu/targets.h"

#include "cpu/simd.h"

namespace twofour::cpu {
namespace {

struct NamedTarget {
  const char* name;
  Target target;
};

// Widest first.
constexpr NamedTarget kTargets[] = {
#if HWY_ARCH_X86
    {"avx3_vnni", {HWY_AVX3, true, 16}},
    {"avx3", {HWY_AVX3, false, 16}},
    {"avx2", {HWY_AVX2, false, 8}},
    {"sse4", {HWY_SSE4, false, 4}},
#elif HWY_ARCH_ARM
    {"neon", {HWY_NEON, false, 4}},
#endif
};

// What this machine and its operating system support, as Highway's bits.
std::int64_t machine_targets() {
#if HWY_ARCH_X86
  std::int64_t bits = 0;
  if (__builtin_cpu_supports("sse4.2")) bits |= HWY_SSE4;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi2"))
    bits |= HWY_AVX2;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    bits |= HWY_AVX3;
  return bits;
#else
  return HWY_TARGETS;
#endif
}

bool machine_has_vnni() {
#if HWY_ARCH_X86
  return __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

std::vector<std::string> names_of(std::int64_t bits, bool vnni) {
  std::vector<std::string> names;
  for (const NamedTarget& entry : kTargets)
    if ((entry.target.bit & bits) && (vnni || !entry.target.vnni)) names.emplace_back(entry.name);
  return names;
}

}  // namespace

std::vector<std::string> built_targets() { return names_of(HWY_TARGETS, true); }

std::vector<std::string> supported_targets() {
  return names_of(HWY_TARGETS & machine_targets(), machine_has_vnni());
}

Target find_target(const std::string& name) {
  for (const NamedTarget& entry : kTargets)
    if ((entry.target.bit & HWY_TARGETS) && name == entry.name) return entry.target;
  return {};
}

}  // namespace twofour::cpu
