// Views of the caller's memory: pointer, dtype, shape, strides. Nothing here owns or copies.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

#include "twofour/export.h"

namespace TWOFOUR_API twofour {

/// Element types. Attention takes the first three; the others describe masks, codes and files.
enum class DType : std::uint8_t { kF32 = 0, kF16, kBF16, kF64, kI8, kU8, kBool, kI32, kI64 };

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    default:
      return 1;
  }
}

/// "fp32", "fp16", "bf16", "fp64", "int8", "uint8", "bool", "int32", "int64".
const char* to_string(DType dtype);

inline constexpr int kMaxRank = 5;

/// A strided view. Strides count elements, may be 0 (broadcast), and are 64-bit.
template <class Void>
struct BasicView {
  Void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> stride{};

  std::int64_t numel() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
  explicit operator bool() const { return data != nullptr; }
};

/// Memory twofour writes.
struct TensorView : BasicView<void> {};

/// Memory twofour only reads.
struct ConstTensorView : BasicView<const void> {
  ConstTensorView() = default;
  ConstTensorView(const TensorView& view) {  // NOLINT: implicit by design
    data = view.data;
    dtype = view.dtype;
    rank = view.rank;
    shape = view.shape;
    stride = view.stride;
  }
};

/// A dense row-major view of `data` with the given shape.
TensorView contiguous(void* data, DType dtype, std::initializer_list<std::int64_t> shape);
ConstTensorView contiguous(const void* data, DType dtype,
                           std::initializer_list<std::int64_t> shape);

/// The same memory with axes `a` and `b` exchanged: [B,H,M,D] from PyTorch is
/// transposed(view, 1, 2) here.
template <class View>
View transposed(View view, int a, int b) {
  std::swap(view.shape[a], view.shape[b]);
  std::swap(view.stride[a], view.stride[b]);
  return view;
}

/// "[2, 1024, 8, 64]".
std::string shape_string(const ConstTensorView& view);

}  // namespace twofour
