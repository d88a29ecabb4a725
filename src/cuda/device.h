// CUDA devices without CUDA's types: src/cuda/absent has the same functions for builds without it.
#pragma once

#include <optional>
#include <span>

#include "plan/registry.h"

namespace twofour::cuda {

/// All rows of all architectures, in order of preference.
std::span<const Kernel> attention_kernels();

/// The device whose memory an address is, nothing for memory of the host. Neither loads nor
/// initialises the driver.
std::optional<int> device_of(const void* address);

/// The device of a tensor; where it has no elements and so perhaps no memory, that of the offsets.
inline std::optional<int> device_of(const ConstTensorView& view, const std::int32_t* cu_seqlens) {
  const std::optional<int> found = device_of(view.data);
  return found || cu_seqlens == nullptr ? found : device_of(cu_seqlens);
}

/// Makes a device current, and on destruction the one that was.
class CurrentDevice {
 public:
  explicit CurrentDevice(int index);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  const Status& status() const { return status_; }

 private:
  int previous_ = -1;  // to be restored; -1: nothing to do
  Status status_;
};

/// Waits for everything on the device; the error of whatever ran there.
Status synchronize(int index);

}  // namespace twofour::cuda
