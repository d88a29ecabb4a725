#include "runner.h"

#include <algorithm>
#include <chrono>

namespace twofour::tool {

Times summarise(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return {seconds.front(), seconds[seconds.size() / 2], seconds.back()};
}

Result<Runner> Runner::make(const AttentionProblem& problem, const Device& device,
                            const std::string& kernel, const AttentionArgs& args, CudaCall* cuda) {
  PlanOptions options;
  options.kernel_id = kernel;
  Result<Plan> plan = twofour::plan(problem, device, options);
  if (!plan.ok()) return plan.status();
  return make(*std::move(plan), device, args, cuda);
}

Result<Runner> Runner::make(Plan plan, const Device& device, const AttentionArgs& args,
                            CudaCall* cuda) {
  Runner out(std::move(plan), args, cuda);
  if (cuda == nullptr) {
    out.workspace_.resize(out.plan_.workspace_bytes());
    return out;
  }
  Result<cuda::Timer> timer = cuda::Timer::make(device.index);
  if (!timer.ok()) return timer.status();
  out.timer_.emplace(*std::move(timer));
  Result<cuda::Buffer> workspace =
      cuda::Buffer::allocate(device.index, out.plan_.workspace_bytes());
  if (!workspace.ok()) return workspace.status();
  out.cuda_workspace_ = *std::move(workspace);
  return out;
}

Status Runner::run(double* seconds) {
  if (cuda_ != nullptr) return run_on_cuda(seconds);
  const auto start = std::chrono::steady_clock::now();
  Status status = plan_.run(args_, workspace_.data(), workspace_.size());
  *seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return status;
}

Result<AttentionStats> Runner::count() {
  AttentionStats stats;
  AttentionArgs args = args_;
  args.stats = &stats;
  Status status;
  if (cuda_ == nullptr) {
    status = plan_.run(args, workspace_.data(), workspace_.size());
  } else {
    std::string outside;
    status = cuda_->run(plan_, args, &outside);
    if (status.ok() && !outside.empty()) status = {Code::kInternal, outside};
  }
  if (!status.ok()) return status;
  return stats;
}

Status Runner::run_on_cuda(double* seconds) {
  AttentionArgs args = cuda_->args();
  args.stats = nullptr;
  Status status = timer_->start();
  if (status.ok()) status = plan_.run(args, cuda_workspace_.data(), cuda_workspace_.size());
  if (!status.ok()) return status;
  const Result<double> elapsed = timer_->stop();
  if (elapsed.ok()) *seconds = *elapsed;
  return elapsed.status();
}

}  // namespace twofour::tool
