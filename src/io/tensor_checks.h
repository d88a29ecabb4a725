// What is checked about a tensor that a file claims to hold.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>

#include "io/text.h"
#include "twofour/io.h"

namespace twofour::io {

/// Bytes of `shape` at `bits` per element. Nothing when a product overflows int64, even if another
/// extent is 0 (strides are computed from the same products), or when the bits fill no whole byte.
inline std::optional<std::uint64_t> checked_bytes(std::span<const std::int64_t> shape,
                                                  std::uint64_t bits) {
  constexpr std::uint64_t kLimit = std::numeric_limits<std::int64_t>::max();
  std::uint64_t nonzero = bits;
  bool empty = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    if (extent == 0) {
      empty = true;
    } else if (nonzero > kLimit / static_cast<std::uint64_t>(extent)) {
      return std::nullopt;
    } else {
      nonzero *= static_cast<std::uint64_t>(extent);
    }
  }
  if (empty) return 0;
  if (nonzero % 8 != 0) return std::nullopt;
  return nonzero / 8;
}

/// A bool is 0 or 1: any other byte, read as a C++ bool, would be undefined behaviour.
inline Status check_bools(const Tensor& tensor, const std::string& path) {
  if (tensor.dtype != DType::kBool) return {};
  for (const std::byte value : tensor.bytes)
    if (std::to_integer<unsigned>(value) > 1)
      return Status(Code::kCorrupt, in_quotes(path) + " holds bools: expected 0 or 1, got " +
                                        std::to_string(std::to_integer<unsigned>(value)));
  return {};
}

}  // namespace twofour::io
