#include "twofour/tensor.h"

namespace twofour {
namespace {

template <class View, class Pointer>
View contiguous_view(Pointer data, DType dtype, std::initializer_list<std::int64_t> shape) {
  View view;
  view.data = data;
  view.dtype = dtype;
  for (std::int64_t extent : shape) view.shape[view.rank++] = extent;
  std::int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.stride[i] = stride;
    stride *= view.shape[i];
  }
  return view;
}

}  // namespace

const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "fp32";
    case DType::kF16:
      return "fp16";
    case DType::kBF16:
      return "bf16";
    case DType::kF64:
      return "fp64";
    case DType::kI8:
      return "int8";
    case DType::kU8:
      return "uint8";
    case DType::kBool:
      return "bool";
    case DType::kI32:
      return "int32";
    case DType::kI64:
      return "int64";
  }
  return "unknown";
}

TensorView contiguous(void* data, DType dtype, std::initializer_list<std::int64_t> shape) {
  return contiguous_view<TensorView>(data, dtype, shape);
}

ConstTensorView contiguous(const void* data, DType dtype,
                           std::initializer_list<std::int64_t> shape) {
  return contiguous_view<ConstTensorView>(data, dtype, shape);
}

std::string shape_string(const ConstTensorView& view) {
  std::string text = "[";
  for (int i = 0; i < view.rank; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(view.shape[i]);
  }
  return text + "]";
}

}  // namespace twofour
