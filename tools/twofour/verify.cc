// twofour verify: every row of the registry over every case, against the reference.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>

#include "check_case.h"
#include "command.h"
#include "cpu/targets.h"
#include "ref/attention.h"

namespace twofour::tool {
namespace {

struct Options {
  CaseSource source;
  std::string filter;
  std::vector<std::string> targets;
  std::string device;
  bool json = false;
  bool coverage = false;
  std::size_t show = 20;
};

/// Rows that no case ran, or that have a pattern or product and never met a pruned block: what they
/// are for has not been tested. Asked of the whole set of cases, not of a choice.
void require_coverage(const Selection& rows, const std::string& target, Tally* tally) {
  const auto require = [&](const Kernel& row, bool prunes) {
    const RowTally& own = tally->rows[row.id];
    if (own.failed > 0 || (own.passed > 0 && (!prunes || own.pruned_pairs > 0))) return;
    const char* what =
        own.passed == 0 ? "no case exercises this row" : "no case gives this row a pruned block";
    tally->failures.push_back({row.id, target, "", what});
    ++tally->rows[row.id].failed;
  };
  for (const Family& family : rows.families)
    for (const Kernel* row : {family.row, family.twin})
      if (row != nullptr) {
        const KernelConfig& config = row->config;
        require(*row, config.qk != QKProduct::kExact || config.score != ScorePattern::kNone);
      }
  if (rows.reference) require(ref::reference_kernel(), false);
}

Json rows_json(const Tally& tally, const std::string& target) {
  Json rows = Json::array();
  for (const auto& [id, row] : tally.rows)
    rows.push_back({{"kernel", id},
                    {"target", target},
                    {"passed", row.passed},
                    {"failed", row.failed},
                    {"refused", row.refused},
                    {"worst_error", row.worst_error},
                    {"worst_decision", row.worst_decision},
                    {"pruned_pairs", row.pruned_pairs}});
  return rows;
}

/// Errors and near-tie decisions are the worst of the row, as shares of what rounding allows.
std::string table(const Tally& tally, const std::string& target, bool whole) {
  std::string text = fmt::format("{:<42} {:>7} {:>7} {:>7}  {:>11} {:>14}\n", "on " + target,
                                 "passed", "failed", "refused", "error/bound", "decision/bound");
  for (const auto& [id, row] : tally.rows) {
    if (!whole && row.passed + row.failed == 0) continue;
    text += fmt::format("{:<42} {:>7} {:>7} {:>7}  {:>11.3f} {:>14.3f}\n", id, row.passed,
                        row.failed, row.refused, row.worst_error, row.worst_decision);
  }
  return text;
}

/// The CPU of this machine with one instruction set, "" for the one that runs without asking.
Result<Device> cpu_with(const std::string& target) {
  if (!target.empty()) ::setenv("TWOFOUR_CPU_TARGET", target.c_str(), 1);
  return cpu_device();
}

/// Without a choice everything there is: the CPU and the first CUDA device.
Result<std::vector<Device>> chosen_devices(const Options& options) {
  std::vector<Device> out;
  std::vector<std::string> targets = options.targets;
  if (targets == std::vector<std::string>{"all"}) targets = cpu::supported_targets();
  if (targets.empty() && (options.device.empty() || options.device == "cpu")) targets = {""};
  for (const std::string& target : targets) {
    Result<Device> device = cpu_with(target);
    if (!device.ok()) return device.status();
    out.push_back(*std::move(device));
  }
  if (options.device.empty() && options.targets.empty()) {
    if (Result<Device> device = cuda_device(); device.ok()) out.push_back(*std::move(device));
  } else if (!options.device.empty() && options.device != "cpu") {
    const Result<std::vector<Device>> devices = DeviceChoice{options.device}.devices();
    if (!devices.ok()) return devices.status();
    out.push_back(devices->front());
  }
  return out;
}

int verify(const Options& options) {
  const bool no_choice = options.source.words.empty() && options.source.path.empty();
  const bool whole = options.coverage || (no_choice && options.filter.empty());
  const Result<std::vector<io::Case>> cases = options.source.load("");
  if (!cases.ok()) return report(cases.status(), options.json);
  const Result<std::vector<Device>> devices = chosen_devices(options);
  if (!devices.ok()) return report(devices.status(), options.json);
  const bool any = std::any_of(devices->begin(), devices->end(), [&](const Device& device) {
    const Selection rows = select_rows(options.filter, device);
    return rows.reference || !rows.families.empty();
  });
  if (!any)
    return report({Code::kNotFound, "no kernel id contains '" + options.filter + "'"},
                  options.json);

  const auto start = std::chrono::steady_clock::now();
  std::size_t cases_run = cases->size();
  Json document{{"cases", cases_run}, {"rows", Json::array()}, {"failures", Json::array()}};
  std::vector<Failure> failures;
  std::int64_t checks = 0;
  for (const Device& device : *devices) {
    // The public preparation of K goes by the variable, not by the device.
    if (device.kind == DeviceKind::kCpu) ::setenv("TWOFOUR_CPU_TARGET", device.arch.c_str(), 1);
    const Selection rows = select_rows(options.filter, device);
    Tally tally;
    for (const io::Case& c : *cases) check_case(c, device, rows, &tally);
    if (device.kind == DeviceKind::kCuda && no_choice) {
      const Result<std::vector<io::Case>> more = options.source.load("/cuda");
      if (!more.ok()) return report(more.status(), options.json);
      for (const io::Case& c : *more) check_case(c, device, rows, &tally);
      cases_run += more->size();
    }
    if (whole) require_coverage(rows, device.arch, &tally);
    for (const auto& [id, row] : tally.rows) checks += row.passed + row.failed;
    for (const Json& row : rows_json(tally, device.arch)) document["rows"].push_back(row);
    failures.insert(failures.end(), tally.failures.begin(), tally.failures.end());
    if (!options.json) print(table(tally, device.arch, whole));
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (const Failure& failure : failures)
    document["failures"].push_back({{"kernel", failure.kernel},
                                    {"target", failure.target},
                                    {"case", failure.case_text},
                                    {"message", failure.message}});
  document["cases"] = cases_run;
  document["seconds"] = seconds;
  document["ok"] = failures.empty() && checks > 0;
  if (options.json) {
    print_json(document);
  } else {
    for (std::size_t i = 0; i < std::min(failures.size(), options.show); ++i)
      print(fmt::format("FAILED {} on {}: {}\n    {}\n", failures[i].kernel, failures[i].target,
                        failures[i].message, failures[i].case_text));
    if (failures.size() > options.show)
      print(fmt::format("... and {} more (--show)\n", failures.size() - options.show));
    print(fmt::format("{} cases, {} checks, {} failed, {:.1f} s\n", cases_run, checks,
                      failures.size(), seconds));
  }
  if (checks == 0)
    return report({Code::kUnsupported, "no kernel chosen serves any of the cases"}, false);
  return failures.empty() ? kExitOk : kExitFailed;
}

}  // namespace

void add_verify(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("verify", "Check every kernel over cases/ against the reference");
  options->source.add_to(*command);
  command->add_option("--filter", options->filter, "only kernels whose id contains this");
  command
      ->add_option("--target", options->targets,
                   "instruction sets to run on, separated by commas; all: those of this machine")
      ->delimiter(',');
  command
      ->add_option("--device", options->device,
                   "cpu, cuda or cuda:N; default: the CPU and the first CUDA device")
      ->check(not_empty("cpu, cuda or cuda:N"));
  command->add_option("--show", options->show, "failures to print (default 20)")
      ->check(number<std::uint32_t>("a whole number"));
  command->add_flag("--coverage", options->coverage,
                    "a kernel that no case exercises is a failure; on without CASE, --cases and "
                    "--filter");
  command->add_flag("--json", options->json, "print one JSON document");
  command->callback([options, exit_code] { *exit_code = verify(*options); });
}

}  // namespace twofour::tool
