#include "tensors.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <algorithm>

namespace twofour::py {
namespace {

// What a view without elements points at; nothing reads or writes it.
alignas(64) char no_elements[64];

template <class View>
View make_view(const Tensor& tensor, const char* what, decltype(View::data) data) {
  View out;
  out.dtype = to_dtype(tensor.scalar_type(), what);
  if (tensor.dim() > kMaxRank) {
    raise_invalid(std::string(what) + ": expected at most " + std::to_string(kMaxRank) +
                  " dimensions, got " + std::to_string(tensor.dim()));
  }
  out.rank = static_cast<int>(tensor.dim());
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  for (int i = 0; i < out.rank; ++i) {
    out.shape[i] = sizes[i];
    out.stride[i] = strides[i];
  }
  out.data = tensor.numel() == 0 ? no_elements : data;
  return out;
}

[[noreturn]] void raise_out_of_memory(const std::string& what,
                                      const std::vector<std::int64_t>& shape, ScalarType type) {
  std::string text;
  for (const std::int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  raise(Status(Code::kOutOfMemory, "out of memory: " + what + " needs " +
                                       to_string(to_dtype(type, what.c_str())) + " [" + text +
                                       "]"));
}

bool is_readable(const Tensor& tensor) {
  const std::int64_t last = tensor.dim() - 1;
  if (last < 0 || tensor.numel() == 0) return true;
  if (tensor.size(last) > 1 && tensor.stride(last) != 1) return false;
  if (!tensor.is_cuda()) return true;
  constexpr std::int64_t kAlign = 16;
  if (reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % kAlign != 0) return false;
  const auto element = static_cast<std::int64_t>(tensor.element_size());
  for (std::int64_t i = 0; i < last; ++i) {
    if (tensor.size(i) > 1 && tensor.stride(i) * element % kAlign != 0) return false;
  }
  return true;
}

}  // namespace

void raise(const Status& status) {
  throw std::runtime_error(std::string("[twofour:") + to_string(status.code()) + "] " +
                           status.message());
}

void raise_invalid(const std::string& message) { raise(Status(Code::kInvalidArgument, message)); }

DType to_dtype(ScalarType type, const char* what) {
  switch (type) {
    case ScalarType::Float:
      return DType::kF32;
    case ScalarType::Half:
      return DType::kF16;
    case ScalarType::BFloat16:
      return DType::kBF16;
    case ScalarType::Double:
      return DType::kF64;
    case ScalarType::Char:
      return DType::kI8;
    case ScalarType::Byte:
      return DType::kU8;
    case ScalarType::Bool:
      return DType::kBool;
    case ScalarType::Int:
      return DType::kI32;
    case ScalarType::Long:
      return DType::kI64;
    default:
      raise_invalid(std::string(what) + ": expected fp32, fp16 or bf16, got " +
                    torch::headeronly::toString(type));
  }
}

Tensor new_tensor(const Tensor& like, const std::vector<std::int64_t>& shape, ScalarType type,
                  const char* what) {
  std::int32_t device_type = 0;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * std::max<std::int64_t>(shape[i], 1);
  }
  const auto dtype = torch::stable::detail::to<std::int32_t>(torch::stable::detail::from(type));
  // Not new_empty, which looks its operator up by name and boxes the arguments: more time than a
  // small call has.
  AtenTensorHandle made = nullptr;
  if (aoti_torch_empty_strided(static_cast<std::int64_t>(shape.size()), shape.data(),
                               strides.data(), dtype, device_type, like.get_device_index(),
                               &made) != AOTI_TORCH_SUCCESS) {
    raise_out_of_memory(what, shape, type);
  }
  return Tensor(made);
}

Tensor new_cpu_tensor(const std::vector<std::int64_t>& shape, ScalarType type, const char* what) {
  try {
    return torch::stable::empty(shape, type, std::nullopt,
                                torch::stable::Device(torch::stable::DeviceType::CPU));
  } catch (const std::exception&) {
    raise_out_of_memory(what, shape, type);
  }
}

bool same_device(const Tensor& a, const Tensor& b) {
  if (a.is_cuda() != b.is_cuda()) return false;
  return !a.is_cuda() || a.get_device_index() == b.get_device_index();
}

Tensor readable(const Tensor& tensor, const char* what) {
  if (is_readable(tensor)) return tensor;
  try {
    // A contiguous tensor at an odd address is its own contiguous copy.
    const Tensor copy = torch::stable::contiguous(tensor);
    return is_readable(copy) ? copy : torch::stable::clone(copy);
  } catch (const std::exception&) {
    const auto sizes = tensor.sizes();
    raise_out_of_memory(std::string("a contiguous copy of ") + what, {sizes.begin(), sizes.end()},
                        tensor.scalar_type());
  }
}

Tensor moved_like(const Tensor& tensor, const Tensor& like, const char* what) {
  if (same_device(tensor, like)) return tensor;
  try {
    return torch::stable::to(tensor, like.device());
  } catch (const std::exception&) {
    const auto sizes = tensor.sizes();
    raise_out_of_memory(what, {sizes.begin(), sizes.end()}, tensor.scalar_type());
  }
}

ConstTensorView view(const Tensor& tensor, const char* what) {
  return make_view<ConstTensorView>(tensor, what, tensor.const_data_ptr());
}

TensorView mutable_view(const Tensor& tensor, const char* what) {
  return make_view<TensorView>(tensor, what, tensor.mutable_data_ptr());
}

}  // namespace twofour::py
