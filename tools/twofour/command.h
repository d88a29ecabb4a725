// What the sub-commands share: registration, errors, printing, signals.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/cases.h"
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
void add_info(CLI::App& app, int* exit_code);
void add_verify(CLI::App& app, int* exit_code);

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

Json to_json(const Device& device);

}  // namespace twofour::tool
