// Compiles a part of the rows. cmake/cuda.cmake builds this file once for each part, TWOFOUR_PART
// of TWOFOUR_PARTS, so that they compile side by side.
#include "cuda/sm90/attention.cuh"
#include "cuda/sm90/kernels.h"

namespace twofour::cuda::sm90 {

template <int kRow>
Compiled compiled_row() {
  return {reinterpret_cast<const void*>(&attention_kernel<kRow>), Shared<kRows[kRow]>::kAllocated};
}

inline constexpr int kPart = kRowCount / TWOFOUR_PARTS;
inline constexpr int kFirst = kPart * TWOFOUR_PART;
static_assert(kPart == 2 && kRowCount % TWOFOUR_PARTS == 0, "cmake/cuda.cmake has other parts");
template Compiled compiled_row<kFirst>();
template Compiled compiled_row<kFirst + 1>();

}  // namespace twofour::cuda::sm90
