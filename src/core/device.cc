#include "twofour/device.h"

#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string_view>
#include <vector>

#include "core/environment.h"
#include "core/quote.h"
#include "cpu/targets.h"

namespace twofour {
namespace {

/// What the operating system says of the processor; the same for the life of the process.
struct CpuFacts {
  std::string name = "CPU";
  double ghz = 2.5;  // where the system does not say
};

CpuFacts read_cpu_facts() {
  CpuFacts facts;
  std::ifstream cpuinfo("/proc/cpuinfo");
  bool named = false;
  bool clocked = false;
  for (std::string line; std::getline(cpuinfo, line) && !(named && clocked);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    const std::string value = begin == std::string::npos ? "" : line.substr(begin);
    if (!named && (key == "model name" || key == "Model") && !value.empty()) {
      facts.name = value;
      named = true;
    } else if (!clocked && key == "cpu MHz") {
      const double mhz = std::strtod(value.c_str(), nullptr);
      if (mhz > 100 && mhz < 20000) facts.ghz = mhz / 1000;
      clocked = true;
    }
  }
  return facts;
}

const CpuFacts& cpu_facts() {
  static const CpuFacts facts = read_cpu_facts();
  return facts;
}

/// fp32 operations per cycle of one core: two vector units, a multiply-add counting as two.
double flops_per_cycle(std::string_view arch) {
  if (arch.substr(0, 4) == "avx3") return 2 * 16 * 2;
  if (arch == "avx2") return 2 * 8 * 2;
  if (arch == "sse4" || arch == "ssse3" || arch == "sse2") return 2 * 4;  // no multiply-add
  if (arch == "neon") return 2 * 4 * 2;
  return 2;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

Result<std::string> choose_target() {
  const std::vector<std::string> supported = cpu::supported_targets();
  if (supported.empty()) {
    return {Code::kUnsupported, "CPU: expected one of the instruction sets built in (" +
                                    joined(cpu::built_targets()) + "), got a machine with none"};
  }
  const auto wanted = env_cpu_target();
  if (!wanted.ok()) {
    return {wanted.status().code(),
            wanted.status().message() + "; here it can be " + joined(supported)};
  }
  if (!wanted->has_value()) return supported.front();
  const std::string& name = **wanted;
  if (std::find(supported.begin(), supported.end(), name) != supported.end()) return name;
  const std::vector<std::string> built = cpu::built_targets();
  const bool is_built = std::find(built.begin(), built.end(), name) != built.end();
  return {Code::kUnsupported, "TWOFOUR_CPU_TARGET: expected one of " + joined(supported) +
                                  ", got " + quoted(name) + ", which is " +
                                  (is_built ? "not present on this machine" : "not built in")};
}

}  // namespace

Result<Device> cpu_device() {
  const auto target = choose_target();
  if (!target.ok()) return target.status();
  const auto threads = env_num_threads();
  if (!threads.ok()) return threads.status();

  Device device;
  device.kind = DeviceKind::kCpu;
  device.name = cpu_facts().name;
  device.arch = *target;
  device.threads = threads->value_or(std::clamp(omp_get_max_threads(), 1, kMaxThreads));
  device.peak_gflops = device.threads * cpu_facts().ghz * flops_per_cycle(device.arch);
  return device;
}

}  // namespace twofour
