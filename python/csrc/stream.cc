#include "stream.h"

#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include "tensors.h"

namespace twofour::py {
namespace {

using GetStream = AOTITorchError (*)(std::int32_t, void**);

/// The shim exists only in a torch with CUDA, so it is looked up instead of linked: one binary
/// serves both kinds. By name of the library, since torch does not load it into the global scope.
GetStream find_get_stream() {
  void* const library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  void* const symbol =
      dlsym(library == nullptr ? RTLD_DEFAULT : library, "aoti_torch_get_current_cuda_stream");
  return reinterpret_cast<GetStream>(symbol);  // the library stays loaded
}

}  // namespace

Stream current_cuda_stream(std::int32_t device_index) {
  static const GetStream get_stream = find_get_stream();
  if (get_stream == nullptr) {
    raise(
        Status(Code::kUnsupported,
               "CUDA: expected a torch with aoti_torch_get_current_cuda_stream, got one without"));
  }
  void* stream = nullptr;
  if (get_stream(device_index, &stream) != AOTI_TORCH_SUCCESS) {
    raise(Status(Code::kInternal,
                 "CUDA: torch gave no current stream for device " + std::to_string(device_index)));
  }
  return stream;
}

}  // namespace twofour::py
