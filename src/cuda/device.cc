#include "cuda/device.h"

#include <cuda.h>
#include <dlfcn.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/error.h"
#include "cuda/sm80/attention.h"
#include "cuda/sm90/attention.h"

namespace twofour {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

/// Why there are no devices at all.
Status no_devices(cudaError_t error) {
  if (error == cudaErrorInsufficientDriver) {
    int version = 0;
    (void)cudaDriverGetVersion(&version);
    (void)cudaGetLastError();
    if (version == 0) return {Code::kUnsupported, "CUDA: expected an NVIDIA driver, found none"};
    return {Code::kUnsupported, "CUDA: expected a driver for CUDA " + version_text(CUDART_VERSION) +
                                    ", found one for " + version_text(version)};
  }
  if (error == cudaErrorNoDevice) {
    (void)cudaGetLastError();
    return {Code::kNotFound, "CUDA: expected a device, found none"};
  }
  return cuda::to_status(error, "cudaGetDeviceCount");
}

/// Dense fp16 operations per cycle of one multiprocessor, a multiply-add counting as two.
double flops_per_cycle(int major, int minor) {
  if (major == 8) return minor == 0 ? 2048 : 1024;
  return major == 9 ? 4096 : 8192;
}

/// Architectures with at least one row, in the order of the rows.
std::string joined_architectures(const Device& wanted, bool& found) {
  std::vector<std::string> names;
  found = false;
  std::string text;
  for (const Kernel& row : cuda::attention_kernels()) {
    found = found || is_for(row, wanted);
    bool listed = false;
    for (const std::string& name : names) listed = listed || name == row.arch;
    if (listed) continue;
    names.push_back(row.arch);
    text += (text.empty() ? "" : ", ") + row.arch;
  }
  return text.empty() ? "none" : text;
}

Result<Device> query(int index) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return no_devices(error);
  if (count == 0) return no_devices(cudaErrorNoDevice);
  const std::string what = "CUDA device " + std::to_string(index);
  if (index < 0 || index >= count) {
    return {Code::kNotFound, what + ": expected an index in 0.." + std::to_string(count - 1) +
                                 ", got " + std::to_string(index)};
  }
  cudaDeviceProp properties;
  Status status =
      cuda::to_status(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  int kilohertz = 0;
  if (status.ok()) {
    status = cuda::to_status(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, index),
                             "cudaDeviceGetAttribute");
  }
  if (!status.ok()) return status;

  Device device;
  device.kind = DeviceKind::kCuda;
  device.index = index;
  device.name = properties.name;
  device.arch = "sm_" + std::to_string(properties.major) + std::to_string(properties.minor);
  device.multiprocessors = properties.multiProcessorCount;
  device.shared_memory = static_cast<std::int64_t>(properties.sharedMemPerBlockOptin);
  device.peak_gflops = device.multiprocessors * (kilohertz / 1e6) *
                       flops_per_cycle(properties.major, properties.minor);
  bool served = false;
  const std::string architectures = joined_architectures(device, served);
  if (!served) {
    return {Code::kUnsupported, what + " (" + device.name + "): expected one of " + architectures +
                                    ", which this build has kernels for, got " + device.arch};
  }
  return device;
}

}  // namespace

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();
  return 0;
}

Result<Device> cuda_device(int index) {
  static std::mutex mutex;
  static std::map<int, Device> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(index);
  if (found != known.end()) return found->second;
  // Failures are not kept: the next call may come after the driver has been loaded.
  Result<Device> device = query(index);
  if (device.ok()) known.emplace(index, *device);
  return device;
}

namespace cuda {

std::span<const Kernel> attention_kernels() {
  static const std::vector<Kernel> rows = [] {
    std::vector<Kernel> all;
    for (const auto& some : {sm90::attention_kernels(), sm80::attention_kernels()})
      all.insert(all.end(), some.begin(), some.end());
    return all;
  }();
  return rows;
}

std::optional<int> device_of(const void* address) {
  // Without the driver in this process there is no device memory; asking the runtime at once would
  // load it and make a context.
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver == nullptr || address == nullptr) return std::nullopt;
  using Get = CUresult (*)(void*, CUpointer_attribute, CUdeviceptr);
  const auto get = reinterpret_cast<Get>(dlsym(driver, "cuPointerGetAttribute"));
  const auto pointer = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(address));
  unsigned type = 0;
  CUresult result = CUDA_ERROR_NOT_FOUND;
  if (get != nullptr) result = get(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer);
  dlclose(driver);
  // A thread that has not used CUDA yet has no context to ask; then the driver is in use anyway.
  const bool of_device = result == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE;
  if (!of_device && result != CUDA_ERROR_INVALID_CONTEXT) return std::nullopt;
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, address) != cudaSuccess) {
    (void)cudaGetLastError();
    return std::nullopt;
  }
  const bool found =
      attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
  return found ? std::optional<int>(attributes.device) : std::nullopt;
}

CurrentDevice::CurrentDevice(int index) {
  int current = -1;
  status_ = to_status(cudaGetDevice(&current), "cudaGetDevice");
  if (!status_.ok() || current == index) return;
  status_ = to_status(cudaSetDevice(index), "cudaSetDevice");
  if (status_.ok()) previous_ = current;
}

CurrentDevice::~CurrentDevice() {
  if (previous_ >= 0) (void)cudaSetDevice(previous_);
}

Status synchronize(int index) {
  const CurrentDevice current(index);
  if (!current.status().ok()) return current.status();
  return to_status(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

}  // namespace cuda
}  // namespace twofour
