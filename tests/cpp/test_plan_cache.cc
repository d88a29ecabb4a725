// Plans that are found again: the same decision, shared, for as long as nothing that decides moves.
#include "plan/cache.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

namespace twofour {
namespace {

AttentionProblem small_problem(std::int64_t keys = 300) {
  AttentionProblem p;
  p.heads_q = 2;
  p.seqlen_q = 96;
  p.seqlen_k = keys;
  return p;
}

/// Whether both came from one planning.
bool shared(const Plan& a, const Plan& b) { return &a.candidates() == &b.candidates(); }

TEST(PlanCache, FindsWhatPlanWouldMake) {
  PlanCache cache(4);
  const Device device = *cpu_device();
  const auto first = cache.plan(small_problem(), device);
  const auto again = cache.plan(small_problem(), device);
  ASSERT_TRUE(first.ok() && again.ok());
  EXPECT_TRUE(shared(*first, *again));
  EXPECT_EQ(again->explain(), plan(small_problem(), device)->explain());
  EXPECT_EQ(cache.size(), 1u);
}

TEST(PlanCache, EverythingThatDecidesTellsPlansApart) {
  // Each changes one thing of a problem or a device; the reference takes them all.
  const PlanOptions reference{"attention.ref"};
  const std::vector<std::function<void(AttentionProblem&, Device&)>> changes = {
      [](auto& p, auto&) { p.dtype = DType::kF16; },
      [](auto& p, auto&) { p.batch = 2; },
      [](auto& p, auto&) { p.heads_q = 4; },
      [](auto& p, auto&) { p.heads_kv = 2; },
      [](auto& p, auto&) { p.head_dim = 32; },
      [](auto& p, auto&) { p.head_dim_v = 32; },
      [](auto& p, auto&) { p.seqlen_q = 97; },
      [](auto& p, auto&) { p.seqlen_k = 301; },
      [](auto& p, auto&) { p.packed = true; },
      [](auto& p, auto&) { p.total_q = 5; },
      [](auto& p, auto&) { p.total_k = 5; },
      [](auto& p, auto&) { p.causal = true; },
      [](auto& p, auto&) { p.align = Align::kTopLeft; },
      [](auto& p, auto&) { p.window.left = 3; },
      [](auto& p, auto&) { p.window.right = 3; },
      [](auto& p, auto&) { p.has_mask = true; },
      [](auto& p, auto&) { p.has_transform = true; },
      [](auto& p, auto&) { p.has_prepared_k = true; },
      [](auto& p, auto&) { p.trace = true; },
      [](auto& p, auto&) { p.scale = 0.5f; },
      [](auto& p, auto&) { p.key_splits = 2; },
      [](auto& p, auto&) { p.sparsity = preset(Mode::kScore); },
      [](auto& p, auto&) { p.sparsity.sink_blocks = 1; },
      [](auto&, auto& d) { d.name = "another"; },
      [](auto&, auto& d) { d.arch = "another"; },
      [](auto&, auto& d) { d.index = 1; },
      [](auto&, auto& d) { d.threads += 1; },
      [](auto&, auto& d) { d.peak_gflops += 1; },
      [](auto&, auto& d) { d.multiprocessors = 1; },
      [](auto&, auto& d) { d.shared_memory = 1; },
  };
  PlanCache cache(changes.size() + 1);
  const Device device = *cpu_device();
  ASSERT_TRUE(cache.plan(small_problem(), device, reference).ok());
  for (std::size_t i = 0; i < changes.size(); ++i) {
    AttentionProblem problem = small_problem();
    Device other = device;
    changes[i](problem, other);
    const auto found = cache.plan(problem, other, reference);
    ASSERT_TRUE(found.ok()) << i << ": " << found.status().message();
    EXPECT_EQ(found->explain(), plan(problem, other, reference)->explain()) << i;
    EXPECT_EQ(cache.size(), i + 2) << i;
  }
}

TEST(PlanCache, FollowsTheKernelThatIsNamed) {
  PlanCache cache(4);
  const Device device = *cpu_device();
  const auto chosen = cache.plan(small_problem(), device);
  ASSERT_NE(chosen->kernel_id(), "attention.ref");
  setenv("TWOFOUR_KERNEL", "attention.ref", 1);
  const auto forced = cache.plan(small_problem(), device);
  EXPECT_EQ(forced->kernel_id(), "attention.ref");
  // The call asks for the same by name, so that it is the same plan.
  EXPECT_TRUE(shared(*forced, *cache.plan(small_problem(), device, {"attention.ref"})));
  unsetenv("TWOFOUR_KERNEL");
  EXPECT_TRUE(shared(*chosen, *cache.plan(small_problem(), device)));
}

TEST(PlanCache, FollowsTheThreadsOfTheDevice) {
  PlanCache cache(4);
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const std::string one = cache.plan(small_problem(), *cpu_device())->explain();
  omp_set_num_threads(3);
  const std::string three = cache.plan(small_problem(), *cpu_device())->explain();
  omp_set_num_threads(threads);
  EXPECT_NE(one.find(", 1 thread)"), std::string::npos) << one;
  EXPECT_NE(three.find(", 3 threads)"), std::string::npos) << three;
}

TEST(PlanCache, AutoIsAPlanOfItsOwn) {
  PlanCache cache(4);
  const Device device = *cpu_device();
  const auto automatic = cache.plan_auto(small_problem(1024), device);
  EXPECT_EQ(to_string(automatic->problem().sparsity), "int8/pair128/s1/l0");
  EXPECT_TRUE(cache.plan(small_problem(1024), device)->problem().sparsity.is_dense());
  EXPECT_TRUE(shared(*automatic, *cache.plan_auto(small_problem(1024), device)));
}

TEST(PlanCache, ErrorsAreThoseOfPlanAndAreNotKept) {
  PlanCache cache(4);
  const Device device = *cpu_device();
  AttentionProblem odd = small_problem();
  odd.heads_kv = 4;
  const auto same = [&](const AttentionProblem& problem, const PlanOptions& options) {
    const Status found = cache.plan(problem, device, options).status();
    const Status made = plan(problem, device, options).status();
    EXPECT_FALSE(found.ok());
    EXPECT_EQ(found.code(), made.code());
    EXPECT_EQ(found.message(), made.message());
  };
  for (const char* variable : {"", "attention.ref", "attention.fast", "no such name"}) {
    setenv("TWOFOUR_KERNEL", variable, 1);
    same(odd, {});
    same(small_problem(), {"attention.fast"});
    same(small_problem(), {"attention.cpu.int8.none"});
    EXPECT_EQ(cache.size(), 0u);
  }
  for (const char* variable : {"attention.fast", "no such name"}) {
    setenv("TWOFOUR_KERNEL", variable, 1);
    same(small_problem(), {});
    EXPECT_EQ(cache.plan_auto(small_problem(), device).status().message(),
              plan_auto(small_problem(), device).status().message());
  }
  // A plan that was made before does not outlive a variable that has become wrong.
  unsetenv("TWOFOUR_KERNEL");
  EXPECT_TRUE(cache.plan(small_problem(), device).ok());
  setenv("TWOFOUR_KERNEL", "no such name", 1);
  same(small_problem(), {});
  unsetenv("TWOFOUR_KERNEL");
}

TEST(PlanCache, TheLeastRecentlyUsedGoesFirst) {
  PlanCache cache(2);
  const Device device = *cpu_device();
  const auto one = cache.plan(small_problem(1), device);
  const auto two = cache.plan(small_problem(2), device);
  EXPECT_TRUE(shared(*one, *cache.plan(small_problem(1), device)));
  ASSERT_TRUE(cache.plan(small_problem(3), device).ok());
  EXPECT_EQ(cache.size(), 2u);
  EXPECT_TRUE(shared(*one, *cache.plan(small_problem(1), device)));
  EXPECT_FALSE(shared(*two, *cache.plan(small_problem(2), device)));
  EXPECT_EQ(two->problem().seqlen_k, 2);  // whoever holds a plan keeps it
}

TEST(PlanCache, ThreadsMayAskAtTheSameTime) {
  PlanCache cache(4);
  const Device device = *cpu_device();
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        const std::int64_t keys = 1 + (i * (t + 1)) % 7;  // more than fit
        wrong[t] += cache.plan(small_problem(keys), device)->problem().seqlen_k != keys;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
  EXPECT_EQ(cache.size(), 4u);
}

}  // namespace
}  // namespace twofour
