// twofour tune: times the kernels that the model finds fastest and keeps the times for plans.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "command.h"
#include "core/environment.h"
#include "plan/registry.h"
#include "plan/tune.h"
#include "runner.h"

namespace twofour::tool {
namespace {

struct Options {
  CaseSource source;
  DeviceChoice device;
  int top = 3;
  int repeats = 7;
  std::string file;
  bool list = false;
  bool forget = false;
  bool json = false;
};

struct Row {
  TunedTime time;
  double modelled = 0;
  bool chosen = false;
};

/// Kernels that plan() may choose, the cheapest by the model first.
std::vector<Candidate> able(const Plan& plan) {
  std::vector<Candidate> out;
  const auto rows = kernels();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Candidate& candidate = plan.candidates()[i];
    if (candidate.why_not.empty() && !rows[i].forced_only) out.push_back(candidate);
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; });
  return out;
}

Result<std::vector<Row>> measure(const io::Case& c, const std::vector<Device>& devices,
                                 const Options& options) {
  const Device* device = nullptr;
  const Result<Plan> plan =
      plan_on(devices, &device, [&](const Device& one) { return twofour::plan(c.problem, one); });
  if (!plan.ok()) return plan.status();
  std::vector<Candidate> candidates = able(*plan);
  if (candidates.empty()) {
    return {Code::kUnsupported,
            "tune: expected a kernel that plans choose by themselves, got a "
            "problem that only kernels asked for by name serve"};
  }
  candidates.resize(std::min(candidates.size(), static_cast<std::size_t>(options.top)));
  const std::unique_ptr<io::CaseMemory> memory = io::make_case_memory(c);
  std::unique_ptr<CudaCall> cuda;
  if (device->kind == DeviceKind::kCuda) {
    Result<std::unique_ptr<CudaCall>> made = CudaCall::make(c.problem, memory->args, *device);
    if (!made.ok()) return made.status();
    cuda = *std::move(made);
  }
  std::vector<Runner> runners;
  for (const Candidate& candidate : candidates) {
    Result<Runner> runner =
        Runner::make(c.problem, *device, candidate.kernel_id, memory->args, cuda.get());
    if (!runner.ok()) return runner.status();
    double ignored = 0;  // the warm-up
    if (Status status = runner->run(&ignored); !status.ok()) return status;
    runners.push_back(*std::move(runner));
  }
  // Taken in turns, so that a change of the machine's clock meets all.
  std::vector<std::vector<double>> seconds(runners.size());
  for (int i = 0; i < options.repeats; ++i) {
    for (std::size_t k = 0; k < runners.size(); ++k) {
      double one = 0;
      if (Status status = runners[k].run(&one); !status.ok()) return status;
      seconds[k].push_back(std::max(one, 1e-9));  // of nothing to do, a clock may say 0
    }
  }
  std::vector<Row> rows;
  for (std::size_t k = 0; k < runners.size(); ++k) {
    const Times times = summarise(seconds[k]);
    rows.push_back({{tuned_version(), tuned_device(*device), tuned_problem(plan->problem()),
                     candidates[k].kernel_id, times.min, times.median, times.max},
                    candidates[k].seconds,
                    false});
  }
  std::min_element(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return a.time.median < b.time.median;
  })->chosen = true;
  return rows;
}

Json row_json(const TunedTime& t) {
  return {{"kernel", t.kernel},   {"min_s", t.min},     {"median_s", t.median}, {"max_s", t.max},
          {"problem", t.problem}, {"device", t.device}, {"version", t.version}};
}

Result<std::string> file_of(const Options& options) {
  if (!options.file.empty()) return options.file;
  const auto path = env_tune_file();
  if (!path.ok()) return path.status();
  if (path->has_value()) return **path;
  return {Code::kInvalidArgument,
          "tune: expected --file or a TWOFOUR_TUNE_FILE that is not off, got neither"};
}

