// Between torch's stable tensors and twofour's views; Status as an exception.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "twofour/status.h"
#include "twofour/tensor.h"

namespace twofour::py {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

/// "[twofour:invalid_argument] message": an operator can only throw a text through the dispatcher,
/// so the code travels in a prefix that errors.py takes off again.
[[noreturn]] void raise(const Status& status);
[[noreturn]] void raise_invalid(const std::string& message);

inline void check(const Status& status) {
  if (!status.ok()) raise(status);
}

template <class T>
T value(Result<T> result) {
  if (!result.ok()) raise(result.status());
  return *std::move(result);
}

/// The twofour type of a torch dtype; raises kInvalidArgument naming `what` for any other.
DType to_dtype(ScalarType type, const char* what);

/// An uninitialised tensor on the device of `like`, or on the CPU. Raises kOutOfMemory naming
/// `what`: nothing else can go wrong, and torch's own error of this interface carries no reason.
Tensor new_tensor(const Tensor& like, const std::vector<std::int64_t>& shape, ScalarType type,
                  const char* what);
Tensor new_cpu_tensor(const std::vector<std::int64_t>& shape, ScalarType type, const char* what);

/// The tensor itself, or a copy when no kernel reads its memory as it lies: a last stride that is
/// not 1; on CUDA also an address or another stride that is no multiple of 16 bytes.
Tensor readable(const Tensor& tensor, const char* what);

/// Both on the CPU, or on one CUDA device.
bool same_device(const Tensor& a, const Tensor& b);

/// The tensor copied to the device of `like`, if it is on another; waits for the copy.
Tensor moved_like(const Tensor& tensor, const Tensor& like, const char* what);

/// A view of the whole tensor. Never null, also without elements: null means "not given" to
/// twofour.
ConstTensorView view(const Tensor& tensor, const char* what);
TensorView mutable_view(const Tensor& tensor, const char* what);

}  // namespace twofour::py
