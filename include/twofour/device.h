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
  std::string name;         // "AMD EPYC", "NVIDIA H200"
  std::string arch;         // "avx3_dl", "avx2", "sm_90"
  int threads = 1;          // CPU: OpenMP threads a run uses
  double peak_gflops = 0;   // what costs are relative to, modelled: on the CPU the fp32 FMA rate of
                            // all threads, on CUDA the dense fp16 rate of the Tensor Cores
  int multiprocessors = 0;  // CUDA: of the whole device
  std::int64_t shared_memory = 0;  // CUDA: bytes that one block can have
  friend bool operator==(const Device&, const Device&) = default;
};

/// The CPU with the instruction set that will be used: the widest built and present, or the one
/// that TWOFOUR_CPU_TARGET names (sse4, avx2, avx3, avx3_dl, neon, ...).
/// Error kUnsupported when that name is not built in or not present on this machine.
Result<Device> cpu_device();

/// CUDA devices that this process sees, with or without kernels for them; 0 without CUDA.
int cuda_device_count();

/// The CUDA device of that index, numbered as by the CUDA runtime. Looked up once; thread-safe.
/// The first call initialises the CUDA driver. Errors: kUnsupported when this build has no CUDA
/// kernels, none for the device's architecture, or there is no driver (new enough); kNotFound when
/// there is no such device.
Result<Device> cuda_device(int index = 0);

}  // namespace twofour
