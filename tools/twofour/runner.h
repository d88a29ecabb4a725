// A problem ready to be timed, for bench and tune.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "cuda/memory.h"
#include "cuda/timer.h"
#include "cuda_call.h"
#include "twofour/attention.h"

namespace twofour::tool {

struct Times {
  double min = 0, median = 0, max = 0;
};

Times summarise(std::vector<double> seconds);

/// One problem ready to run; several may share inputs, not plans.
class Runner {
 public:
  /// `cuda` is the call's memory on a CUDA device, null on the CPU.
  static Result<Runner> make(const AttentionProblem& problem, const Device& device,
                             const std::string& kernel, const AttentionArgs& args, CudaCall* cuda);
  static Result<Runner> make(Plan plan, const Device& device, const AttentionArgs& args,
                             CudaCall* cuda);

  Status run(double* seconds);
  Result<AttentionStats> count();
  const Plan& plan() const { return plan_; }

 private:
  Runner(Plan plan, const AttentionArgs& args, CudaCall* cuda)
      : plan_(std::move(plan)), args_(args), cuda_(cuda) {}

  Status run_on_cuda(double* seconds);

  Plan plan_;
  AttentionArgs args_;
  CudaCall* cuda_;
  std::optional<cuda::Timer> timer_;
  cuda::Buffer cuda_workspace_;
  std::vector<std::byte> workspace_;
};

}  // namespace twofour::tool
