// twofour bench: chosen kernels over the shapes of cases/bench, beside the dense row in the same
// run.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "command.h"
#include "cuda/memory.h"
#include "cuda_call.h"
#include "runner.h"
#include "twofour/attention.h"

namespace twofour::tool {
namespace {

struct Options {
  CaseSource source;
  std::string kernel;
  DeviceChoice device;
  int repeats = 7;
  bool json = false;
};

constexpr std::size_t kFlushBytes = std::size_t{64} << 20;  // more than a last-level cache share
constexpr std::size_t kCudaFlushBytes = std::size_t{256} << 20;  // more than an L2 cache

/// Writes through more memory than the caches hold.
class CacheFlusher {
 public:
  static Result<CacheFlusher> make(const Device& device) {
    CacheFlusher out;
    if (device.kind == DeviceKind::kCpu) {
      out.host_.resize(kFlushBytes);
      return out;
    }
    Result<cuda::Buffer> buffer = cuda::Buffer::allocate(device.index, kCudaFlushBytes);
    if (!buffer.ok()) return buffer.status();
    out.device_ = *std::move(buffer);
    return out;
  }
  Status flush() {
    for (std::size_t i = 0; i < host_.size(); i += 64) ++host_[i];
    if (device_.size() == 0) return {};
    return cuda::fill(device_.data(), ++value_, device_.size());
  }

 private:
  std::vector<unsigned char> host_;
  cuda::Buffer device_;
  unsigned char value_ = 0;
};

struct Row {
  std::string case_text, device, kernel, sparsity;
  Times warm, cold, dense;
  double ratio = 0, ratio_min = 0, ratio_max = 0;  // dense over this, run by run
  double gflops = 0;                               // dense operations over the warm median
  double pruned_share = 0, refined_share = 0, dropped_share = 0;
};

Result<Row> measure(const io::Case& c, const std::vector<Device>& devices, const Options& options) {
  const std::unique_ptr<io::CaseMemory> memory = io::make_case_memory(c);
  AttentionProblem dense_problem = c.problem;
  dense_problem.sparsity = preset(Mode::kDense);
  dense_problem.sparsity.block = c.problem.sparsity.block;
  PlanOptions plan_options;
  plan_options.kernel_id = options.kernel;
  const Device* device = nullptr;
  Result<Plan> plan = plan_on(devices, &device, [&](const Device& one) {
    return twofour::plan(c.problem, one, plan_options);
  });
  if (!plan.ok()) return plan.status();
  std::unique_ptr<CudaCall> cuda;
  if (device->kind == DeviceKind::kCuda) {
    Result<std::unique_ptr<CudaCall>> made = CudaCall::make(c.problem, memory->args, *device);
    if (!made.ok()) return made.status();
    cuda = *std::move(made);
  }
  Result<CacheFlusher> flusher = CacheFlusher::make(*device);
  if (!flusher.ok()) return flusher.status();
  Result<Runner> sparse = Runner::make(*std::move(plan), *device, memory->args, cuda.get());
  if (!sparse.ok()) return sparse.status();
  Result<Runner> dense = Runner::make(dense_problem, *device, "", memory->args, cuda.get());
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
    if (Status status = flusher->flush(); !status.ok()) return status;
    if (Status status = sparse->run(&of_cold); !status.ok()) return status;
    dense_warm.push_back(of_dense);
    warm.push_back(of_sparse);
    cold.push_back(of_cold);
    ratios.push_back(of_dense / of_sparse);
  }
  Row row;
  row.case_text = c.text;
  row.device = device_text(*device);
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
          {"device", row.device},
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
  const Result<std::vector<Device>> devices = options.device.devices();
  if (!devices.ok()) return report(devices.status(), options.json);
  Json rows = Json::array();
  if (!options.json)
    print(fmt::format(
        "{} repeats; times in ms: warm min/median/max, cold median; vs dense in this run\n",
        options.repeats));
  std::string shown;
  for (const io::Case& c : *cases) {
    const Result<Row> row = measure(c, *devices, options);
    if (!row.ok()) return report(row.status(), options.json);
    if (options.json) {
      rows.push_back(row_json(*row));
      continue;
    }
    if (row->device != shown) print("on " + row->device + "\n");
    shown = row->device;
    print(fmt::format(
        "{}\n  {:<22} {:9.3f} /{:9.3f} /{:9.3f}  cold {:9.3f}  {:7.1f} GFLOPS  "
        "{:.2f}x dense ({:.2f}-{:.2f})\n",
        c.text, row->sparsity, row->warm.min * 1e3, row->warm.median * 1e3, row->warm.max * 1e3,
        row->cold.median * 1e3, row->gflops, row->ratio, row->ratio_min, row->ratio_max));
    if (const Status status = finish_output(); !status.ok()) return report(status, false);
  }
  if (options.json) print_json(Json{{"device", to_json(devices->front())}, {"rows", rows}});
  return kExitOk;
}

}  // namespace

void add_bench(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("bench", "Time kernels against the dense one");
  options->source.add_to(*command);
  command->add_option("--kernel", options->kernel, "force this kernel id");
  options->device.add_to(*command);
  command->add_option("--repeat", options->repeats, "timed runs of each kind (default 7)")
      ->check(number<int>("a whole number in 1..1000"))
      ->check(CLI::Range(1, 1000));
  command->add_flag("--json", options->json, "print one JSON document");
  command->callback([options, exit_code] { *exit_code = bench(*options); });
}

}  // namespace twofour::tool
