// Every environment variable that twofour reads, in one table: `twofour info` and the
// documentation print it, and nothing reads a variable that is not in it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "twofour/status.h"

namespace twofour {

struct EnvironmentVariable {
  const char* name;           // "TWOFOUR_NUM_THREADS"
  const char* meaning;        // one clause
  const char* default_value;  // what holds when it is unset or empty, in words
  const char* expected;       // the values it takes, in words
  bool (*accepts)(std::string_view value);
};

std::span<const EnvironmentVariable> environment_variables();

/// The instruction set to use. Whether this machine has it is for cpu_device() to say.
Result<std::optional<std::string>> env_cpu_target();
/// Threads of a CPU run, 1..kMaxThreads.
Result<std::optional<int>> env_num_threads();
/// The kernel row to run, as PlanOptions::kernel_id. Whether it exists is for plan() to say.
Result<std::optional<std::string>> env_kernel();
/// The file of measured times; nothing when it is off, or when there is no folder for it.
Result<std::optional<std::string>> env_tune_file();

inline constexpr int kMaxThreads = 4096;

}  // namespace twofour