int list(const std::string& path, bool json) {
  const auto times = load_tuned(path);
  if (!times.ok()) return report(times.status(), json);
  Json rows = Json::array();
  for (const TunedTime& t : *times) {
    if (json)
      rows.push_back(row_json(t));
    else
      print(fmt::format("{} on {}, {}\n  {}  {:.4f} /{:.4f} /{:.4f} ms\n", t.problem, t.device,
                        t.version, t.kernel, t.min * 1e3, t.median * 1e3, t.max * 1e3));
  }
  if (json) print_json(Json{{"file", path}, {"times", rows}});
  return kExitOk;
}

int tune(const Options& options) {
  const auto path = file_of(options);
  if (!path.ok()) return report(path.status(), options.json);
  const bool any_case = !options.source.words.empty() || !options.source.path.empty();
  if (any_case == (options.list || options.forget) || (options.list && options.forget)) {
    return report({Code::kInvalidArgument,
                   "tune: expected one of a case (such as mode=int8 heads=32/8 dim=128 "
                   "len=8192x8192), --list and --forget"},
                  options.json);
  }
  if (options.list) return list(*path, options.json);
  if (options.forget) {  // whatever the file has become
    if (const Status status = save_tuned(*path, {}); !status.ok())
      return report(status, options.json);
    if (options.json) print_json(Json{{"file", *path}, {"times", Json::array()}});
    return kExitOk;
  }
  const auto cases = options.source.load("");
  if (!cases.ok()) return report(cases.status(), options.json);
  const auto devices = options.device.devices();
  if (!devices.ok()) return report(devices.status(), options.json);
  auto times = load_tuned(*path);  // before any work, and never overwritten when damaged
  if (!times.ok()) {
    return report({times.status().code(),
                   times.status().message() + "; `twofour tune --forget` starts the file anew"},
                  options.json);
  }
  Json all = Json::array();
  for (const io::Case& c : *cases) {
    const auto rows = measure(c, *devices, options);
    if (!rows.ok()) return report(rows.status(), options.json);
    std::vector<TunedTime> fresh;
    for (const Row& row : *rows) fresh.push_back(row.time);
    times = load_tuned(*path);  // another process may have written meanwhile
    if (!times.ok()) return report(times.status(), options.json);
    replace_tuned(*times, fresh);
    if (const Status status = save_tuned(*path, *times); !status.ok())
      return report(status, options.json);
    Json found = Json::array();
    if (!options.json)
      print(fmt::format("{}\non {}; ms: modelled, then min/median/max of {} runs\n", c.text,
                        fresh.front().device, options.repeats));
    for (const Row& row : *rows) {
      found.push_back(row_json(row.time));
      found.back()["modelled_s"] = row.modelled;
      found.back()["chosen"] = row.chosen;
      if (!options.json)
        print(fmt::format("{} {:<50} {:9.4f}  {:9.4f} /{:9.4f} /{:9.4f}\n", row.chosen ? "*" : " ",
                          row.time.kernel, row.modelled * 1e3, row.time.min * 1e3,
                          row.time.median * 1e3, row.time.max * 1e3));
    }
    all.push_back({{"case", c.text}, {"kernels", found}});
    if (const Status status = finish_output(); !status.ok()) return report(status, false);
  }
  if (options.json) print_json(Json{{"file", *path}, {"cases", all}});
  return kExitOk;
}

}  // namespace

void add_tune(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("tune", "Time the kernels that cost least and keep the times for plans");
  options->source.add_to(*command);
  options->device.add_to(*command);
  command->add_option("--top", options->top, "kernels to time, cheapest first (default 3)")
      ->check(number<int>("a whole number in 1..100"))
      ->check(CLI::Range(1, 100));
  command->add_option("--repeat", options->repeats, "timed runs of each (default 7)")
      ->check(number<int>("a whole number in 1..1000"))
      ->check(CLI::Range(1, 1000));
  command->add_option("--file", options->file, "file of times; default: as TWOFOUR_TUNE_FILE says")
      ->check(not_empty("a file name"));
  command->add_flag("--list", options->list, "print the times of the file");
  command->add_flag("--forget", options->forget, "empty the file");
  command->add_flag("--json", options->json, "print one JSON document");
  command->callback([options, exit_code] { *exit_code = tune(*options); });
}

}  // namespace twofour::tool
