// Everything of src/cuda that the rest of the library calls, for a build without CUDA kernels.
#include "cuda/device.h"
#include "cuda/memory.h"
#include "cuda/prepare_k.h"
#include "cuda/timer.h"

namespace twofour {
namespace {

Status absent() { return {Code::kUnsupported, "CUDA: this build of twofour has no CUDA kernels"}; }

}  // namespace

int cuda_device_count() { return 0; }
Result<Device> cuda_device(int) { return absent(); }

namespace cuda {

std::span<const Kernel> attention_kernels() { return {}; }
std::optional<int> device_of(const void*) { return std::nullopt; }
CurrentDevice::CurrentDevice(int) : status_(absent()) {}
CurrentDevice::~CurrentDevice() = default;
Status synchronize(int) { return absent(); }

Result<Buffer> Buffer::allocate(int, std::size_t) { return absent(); }
Buffer::~Buffer() = default;
Status copy_to_device(void*, const void*, std::size_t) { return absent(); }
Status copy_to_host(void*, const void*, std::size_t) { return absent(); }
Status fill(void*, unsigned char, std::size_t) { return absent(); }

Result<PreparedK> prepare_k(const AttentionProblem&, const AttentionArgs&, int) { return absent(); }

Result<Timer> Timer::make(int) { return absent(); }
Timer::~Timer() = default;
Status Timer::start() { return absent(); }
Result<double> Timer::stop() { return absent(); }

}  // namespace cuda
}  // namespace twofour
