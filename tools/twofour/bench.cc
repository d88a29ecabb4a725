// twofour bench: chosen kernels over the shapes of cases/bench, beside the dense row in the same
// run.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>

#include "command.h"
#include "twofour/attention.h"

namespace twofour::tool {
namespace {

struct Options {
  CaseSource source;
  std::string kernel;
  int repeats = 7;
  bool json = false;
};

constexpr std::size_t kFlushBytes = std::size_t{64} << 20;  // more than a last-level cache share

struct Times {
  double min = 0, median = 0, max = 0;
};

Times summarise(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return {seconds.front(), seconds[seconds.size() / 2], seconds.back()};
}

/// One problem ready to run: the sparse one and its dense peer share inputs, not plans.
class Runner {
 public:
  static Result<Runner> make(const AttentionProblem& problem, const Device& device,
                             const std::string& kernel, const AttentionArgs& args) {
    PlanOptions options;
    options.kernel_id = kernel;
    Result<Plan> plan = twofour::plan(problem, device, options);
    if (!plan.ok()) return plan.status();
    return Runner(*std::move(plan), args);
  }

  Status run(double* seconds) {
    const auto start = std::chrono::steady_clock::now();
    Status status = plan_.run(args_, workspace_.data(), workspace_.size());
    *seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return status;
  }
  Result<AttentionStats> count() {
    AttentionStats stats;
    AttentionArgs args = args_;
    args.stats = &stats;
    const Status status = plan_.run(args, workspace_.data(), workspace_.size());
    if (!status.ok()) return status;
    return stats;
  }
  const Plan& plan() const { return plan_; }

 private:
  Runner(Plan plan, const AttentionArgs& args)
      : plan_(std::move(plan)), args_(args), workspace_(plan_.workspace_bytes()) {}
  Plan plan_;
  AttentionArgs args_;
  std::vector<std::byte> workspace_;
};

/// Writes through more memory than the caches hold.
void flush_caches(std::vector<unsigned char>* memory) {
  for (std::size_t i = 0; i < memory->size(); i += 64) ++(*memory)[i];
}

struct Row {
  std::string case_text, kernel, sparsity;
  Times warm, cold, dense;
  double ratio = 0, ratio_min = 0, ratio_max = 0;  // dense over this, run by run
  double gflops = 0;                               // dense operations over the warm median
  double pruned_share = 0, refined_share = 0, dropped_share = 0;
};

Result<Row> measure(const io::Case& c, const Device& device, const Options& options,
                    std::vector<unsigned char>* flush) {
  const std::unique_ptr<io::CaseMemory> memory = io::make_case_memory(c);
  AttentionProblem dense_problem = c.problem;
  dense_problem.sparsity = preset(Mode::kDense);
  dense_problem.sparsity.block = c.problem.sparsity.block;
  Result<Runner> sparse = Runner::make(c.problem, device, options.kernel, memory->args);
  if (!sparse.ok()) return sparse.status();
  Result<Runner> dense = Runner::make(dense_problem, device, "", memory->args);
  if (!dense.ok()) return dense.status();

  const Result<AttentionStats> stats = sparse->count();  // also the warm-up
  if (!stats.ok()) return stats.status();
  double ignored = 0;
  if (Status status = dense->run(&ignored); !status.ok()) return status;
  std::vector<double> warm, cold, dense_warm, ratios;
  for (int i = 0; i < options.repeats; ++i) {
    // Taken in turns, so that a change of the machine's clock meets both.
    double of_dense = 0, of_sparse = 0, of_cold = 0;
    if (Status status = dense->run(&of_dense); !status.ok()) return status;
    if (Status status = sparse->run(&of_sparse); !status.ok()) return status;
    flush_caches(flush);
    if (Status status = sparse->run(&of_cold); !status.ok()) return status;
    dense_warm.push_back(of_dense);
    warm.push_back(of_sparse);
    cold.push_back(of_cold);
    ratios.push_back(of_dense / of_sparse);
  }
  Row row;
  row.case_text = c.text;
  row.kernel = sparse->plan().kernel_id();
  row.sparsity = to_string(sparse->plan().problem().sparsity);
  row.warm = summarise(warm);
  row.cold = summarise(cold);
  row.dense = summarise(dense_warm);
  const Times ratio = summarise(ratios);
  row.ratio = ratio.median;
  row.ratio_min = ratio.min;
  row.ratio_max = ratio.max;
  const auto share = [](std::int64_t part, std::int64_t whole) {
    return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  const double channels = static_cast<double>(c.problem.head_dim + c.problem.head_dim_v);
  row.gflops = 2 * static_cast<double>(stats->live_pairs) * channels / row.warm.median / 1e9;
  row.pruned_share = share(stats->pruned_pairs, stats->live_pairs);
  row.refined_share = share(stats->refined, stats->units);
  row.dropped_share = share(stats->dropped, stats->units);
  return row;
}

Json times_json(const Times& times) {
  return {{"min_s", times.min}, {"median_s", times.median}, {"max_s", times.max}};
}

Json row_json(const Row& row) {
  return {{"case", row.case_text},
          {"kernel", row.kernel},
          {"sparsity", row.sparsity},
          {"warm", times_json(row.warm)},
          {"cold", times_json(row.cold)},
          {"dense", times_json(row.dense)},
          {"ratio_vs_dense", row.ratio},
          {"ratio_min", row.ratio_min},
          {"ratio_max", row.ratio_max},
          {"dense_equivalent_gflops", row.gflops},
          {"pruned_share", row.pruned_share},
          {"refined_share", row.refined_share},
          {"dropped_share", row.dropped_share}};
}

int bench(const Options& options) {
  const Result<std::vector<io::Case>> cases = options.source.load("/bench");
  if (!cases.ok()) return report(cases.status(), options.json);
  const Result<Device> device = cpu_device();
  if (!device.ok()) return report(device.status(), options.json);
  std::vector<unsigned char> flush(kFlushBytes);
  Json rows = Json::array();
  if (!options.json)
    print(
        fmt::format("{} ({}, {} threads), {} repeats; times in ms: warm min/median/max, cold "
                    "median; vs dense in this run\n",
                    device->name, device->arch, device->threads, options.repeats));
  for (const io::Case& c : *cases) {
    const Result<Row> row = measure(c, *device, options, &flush);
    if (!row.ok()) return report(row.status(), options.json);
    if (options.json) {
      rows.push_back(row_json(*row));
      continue;
    }
    print(fmt::format(
        "{}\n  {:<22} {:9.3f} /{:9.3f} /{:9.3f}  cold {:9.3f}  {:7.1f} GFLOPS  "
        "{:.2f}x dense ({:.2f}-{:.2f})\n",
        c.text, row->sparsity, row->warm.min * 1e3, row->warm.median * 1e3, row->warm.max * 1e3,
        row->cold.median * 1e3, row->gflops, row->ratio, row->ratio_min, row->ratio_max));
    if (const Status status = finish_output(); !status.ok()) return report(status, false);
  }
  if (options.json) print_json(Json{{"device", to_json(*device)}, {"rows", rows}});
  return kExitOk;
}

}  // namespace

void add_bench(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("bench", "Time kernels against the dense one");
  options->source.add_to(*command);
  command->add_option("--kernel", options->kernel, "force this kernel id");
  command->add_option("--repeat", options->repeats, "timed runs of each kind (default 7)")
      ->check(CLI::Range(1, 1000));
  command->add_flag("--json", options->json, "print one JSON document");
  command->callback([options, exit_code] { *exit_code = bench(*options); });
}

}  // namespace twofour::tool
