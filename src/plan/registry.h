// The kernel registry: an ordered list of rows that plan, verify, bench and the tests iterate.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "twofour/attention.h"

namespace twofour {

/// What a row computes, independent of how fast: the template argument, the log line.
struct KernelConfig {
  QKProduct qk = QKProduct::kExact;
  ScorePattern score = ScorePattern::kNone;
  bool trace = false;  // writes Decisions; never timed
};

/// Arguments of a launch: checked, with the sparsity resolved. On CUDA the pointers of `args`, the
/// stats included, are memory of the device, which is the current one; `decisions` are the host's.
struct Launch {
  const AttentionProblem& problem;
  const AttentionArgs& args;
  const Device& device;
  void* workspace;  // at least Kernel::workspace bytes, 64-byte aligned
  Stream stream;
};

struct Kernel {
  std::string id;    // "attention.cpu.nm24.pair"
  std::string arch;  // "cpu", "sm_90", "sm_80+" (and newer), "any"
  KernelConfig config;
  bool forced_only = false;  // never chosen by cost: the reference and debugging rows

  /// Empty when the row can serve the problem, else the reason, one clause.
  std::string (*why_not)(const Kernel&, const AttentionProblem&, const Device&);
  /// Predicted seconds.
  double (*cost)(const Kernel&, const AttentionProblem&, const Device&);
  std::size_t (*workspace)(const Kernel&, const AttentionProblem&, const Device&);
  Status (*launch)(const Kernel&, const Launch&);
  /// Parts that it works on the keys of a row in; null: it never splits them.
  int (*key_parts)(const AttentionProblem&) = nullptr;
  int number = 0;  // among the rows of its family, whose table of configurations it indexes
};

/// All rows in order of preference; the reference is the last.
std::span<const Kernel> kernels();

/// Whether the row is for this device, whatever the problem.
bool is_for(const Kernel& row, const Device& device);

/// 86 of "sm_86"; 0 of what is no CUDA architecture.
int compute_capability(std::string_view arch);

/// Pairs of a query row and a key over all heads, for costs: of a packed call an upper bound.
double estimated_pairs(const AttentionProblem& problem);

/// Checks views, strides, cu_seqlens, mask and overlap against a problem that validates. Memory of
/// a CUDA device is judged by its addresses and strides; its contents are not read.
Status check_args(const AttentionProblem& problem, const AttentionArgs& args,
                  const Device& device = {});

}  // namespace twofour
