// Where a plan runs, and the facts of that place that plans are made from.
#pragma once

#include <cstdint>
#include <string>

#include "twofour/status.h"

namespace TWOFOUR_API twofour {

enum class DeviceKind : std::uint8_t { kCpu, kCuda };

/// A stream of the device, opaque here: a cudaStream_t, or null on the CPU.
using Stream = void*;

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int index = 0;
  std::string name;        // "AMD EPYC", "NVIDIA H200"
  std::string arch;        // "avx3_dl", "avx2", "sm_90"
  int threads = 1;         // CPU: OpenMP threads a run uses
  double peak_gflops = 0;  // modelled fp32 FMA rate of all threads; what costs are relative to
};

/// The CPU with the instruction set that will be used: the widest built and present, or the one
/// that TWOFOUR_CPU_TARGET names (sse4, avx2, avx3, avx3_dl, neon, ...).
/// Error kUnsupported when that name is not built in or not present on this machine.
Result<Device> cpu_device();

}  // namespace twofour
