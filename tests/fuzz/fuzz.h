// Shared by the libFuzzer targets: the input, and a check that sanitizers cannot optimise away.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "twofour/status.h"

/// Stops the fuzzer with the broken expectation.
#define FUZZ_CHECK(condition)                                                       \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d: expected %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                 \
    }                                                                               \
  } while (false)

namespace twofour::fuzz {

inline std::vector<std::byte> bytes_of(const std::uint8_t* data, std::size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  return {begin, begin + size};
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// A refusal has a code and one line of text.
inline void check_refusal(const Status& status) {
  FUZZ_CHECK(status.code() != Code::kOk && status.code() != Code::kInternal);
  FUZZ_CHECK(!status.message().empty());
  FUZZ_CHECK(status.message().find('\n') == std::string::npos);
}

}  // namespace twofour::fuzz
