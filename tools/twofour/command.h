// What the sub-commands share: registration, errors, printing, signals.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <type_traits>
#include <vector>

#include "io/cases.h"
#include "io/text.h"
#include "twofour/attention.h"
#include "twofour/device.h"
#include "twofour/status.h"

namespace twofour::tool {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;  // a check failed
inline constexpr int kExitBadUse = 2;  // bad usage or input, or interrupted

using Json = nlohmann::ordered_json;

/// Each adds its sub-command; the callback leaves the exit code in *exit_code.
void add_attend(CLI::App& app, int* exit_code);
void add_bench(CLI::App& app, int* exit_code);
void add_explain(CLI::App& app, int* exit_code);
void add_golden(CLI::App& app, int* exit_code);
void add_info(CLI::App& app, int* exit_code);
void add_tune(CLI::App& app, int* exit_code);
void add_verify(CLI::App& app, int* exit_code);

/// For options where an empty word would count as none given: "expected WHAT, got ''".
CLI::Validator not_empty(const std::string& what);

/// For options that are numbers: "expected WHAT, got 'abc'".
template <class Number>
CLI::Validator number(const std::string& what) {
  return {[what](const std::string& text) -> std::string {
            Number value{};
            const char* const end = text.data() + text.size();
            const auto [stop, error] = std::from_chars(text.data(), end, value);
            bool good = error == std::errc() && stop == end && !text.empty();
            if constexpr (std::is_floating_point_v<Number>) good = good && std::isfinite(value);
            return good ? "" : "expected " + what + ", got " + io::in_quotes(text);
          },
          ""};
}

/// Prints "twofour: MESSAGE" to stderr and, with `json`, {"error": ...} to stdout; the exit code.
int report(const Status& status, bool json);

/// Text to stdout. The exit code of a command is decided after finish_output().
void print(const std::string& text);
void print_json(const Json& json);

/// Flushes stdout; an error (a full disk) becomes a status.
Status finish_output();

/// Flags that every command reading cases has: `words` is one case on the command line, `path` a
/// file or directory; without both, `fallback` below the project's cases.
struct CaseSource {
  std::vector<std::string> words;
  std::string path;
  void add_to(CLI::App& command);
  Result<std::vector<io::Case>> load(const std::string& fallback) const;
};

/// The --device of every command that plans.
struct DeviceChoice {
  std::string name;  // "cpu", "cuda", "cuda:1"; empty: what there is
  void add_to(CLI::App& command);
  /// The devices to try in turn: the one named, else the first CUDA device, if it can be used, and
  /// the CPU.
  Result<std::vector<Device>> devices() const;
};

/// The plan of the first device that does not refuse it as unsupported, which *device then is.
template <class MakePlan>
Result<Plan> plan_on(const std::vector<Device>& devices, const Device** device, MakePlan make) {
  for (const Device& one : devices) {
    *device = &one;
    Result<Plan> made = make(one);
    if (made.status().code() != Code::kUnsupported || &one == &devices.back()) return made;
  }
  return {Code::kInternal, "no device to plan for"};
}

/// "EPYC (avx2, 2 threads)", "NVIDIA H200 (cuda:0, sm_90)".
std::string device_text(const Device& device);

Json to_json(const Device& device);

}  // namespace twofour::tool
