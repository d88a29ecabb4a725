#include "command.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "core/quote.h"
#include "io/text.h"

namespace twofour::tool {
namespace {

/// The folder of cases: beside the build this program lies in, or installed with it.
std::string find_cases() {
  char buffer[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", buffer, sizeof buffer);
  namespace fs = std::filesystem;
  std::error_code error;
  if (length > 0) {
    const fs::path program(std::string(buffer, static_cast<std::size_t>(length)));
    for (fs::path at = program.parent_path();; at = at.parent_path()) {
      for (const char* below : {"cases", "share/twofour/cases"})
        if (fs::is_directory(at / below, error)) return (at / below).string();
      if (at == at.parent_path()) break;
    }
  }
  return "";
}

}  // namespace

CLI::Validator not_empty(const std::string& what) {
  return {[what](const std::string& text) -> std::string {
            return text.empty() ? "expected " + what + ", got ''" : "";
          },
          ""};
}

int report(const Status& status, bool json) {
  // CLI11 quotes words as they came.
  const std::string line = escaped(status.message(), std::string::npos);
  std::fprintf(stderr, "twofour: %s\n", line.c_str());
  if (json)
    print_json(
        Json{{"error", {{"code", to_string(status.code())}, {"message", status.message()}}}});
  return kExitBadUse;
}

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void print_json(const Json& json) {
  // A path in a message need not be UTF-8; JSON must be.
  print(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

Status finish_output() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return {};
  return Status(Code::kIo, std::string("cannot write the output: ") + std::strerror(errno));
}

void CaseSource::add_to(CLI::App& command) {
  command.add_option("CASE", words,
                     "one case as key=value words (cases/README.md), such as mode=int8 heads=9/3 "
                     "dim=64 len=4096x4096 causal=bottom_right");
  command.add_option("--cases", path, "a file of cases, or a folder of *.cases")
      ->check(not_empty("a file or folder"));
}

Result<std::vector<io::Case>> CaseSource::load(const std::string& fallback) const {
  if (!words.empty()) {
    if (!path.empty()) return {Code::kInvalidArgument, "expected a case or --cases, got both"};
    std::string line;
    for (const std::string& word : words) line += word + " ";
    Result<std::vector<io::Case>> cases = io::parse_cases(line, "case");
    if (cases.ok() && cases->empty())
      return {Code::kInvalidArgument, "expected a case, got blanks"};
    return cases;
  }
  if (!path.empty()) return io::load_cases(path);
  const std::string folder = find_cases();
  if (folder.empty())
    return {Code::kNotFound, "expected a cases folder beside this program; name one with --cases"};
  return io::load_cases(folder + fallback);
}

void DeviceChoice::add_to(CLI::App& command) {
  command
      .add_option("--device", name,
                  "cpu, cuda or cuda:N; default: the first CUDA device where it can serve, else "
                  "the CPU")
      ->check(not_empty("cpu, cuda or cuda:N"));
}

Result<std::vector<Device>> DeviceChoice::devices() const {
  std::vector<Device> out;
  if (name.starts_with("cuda")) {
    int index = 0;
    const char* const end = name.data() + name.size();
    const bool numbered = name.size() > 5 && name[4] == ':';
    const auto [stop, error] = numbered ? std::from_chars(name.data() + 5, end, index)
                                        : std::from_chars_result{name.data() + 4, std::errc()};
    if (error == std::errc() && stop == end && index >= 0) {
      Result<Device> device = cuda_device(index);
      if (!device.ok()) return device.status();
      out.push_back(*std::move(device));
      return out;
    }
  }
  if (!name.empty() && name != "cpu") {
    return {Code::kInvalidArgument,
            "--device: expected cpu, cuda or cuda:N, got " + io::in_quotes(name)};
  }
  if (name.empty()) {
    if (Result<Device> device = cuda_device(); device.ok()) out.push_back(*std::move(device));
  }
  Result<Device> cpu = cpu_device();
  if (!cpu.ok()) return cpu.status();
  out.push_back(*std::move(cpu));
  return out;
}

std::string device_text(const Device& device) {
  if (device.kind == DeviceKind::kCuda)
    return device.name + " (cuda:" + std::to_string(device.index) + ", " + device.arch + ")";
  return device.name + " (" + device.arch + ", " + std::to_string(device.threads) +
         (device.threads == 1 ? " thread)" : " threads)");
}

Json to_json(const Device& device) {
  if (device.kind == DeviceKind::kCuda)
    return {{"kind", "cuda"},
            {"index", device.index},
            {"name", device.name},
            {"arch", device.arch},
            {"multiprocessors", device.multiprocessors},
            {"shared_memory", device.shared_memory},
            {"peak_gflops", device.peak_gflops}};
  return {{"kind", "cpu"},
          {"name", device.name},
          {"arch", device.arch},
          {"threads", device.threads},
          {"peak_gflops", device.peak_gflops}};
}

}  // namespace twofour::tool
