#include "core/environment.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "core/quote.h"

namespace twofour {
namespace {

bool is_name(std::string_view value) {
  return std::all_of(value.begin(), value.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
  });
}

std::optional<int> thread_count(std::string_view value) {
  int threads = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), threads);
  if (error != std::errc() || end != value.data() + value.size()) return std::nullopt;
  if (threads < 1 || threads > kMaxThreads) return std::nullopt;
  return threads;
}

constexpr EnvironmentVariable kCpuTarget = {
    "TWOFOUR_CPU_TARGET", "instruction set of the CPU kernels",
    "the widest that is built in and present",
    "an instruction set of this build and machine, such as avx2", is_name};
constexpr EnvironmentVariable kNumThreads = {
    "TWOFOUR_NUM_THREADS", "threads of a run on the CPU", "OpenMP's choice (OMP_NUM_THREADS)",
    "a whole number in 1..4096",
    [](std::string_view value) { return thread_count(value).has_value(); }};
constexpr EnvironmentVariable kKernel = {
    "TWOFOUR_KERNEL", "kernel that every attention plan uses",
    "the one with the lowest predicted cost",
    "a kernel id that `twofour info` lists, such as attention.ref", is_name};
constexpr EnvironmentVariable kTuneFile = {
    "TWOFOUR_TUNE_FILE", "file of the times that `twofour tune` measures and plans go by",
    "twofour/tune.tsv below XDG_CACHE_HOME or ~/.cache", "the path of a file, or off",
    [](std::string_view value) { return !value.empty() && value.back() != '/'; }};
constexpr std::array kVariables = {kCpuTarget, kNumThreads, kKernel, kTuneFile};

/// The value, or nothing when unset or empty.
Result<std::optional<std::string>> read(const EnvironmentVariable& variable) {
  const char* value = std::getenv(variable.name);
  if (value == nullptr || *value == '\0') return std::optional<std::string>();
  if (!variable.accepts(value)) {
    return {Code::kInvalidArgument, std::string(variable.name) + ": expected " + variable.expected +
                                        ", got " + quoted(value)};
  }
  return std::optional<std::string>(value);
}

}  // namespace

std::span<const EnvironmentVariable> environment_variables() { return kVariables; }

Result<std::optional<std::string>> env_cpu_target() { return read(kCpuTarget); }

Result<std::optional<int>> env_num_threads() {
  const auto value = read(kNumThreads);
  if (!value.ok()) return value.status();
  return value->has_value() ? thread_count(**value) : std::optional<int>();
}

Result<std::optional<std::string>> env_kernel() { return read(kKernel); }

Result<std::optional<std::string>> env_tune_file() {
  auto value = read(kTuneFile);
  if (!value.ok()) return value;
  if (value->has_value()) return **value == "off" ? std::optional<std::string>() : *value;
  for (const auto& [name, below] :
       {std::pair{"XDG_CACHE_HOME", ""}, std::pair{"HOME", "/.cache"}}) {
    const char* const folder = std::getenv(name);
    if (folder != nullptr && *folder == '/')
      return std::optional(std::string(folder) + below + "/twofour/tune.tsv");
  }
  return std::optional<std::string>();
}

}  // namespace twofour
