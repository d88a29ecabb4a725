// Errors as values: a code for programs, one line for people.
//
// Every message names what was expected and what came. Nothing here allocates on success.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "twofour/export.h"

namespace TWOFOUR_API twofour {

/// Why a call failed. The numbers are part of the C ABI (`twofour_code` in twofour.h).
enum class Code : int {
  kOk = 0,
  kInvalidArgument = 1,  // a shape, dtype, stride, option or value the caller can correct
  kUnsupported = 2,      // a valid request that no kernel here can serve
  kNotFound = 3,         // a file, model or kernel id that does not exist
  kIo = 4,               // reading or writing failed (disk full, permission, interrupted)
  kCorrupt = 5,          // a file that is not what it claims to be
  kOutOfMemory = 6,
  kInternal = 7,  // a bug in twofour
};

/// The code's name as printed and as used in JSON, for example "invalid_argument".
const char* to_string(Code code);

/// Success, or a code with one line of explanation.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

/// A value, or the Status that explains why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: implicit by design
  Result(Code code, std::string message) : status_(code, std::move(message)) {}

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  /// Precondition: ok().
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace twofour
