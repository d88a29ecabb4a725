// Device memory for the places that own some: the convenience call, the command line, the tests.
#pragma once

#include <cstddef>
#include <utility>

#include "twofour/status.h"

namespace twofour::cuda {

/// Memory of one device, freed with the object (which waits for the device).
class Buffer {
 public:
  static Result<Buffer> allocate(int device, std::size_t bytes);

  Buffer() = default;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer();

  void* data() const { return data_; }
  std::size_t size() const { return bytes_; }

 private:
  void* data_ = nullptr;  // null when 0 bytes were asked for
  std::size_t bytes_ = 0;
};

/// Copies that are done on return; `to` or `from` is memory of a device.
Status copy_to_device(void* to, const void* from, std::size_t bytes);
Status copy_to_host(void* to, const void* from, std::size_t bytes);

/// Sets every byte, in the order of the default stream.
Status fill(void* to, unsigned char value, std::size_t bytes);

}  // namespace twofour::cuda
