// The reference as the last row of the registry.
#include <algorithm>

#include "core/half.h"
#include "ref/attention.h"

namespace twofour::ref {
namespace {

std::string why_not(const Kernel&, const AttentionProblem&, const Device& device) {
  return device.kind == DeviceKind::kCpu ? "" : "reads memory of the host only";
}

/// About two nanoseconds a multiply-add of every pair, whatever is pruned.
double cost(const Kernel&, const AttentionProblem& problem, const Device& device) {
  const double pairs = static_cast<double>(problem.batch) * static_cast<double>(problem.heads_q) *
                       static_cast<double>(problem.seqlen_q) *
                       static_cast<double>(problem.seqlen_k);
  const double channels = static_cast<double>(problem.head_dim + problem.head_dim_v);
  return 2e-9 * pairs * channels / std::max(device.threads, 1);
}

std::size_t workspace(const Kernel&, const AttentionProblem&, const Device&) { return 0; }

void write_outputs(const AttentionProblem& problem, const AttentionArgs& args, const Output& out) {
  const std::int64_t heads = problem.heads_q, dim = problem.head_dim_v;
  const std::int64_t rows = problem.packed ? problem.total_q : problem.batch * problem.seqlen_q;
  const auto& so = args.o.stride;
  const auto& sl = args.lse.stride;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t b = problem.packed ? 0 : row / problem.seqlen_q;
    const std::int64_t i = problem.packed ? row : row % problem.seqlen_q;
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t d = 0; d < dim; ++d) {
        const std::int64_t at = problem.packed ? i * so[0] + head * so[1] + d * so[2]
                                               : b * so[0] + i * so[1] + head * so[2] + d * so[3];
        store_float(args.o.data, problem.dtype, at,
                    static_cast<float>(out.o[(row * heads + head) * dim + d]));
      }
      if (!args.lse) continue;
      const std::int64_t at =
          problem.packed ? head * sl[0] + i * sl[1] : b * sl[0] + head * sl[1] + i * sl[2];
      const std::int64_t from =
          problem.packed ? head * rows + row : (b * heads + head) * problem.seqlen_q + i;
      static_cast<float*>(args.lse.data)[at] = static_cast<float>(out.lse[from]);
    }
  }
}

Status launch(const Kernel&, const Launch& launch) {
  Result<Output> out = ref::attention(launch.problem, launch.args);
  if (!out.ok()) return out.status();
  write_outputs(launch.problem, launch.args, *out);
  if (launch.args.stats) *launch.args.stats = out->stats;
  if (launch.problem.trace && launch.args.decisions) {
    *launch.args.decisions = std::move(out->decisions);
  }
  return {};
}

}  // namespace

const Kernel& reference_kernel() {
  // Serves every product and pattern; the config says only that it can write decisions.
  static const Kernel row{"attention.ref",
                          "any",
                          {QKProduct::kExact, ScorePattern::kNone, true},
                          true,
                          &why_not,
                          &cost,
                          &workspace,
                          &launch};
  return row;
}

}  // namespace twofour::ref
