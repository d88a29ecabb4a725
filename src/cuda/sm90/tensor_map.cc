#include "cuda/sm90/tensor_map.h"

#include <cuda_runtime_api.h>

#include <array>
#include <string>

namespace twofour::cuda::sm90 {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// Through the runtime, so that nothing links with the driver library.
Encode encoder() {
  static const Encode found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &result);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess
               ? reinterpret_cast<Encode>(function)
               : nullptr;
  }();
  return found;
}

CUtensorMapSwizzle to_driver(layout::Swizzle swizzle) {
  switch (swizzle) {
    case layout::Swizzle::k128B:
      return CU_TENSOR_MAP_SWIZZLE_128B;
    case layout::Swizzle::k64B:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    case layout::Swizzle::k32B:
      return CU_TENSOR_MAP_SWIZZLE_32B;
    default:
      return CU_TENSOR_MAP_SWIZZLE_NONE;
  }
}

}  // namespace

Status make_tensor_map(CUtensorMap& map, CUtensorMapDataType type, const void* base,
                       std::span<const TensorMapAxis> axes, layout::Swizzle swizzle) {
  const Encode encode = encoder();
  if (encode == nullptr)
    return {Code::kUnsupported, "driver: expected one with tensor maps (12.0 or newer)"};
  std::array<cuuint64_t, 5> size{}, stride{};
  std::array<cuuint32_t, 5> box{}, step{};
  for (std::size_t i = 0; i < axes.size(); ++i) {
    size[i] = axes[i].size;
    box[i] = axes[i].box;
    step[i] = 1;
    if (i > 0) stride[i - 1] = axes[i].stride_bytes;
  }
  const CUresult result = encode(
      &map, type, static_cast<cuuint32_t>(axes.size()), const_cast<void*>(base), size.data(),
      stride.data(), box.data(), step.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, to_driver(swizzle),
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    return {Code::kInternal,
            "cuTensorMapEncodeTiled refused a view, code " + std::to_string(result)};
  return {};
}

}  // namespace twofour::cuda::sm90
