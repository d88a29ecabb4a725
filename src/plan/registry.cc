#include "plan/registry.h"

#include <charconv>
#include <string_view>
#include <vector>

#include "cpu/attention.h"
#include "cuda/device.h"
#include "ref/attention.h"

namespace twofour {

std::span<const Kernel> kernels() {
  static const std::vector<Kernel> rows = [] {
    std::vector<Kernel> all;
    for (const auto& some : {cuda::attention_kernels(), cpu::attention_kernels()}) {
      all.insert(all.end(), some.begin(), some.end());
    }
    all.push_back(ref::reference_kernel());
    return all;
  }();
  return rows;
}

int compute_capability(std::string_view arch) {
  constexpr std::string_view kPrefix = "sm_";
  int number = 0;
  if (arch.starts_with(kPrefix))
    std::from_chars(arch.data() + kPrefix.size(), arch.data() + arch.size(), number);
  return number;
}

bool is_for(const Kernel& row, const Device& device) {
  if (row.arch == "cpu" || row.arch == "any") return device.kind == DeviceKind::kCpu;
  if (device.kind != DeviceKind::kCuda) return false;
  if (!row.arch.ends_with('+')) return row.arch == device.arch;
  return compute_capability(device.arch) >= compute_capability(row.arch);
}

double estimated_pairs(const AttentionProblem& p) {
  const double rows = static_cast<double>(p.packed ? p.total_q : p.batch * p.seqlen_q);
  double pairs = rows * static_cast<double>(p.heads_q) * static_cast<double>(p.seqlen_k);
  if (p.causal && p.seqlen_q > 1) pairs *= 0.5;
  return pairs;
}

}  // namespace twofour
