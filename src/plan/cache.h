// Plans of recent problems, for callers that describe a problem anew at every call.
#pragma once

#include <cstddef>
#include <list>
#include <mutex>
#include <string>

#include "twofour/attention.h"

namespace twofour {

/// Finds or makes plans; thread-safe. A plan is kept by everything that decides it: the problem,
/// the device with its instruction set and threads, and the kernel that the call or the environment
/// names. Errors are not kept.
class PlanCache {
 public:
  /// At most `capacity` plans; the one whose last use is longest ago goes first.
  explicit PlanCache(std::size_t capacity) : capacity_(capacity) {}

  /// As the functions of these names. Plans that were found share their state.
  Result<Plan> plan(const AttentionProblem& problem, const Device& device,
                    const PlanOptions& options = {});
  Result<Plan> plan_auto(const AttentionProblem& problem, const Device& device,
                         const PlanOptions& options = {});

  std::size_t size() const;

 private:
  struct Entry {
    AttentionProblem problem;
    Device device;
    std::string kernel_id;  // empty: the cheapest
    bool automatic;         // by plan_auto
    Plan plan;
  };

  Result<Plan> find_or_make(const AttentionProblem& problem, const Device& device,
                            const PlanOptions& options, bool automatic);

  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the last used first
};

}  // namespace twofour
