// Tensor maps for the TMA: how a strided view in global memory is cut into boxes.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <span>

#include "layout/shared_tile.h"
#include "twofour/status.h"

namespace twofour::cuda::sm90 {

struct TensorMapAxis {
  std::uint64_t size;          // elements
  std::uint64_t stride_bytes;  // ignored for the first axis, which is contiguous
  std::uint32_t box;           // elements copied at once
};

/// Fills `map` for 1 to 5 axes, innermost first. What lies beyond an axis reads as zero.
/// Errors: kUnsupported without a driver that has cuTensorMapEncodeTiled; kInternal with the
/// driver's code when it refuses the view.
Status make_tensor_map(CUtensorMap& map, CUtensorMapDataType type, const void* base,
                       std::span<const TensorMapAxis> axes, layout::Swizzle swizzle);

}  // namespace twofour::cuda::sm90
