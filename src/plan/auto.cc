// The mode that is chosen for a caller who names none.
#include "twofour/attention.h"

namespace twofour {

Result<Plan> plan_auto(AttentionProblem problem, const Device& device, const PlanOptions& options) {
  if (problem.seqlen_k >= kAutoMinKeys && problem.seqlen_q >= kAutoMinRows) {
    for (const Mode mode : {Mode::kInt8, Mode::kScore}) {
      problem.sparsity = preset(mode);
      auto candidate = plan(problem, device, options);
      if (candidate.ok()) return candidate;
    }
  }
  problem.sparsity = preset(Mode::kDense);
  return plan(problem, device, options);
}

}  // namespace twofour
