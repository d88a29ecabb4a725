#include "twofour/io.h"

namespace twofour {
namespace {

template <class View, class Pointer>
View view_of(Pointer data, const Tensor& tensor) {
  View view;
  view.data = data;
  view.dtype = tensor.dtype;
  view.rank = static_cast<int>(tensor.shape.size());
  std::int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.shape[i] = tensor.shape[i];
    view.stride[i] = stride;
    stride *= tensor.shape[i];
  }
  return view;
}

}  // namespace

std::int64_t Tensor::numel() const {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

TensorView Tensor::view() { return view_of<TensorView>(bytes.data(), *this); }
ConstTensorView Tensor::view() const { return view_of<ConstTensorView>(bytes.data(), *this); }

Tensor make_tensor(DType dtype, std::vector<std::int64_t> shape) {
  Tensor tensor{dtype, std::move(shape), {}};
  tensor.bytes.resize(static_cast<std::size_t>(tensor.numel()) * size_of(dtype));
  return tensor;
}

}  // namespace twofour
