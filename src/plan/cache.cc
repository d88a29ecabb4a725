#include "plan/cache.h"

#include <algorithm>

#include "core/environment.h"

namespace twofour {

Result<Plan> PlanCache::plan(const AttentionProblem& problem, const Device& device,
                             const PlanOptions& options) {
  return find_or_make(problem, device, options, false);
}

Result<Plan> PlanCache::plan_auto(const AttentionProblem& problem, const Device& device,
                                  const PlanOptions& options) {
  return find_or_make(problem, device, options, true);
}

std::size_t PlanCache::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

Result<Plan> PlanCache::find_or_make(const AttentionProblem& problem, const Device& device,
                                     const PlanOptions& options, bool automatic) {
  // Planned by the options as given, since errors name where the kernel id came from.
  const auto make = [&] {
    return automatic ? twofour::plan_auto(problem, device, options)
                     : twofour::plan(problem, device, options);
  };
  std::string kernel_id = options.kernel_id;
  if (kernel_id.empty()) {
    const auto variable = env_kernel();
    if (!variable.ok()) return make();  // which refuses, after anything wrong with the problem
    kernel_id = variable->value_or("");
  }
  const auto wanted = [&](const Entry& entry) {
    return entry.problem == problem && entry.automatic == automatic &&
           entry.kernel_id == kernel_id && entry.device == device;
  };
  const auto find = [&] {
    const auto found = std::find_if(entries_.begin(), entries_.end(), wanted);
    if (found != entries_.end()) entries_.splice(entries_.begin(), entries_, found);
    return found != entries_.end();
  };
  {
    const std::lock_guard lock(mutex_);
    if (find()) return entries_.front().plan;
  }
  auto made = make();  // with the lock free
  if (!made.ok()) return made;
  const std::lock_guard lock(mutex_);
  if (find()) return entries_.front().plan;  // another thread was faster
  entries_.push_front({problem, device, std::move(kernel_id), automatic, *made});
  if (entries_.size() > capacity_) entries_.pop_back();
  return made;
}

}  // namespace twofour
