#include "cuda/memory.h"

#include "cuda/device.h"
#include "cuda/error.h"

namespace twofour::cuda {

Result<Buffer> Buffer::allocate(int device, std::size_t bytes) {
  Buffer buffer;
  if (bytes == 0) return buffer;
  const CurrentDevice current(device);
  if (!current.status().ok()) return current.status();
  const Status status = to_status(cudaMalloc(&buffer.data_, bytes), "cudaMalloc");
  if (!status.ok()) {
    return {status.code(), status.message() + ", of " + std::to_string(bytes) + " bytes"};
  }
  buffer.bytes_ = bytes;
  return buffer;
}

Buffer::~Buffer() {
  if (data_ != nullptr) (void)cudaFree(data_);
}

Status copy_to_device(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return {};
  return to_status(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
}

Status copy_to_host(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return {};
  return to_status(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy to the host");
}

Status fill(void* to, unsigned char value, std::size_t bytes) {
  if (bytes == 0) return {};
  return to_status(cudaMemset(to, value, bytes), "cudaMemset");
}

}  // namespace twofour::cuda
