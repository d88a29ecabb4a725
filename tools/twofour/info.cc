// twofour info: the version, the device, what can be set and what can run.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "command.h"
#include "core/environment.h"
#include "cpu/targets.h"
#include "plan/registry.h"
#include "twofour/twofour.h"

namespace twofour::tool {
namespace {

int info(bool json) {
  const Result<Device> device = cpu_device();
  if (!device.ok()) return report(device.status(), json);
  const Result<Device> cuda = cuda_device();
  const std::vector<std::string> supported = cpu::supported_targets();
  const auto present = [&](const std::string& target) {
    return std::find(supported.begin(), supported.end(), target) != supported.end();
  };
  if (json) {
    Json targets = Json::array(), variables = Json::array(), rows = Json::array();
    for (const std::string& target : cpu::built_targets())
      targets.push_back({{"name", target}, {"present", present(target)}});
    for (const EnvironmentVariable& variable : environment_variables()) {
      const char* value = std::getenv(variable.name);
      variables.push_back({{"name", variable.name},
                           {"value", value == nullptr ? Json() : Json(value)},
                           {"meaning", variable.meaning},
                           {"default", variable.default_value},
                           {"expected", variable.expected}});
    }
    for (const Kernel& row : kernels())
      rows.push_back({{"id", row.id}, {"arch", row.arch}, {"forced_only", row.forced_only}});
    print_json(Json{{"version", twofour_version_string()},
                    {"device", to_json(*device)},
                    {"cuda", cuda.ok() ? to_json(*cuda) : Json()},
                    {"cuda_why_not", cuda.status().message()},
                    {"targets", targets},
                    {"environment", variables},
                    {"kernels", rows}});
    return kExitOk;
  }
  print(fmt::format("twofour {}\ndevice: {}, {}, {} {}, about {:.0f} GFLOPS fp32\n",
                    twofour_version_string(), device->name, device->arch, device->threads,
                    device->threads == 1 ? "thread" : "threads", device->peak_gflops));
  if (cuda.ok()) {
    print(fmt::format("device: {}, {}, {} multiprocessors, about {:.0f} TFLOPS fp16\n", cuda->name,
                      cuda->arch, cuda->multiprocessors, cuda->peak_gflops / 1e3));
  } else {
    print("no " + cuda.status().message() + "\n");
  }
  print("instruction sets built in:");
  for (const std::string& target : cpu::built_targets())
    print(" " + target + (present(target) ? "" : " (not on this machine)"));
  print("\nenvironment:\n");
  for (const EnvironmentVariable& variable : environment_variables()) {
    const char* value = std::getenv(variable.name);
    print(fmt::format("  {}{}\n    {}; default: {}; expected: {}\n", variable.name,
                      value == nullptr ? " (unset)" : std::string("=") + value, variable.meaning,
                      variable.default_value, variable.expected));
  }
  print("kernels:\n");
  for (const Kernel& row : kernels())
    print(fmt::format("  {}{}\n", row.id,
                      row.forced_only || row.config.trace ? " (only by name)" : ""));
  return kExitOk;
}

}  // namespace

void add_info(CLI::App& app, int* exit_code) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command =
      app.add_subcommand("info", "Print version, device, instruction sets, environment, kernels");
  command->add_flag("--json", *json, "print one JSON document");
  command->callback([json, exit_code] { *exit_code = info(*json); });
}

}  // namespace twofour::tool
