#include "plan/registry.h"

#include <vector>

#include "cpu/attention.h"
#include "ref/attention.h"

namespace twofour {

std::span<const Kernel> kernels() {
  static const std::vector<Kernel> rows = [] {
    const std::span<const Kernel> cpu = cpu::attention_kernels();
    std::vector<Kernel> all(cpu.begin(), cpu.end());
    all.push_back(ref::reference_kernel());
    return all;
  }();
  return rows;
}

}  // namespace twofour
