// Rows, costs, workspace and launch of attention on mma.sync.
#include "cuda/sm80/attention.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "cuda/attention_call.h"
#include "cuda/error.h"
#include "cuda/sm80/kernels.h"

namespace twofour::cuda::sm80 {
namespace {

template <int... kRow>
Compiled compiled_row(std::integer_sequence<int, kRow...>, int row) {
  static constexpr Compiled (*kAll[])() = {&sm80::compiled_row<kRow>...};
  return kAll[row]();
}
Compiled compiled(int row) {
  return compiled_row(std::make_integer_sequence<int, kRowCount>(), row);
}

const Config& config_of(const Kernel& kernel) { return kRows[kernel.number]; }

/// The next smaller head_dim that has rows of its own.
int head_dim_below(const Config& c) { return c.head_dim == 128 ? 96 : c.head_dim == 96 ? 64 : 0; }

Needs needs_of(const Config& c) { return {c.qk, c.trace, code_width(c), c.rows()}; }

/// Stages that fit the shared memory of a CTA, at most four: each step is then copied two ahead,
/// and a warp may be one ahead of the others.
int stages_of(const Compiled& row, const Device& device) {
  constexpr int kMostStages = 4;
  const std::int64_t left = device.shared_memory - row.fixed_bytes;
  return static_cast<int>(std::clamp<std::int64_t>(left / row.stage_bytes, 0, kMostStages));
}

Params make_params(const Launch& launch, const Config& c, const Workspace& w, int stages) {
  const AttentionProblem& p = launch.problem;
  Params params{};
  fill_params(params, launch, w);
  params.k = key_rows(launch, w);
  if (is_int8(c)) {
    // [Hkv, rows of the call, channels]
    params.k = {w.codes, 0, code_width(c), rows_of(p, false) * code_width(c)};
  }
  params.v = rows_view(launch.args.v, p.packed);
  params.stages = stages;
  return params;
}

Status launch(const Kernel& kernel, const Launch& launch) {
  const AttentionProblem& p = launch.problem;
  const Config& c = config_of(kernel);
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  if (rows_of(p, true) == 0) return clear_stats(launch, stream);
  const Needs needs = needs_of(c);
  const Workspace w(launch, needs);
  const Compiled compiled_row = compiled(kernel.number);
  const int stages = stages_of(compiled_row, launch.device);
  const int bytes = compiled_row.fixed_bytes + stages * compiled_row.stage_bytes;
  Params params = make_params(launch, c, w, stages);
  Status status = prepare(launch, needs, w, stream);
  if (!status.ok()) return status;
  static std::array<std::atomic<std::uint64_t>, kRowCount> reserved{};
  status = reserve_shared(reserved[kernel.number], compiled_row.kernel, bytes, launch.device.index);
  if (!status.ok()) return status;
  const auto grid = static_cast<unsigned>(max_row_tiles(p, c.rows()) * p.heads_q * params.parts);
  void* arguments[] = {&params};
  status = to_status(
      cudaLaunchKernel(compiled_row.kernel, dim3(grid), dim3(static_cast<unsigned>(c.threads())),
                       arguments, static_cast<std::size_t>(bytes), stream),
      kernel.id.c_str());
  if (status.ok()) status = finish(params, launch, stream);
  if (!status.ok() || !c.trace) return status;
  return read_decisions(*launch.args.decisions, w, stream);
}

std::string why_not(const Kernel& kernel, const AttentionProblem& p, const Device& device) {
  const Config& c = config_of(kernel);
  if (device.kind != DeviceKind::kCuda) return "runs on NVIDIA GPUs only";
  if (!is_for(kernel, device))
    return "runs on compute capability 8.0 (Ampere) and newer, this device has " + device.arch;
  const std::string reason = why_not_config(c, head_dim_below(c), c.rows(), p);
  if (!reason.empty()) return reason;
  const Compiled row = compiled(kernel.number);
  if (stages_of(row, device) < 2)
    return "needs " + std::to_string((row.fixed_bytes + 2 * row.stage_bytes + 1023) / 1024) +
           " KiB of shared memory, this device has " + std::to_string(device.shared_memory / 1024);
  return "";
}

// Share of the dense fp16 peak that each product reaches, measured on an H200 and estimated
// elsewhere (docs/kernels/sm80.md): mma.sync reaches two thirds of Hopper's peak.
double cost(const Kernel& kernel, const AttentionProblem& p, const Device& device) {
  const Config& c = config_of(kernel);
  const double of_peak = device.arch == "sm_90" ? 0.6 : 1;
  const double qk = (c.qk == QKProduct::kExact ? 0.55 : 0.75) * of_peak;
  const double pv = (c.score == ScorePattern::kPair ? 0.75 : 0.55) * of_peak;
  return estimated_seconds(p, device, c.head_dim, qk, pv);
}

std::size_t workspace(const Kernel& kernel, const AttentionProblem& p, const Device&) {
  return Workspace(p, needs_of(config_of(kernel)), nullptr).bytes;
}

std::vector<Kernel> make_kernels() {
  std::vector<Kernel> all;
  for (const Config& c : kRows) {
    Kernel row = kernel_of(c, "sm80", static_cast<int>(all.size()));
    row.arch = "sm_80+";
    row.why_not = &why_not;
    row.cost = &cost;
    row.workspace = &workspace;
    row.launch = &launch;
    all.push_back(std::move(row));
  }
  return all;
}

}  // namespace

std::span<const Kernel> attention_kernels() {
  static const std::vector<Kernel> rows = make_kernels();
  return rows;
}

}  // namespace twofour::cuda::sm80
