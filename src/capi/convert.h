// Between the structs of the C header and the C++ types, and the frame around every C call.
#pragma once

#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <type_traits>

#include "twofour/attention.h"
#include "twofour/twofour.h"

/// The handles of the C header.
struct twofour_plan {
  twofour::Plan plan;
  std::string sparsity;
  std::string explanation;
  twofour::DeviceKind device;
};

struct twofour_prepared_k {
  twofour::PreparedK value;
};

namespace twofour::capi {

/// Remembers the message for twofour_last_error() and returns the code. Never throws.
twofour_code report(const Status& status) noexcept;
twofour_code report(Code code, const char* message) noexcept;
const char* last_error() noexcept;

/// Runs `body` (returning Status), so that no exception leaves a C function.
template <class Body>
twofour_code guarded(Body body) noexcept {
  try {
    const Status status = body();
    return status.ok() ? TWOFOUR_OK : report(status);
  } catch (const std::bad_alloc&) {
    return report(Code::kOutOfMemory, "out of memory");
  } catch (const std::exception& error) {
    return report(Code::kInternal, error.what());
  } catch (...) {
    return report(Code::kInternal, "an unknown exception");
  }
}

/// Fills `out` (holding defaults) from a descriptor of this, an older or a newer header. `first` is
/// the size of the struct in the first release that had it.
template <class Struct>
Status read_struct(const char* name, const Struct* in, std::size_t first, Struct& out) {
  static_assert(std::is_trivially_copyable_v<Struct> && offsetof(Struct, struct_size) == 0);
  if (in == nullptr) {
    return {Code::kInvalidArgument, std::string(name) + ": expected a struct, got NULL"};
  }
  const std::size_t size = in->struct_size;
  // Far larger than any version: an uninitialised struct, whose memory must not be walked.
  constexpr std::size_t kSane = 65536;
  if (size < first || size > kSane) {
    return {Code::kInvalidArgument, std::string(name) + ".struct_size: expected " +
                                        std::to_string(first) + " to " + std::to_string(kSane) +
                                        ", as its init sets it, got " + std::to_string(size)};
  }
  const char* bytes = reinterpret_cast<const char*>(in);
  for (std::size_t i = sizeof(Struct); i < size; ++i) {
    if (bytes[i] != 0) {
      return {Code::kUnsupported, std::string(name) + ": expected zeros beyond the " +
                                      std::to_string(sizeof(Struct)) +
                                      " bytes this version knows, got fields of a newer one"};
    }
  }
  std::memcpy(&out, in, size < sizeof(Struct) ? size : sizeof(Struct));
  out.struct_size = sizeof(Struct);
  return {};
}

Result<AttentionProblem> to_problem(const twofour_attention_problem* in);

/// The C++ arguments and what they point to.
struct Arguments {
  AttentionArgs args;
  KeyTransform transform;
  AttentionStats stats;
  twofour_attention_stats* stats_out = nullptr;
};

/// `out` must stay where it is while out.args is in use.
Status to_arguments(const twofour_attention_args* in, DeviceKind device, Arguments& out);

/// Copies the counts of a run on the CPU to the caller, as far as its struct reaches.
void write_stats(const Arguments& arguments);

}  // namespace twofour::capi
