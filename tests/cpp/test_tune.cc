// Measured times: the file that keeps them, and which kernel plans then choose.
#include "plan/tune.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "core/environment.h"

namespace twofour {
namespace {

std::string fresh_folder() {
  std::string folder = testing::TempDir() + "tuneXXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder;
}

TunedTime time_of(const std::string& kernel, double median, const std::string& problem = "p") {
  return {"0.1.0", "EPYC (avx2, 2 threads)", problem, kernel, median * 0.9, median, median * 1.3};
}

Candidate candidate(const std::string& id, double seconds, double measured = 0) {
  Candidate c;
  c.kernel_id = id;
  c.seconds = seconds;
  c.measured = measured;
  return c;
}

TEST(Tune, TimesComeBackToTheBitFromAFileInAFolderThatWasNotThere) {
  const std::string path = fresh_folder() + "/some/where/tune.tsv";
  EXPECT_TRUE(load_tuned(path)->empty());
  const std::vector<TunedTime> times = {time_of("a", 1.0 / 3), time_of("b", 1e-7 / 7)};
  ASSERT_TRUE(save_tuned(path, times).ok());
  const auto read = load_tuned(path);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, times);
  ASSERT_TRUE(save_tuned(path, {}).ok());
  EXPECT_TRUE(load_tuned(path)->empty());
}

TEST(Tune, OneProblemIsReplacedAndTheOthersStay) {
  TunedTime other_version = time_of("a", 9), other_device = time_of("a", 9);
  other_version.version = "0.0.9";
  other_device.device = "another";
  std::vector<TunedTime> times = {time_of("a", 1), time_of("a", 2, "q"), time_of("b", 3),
                                  other_version, other_device};
  replace_tuned(times, std::vector{time_of("c", 4)});
  EXPECT_EQ(times,
            (std::vector{time_of("a", 2, "q"), other_version, other_device, time_of("c", 4)}));
  replace_tuned(times, {});
  EXPECT_EQ(times.size(), 4u);
}

TEST(Tune, ADamagedFileIsRefusedWithItsLine) {
  const std::string good = tuned_text(std::vector{time_of("a", 1), time_of("b", 2)});
  ASSERT_TRUE(parse_tuned(good, "f").ok());
  for (std::size_t length = 0; length < good.size(); ++length) {
    const bool whole_lines = length > 0 && good[length - 1] == '\n';
    EXPECT_EQ(parse_tuned(good.substr(0, length), "f").ok(), whole_lines) << length;
  }
  const std::string head = "twofour-tune 1\n";
  for (const char* line : {"v\td\tp\tk\t1\t2", "v\td\tp\tk\t1\t2\t3\t4", "v\td\tp\tk\t1\tnan\t3",
                           "v\td\tp\tk\t0\t2\t3", "v\td\tp\tk\t3\t2\t4", "v\td\tp\tk\t1\t2x\t3",
                           "v\td\tp\tk\t1\t2\tinf", ""}) {
    const auto parsed = parse_tuned(head + line + "\n", "f");
    EXPECT_EQ(parsed.status().code(), Code::kCorrupt) << line;
    EXPECT_EQ(parsed.status().message().find("f:2: expected version, device, "), 0u)
        << parsed.status().message();
  }
  EXPECT_EQ(parse_tuned("twofour-tune 2\n", "f").status().message(),
            "f:1: expected \"twofour-tune 1\", got \"twofour-tune 2\"");
}

TEST(Tune, TimesAreOfOneVersionDeviceAndProblem) {
  AttentionProblem problem;
  problem.heads_q = 2;
  problem.seqlen_q = problem.seqlen_k = 1500;
  Device device;
  device.name = "EPYC";
  device.arch = "avx2";
  device.threads = 2;
  const TunedTime good{tuned_version(), tuned_device(device), tuned_problem(problem), "a", 1, 2, 3};
  const auto measured = [&](TunedTime time) {
    std::vector<Candidate> candidates = {candidate("a", 5), candidate("b", 6)};
    look_up_tuned(candidates, problem, device, std::vector{time});
    EXPECT_EQ(candidates[1].measured, 0);
    return candidates[0].measured;
  };
  EXPECT_EQ(measured(good), 2);
  for (std::string TunedTime::*field :
       {&TunedTime::version, &TunedTime::device, &TunedTime::problem, &TunedTime::kernel}) {
    TunedTime other = good;
    other.*field += "x";
    EXPECT_EQ(measured(other), 0);
  }
  std::vector<Candidate> refused = {candidate("a", 0)};
  refused[0].why_not = "cannot";
  look_up_tuned(refused, problem, device, std::vector{good});
  EXPECT_EQ(refused[0].measured, 0);
}

TEST(Tune, WhatChangesTheWorkChangesTheKey) {
  AttentionProblem base;
  base.heads_q = 4;
  base.seqlen_q = base.seqlen_k = 1024;
  const std::vector<std::function<void(AttentionProblem&)>> changes = {
      [](auto& p) { p.dtype = DType::kF16; },   [](auto& p) { p.batch = 2; },
      [](auto& p) { p.heads_q = 8; },           [](auto& p) { p.heads_kv = 2; },
      [](auto& p) { p.head_dim = 128; },        [](auto& p) { p.head_dim_v = 128; },
      [](auto& p) { p.seqlen_q = 2048; },       [](auto& p) { p.seqlen_k = 512; },
      [](auto& p) { p.packed = true; },         [](auto& p) { p.causal = true; },
      [](auto& p) { p.window.left = 64; },      [](auto& p) { p.window.right = 64; },
      [](auto& p) { p.has_mask = true; },       [](auto& p) { p.has_transform = true; },
      [](auto& p) { p.has_prepared_k = true; }, [](auto& p) { p.trace = true; },
      [](auto& p) { p.key_splits = 2; },        [](auto& p) { p.sparsity = preset(Mode::kInt8); },
  };
  std::vector<std::string> keys = {tuned_problem(base)};
  for (const auto& change : changes) {
    AttentionProblem p = base;
    change(p);
    const std::string key = tuned_problem(p);
    EXPECT_EQ(std::count(keys.begin(), keys.end(), key), 0) << key;
    keys.push_back(key);
  }
  AttentionProblem close = base;  // between the same powers of two
  close.seqlen_q = 2047;
  EXPECT_EQ(tuned_problem(close), keys[0]);
}

TEST(Tune, TheFastestMeasuredRunsAndNoModelledTimeCompetesWithIt) {
  const std::vector<std::size_t> all = {0, 1, 2};
  using Candidates = std::vector<Candidate>;
  EXPECT_EQ(fastest({}, {}), std::nullopt);
  // By the model alone; the earlier of equals.
  EXPECT_EQ(fastest(Candidates{candidate("a", 3), candidate("b", 2), candidate("c", 2)}, all), 1u);
  // Measured against measured: the model's best is slower than its second.
  EXPECT_EQ(fastest(Candidates{candidate("a", 1, 9), candidate("b", 2, 8), candidate("c", 3)}, all),
            1u);
  // The third, modelled at less than anything was measured, was not measured: it does not compete.
  EXPECT_EQ(
      fastest(Candidates{candidate("a", 1, 90), candidate("b", 2, 80), candidate("c", 3)}, all),
      1u);
  // The cheapest by the model was not measured: measured times of others say nothing about it.
  EXPECT_EQ(
      fastest(Candidates{candidate("a", 2, .1), candidate("b", 1), candidate("c", 3, .2)}, all),
      1u);
  // Only those that may be chosen.
  EXPECT_EQ(fastest(Candidates{candidate("a", 1, 9), candidate("b", 2, 8), candidate("c", 3, 1)},
                    std::vector<std::size_t>{0, 1}),
            1u);
}

TEST(Tune, TheEnvironmentNamesTheFile) {
  setenv("XDG_CACHE_HOME", "/x", 1);
  setenv("HOME", "/h", 1);
  unsetenv("TWOFOUR_TUNE_FILE");
  EXPECT_EQ(**env_tune_file(), "/x/twofour/tune.tsv");
  setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_EQ(**env_tune_file(), "/h/.cache/twofour/tune.tsv");
  setenv("TWOFOUR_TUNE_FILE", "/t/u", 1);
  EXPECT_EQ(**env_tune_file(), "/t/u");
  setenv("TWOFOUR_TUNE_FILE", "off", 1);
  EXPECT_FALSE(env_tune_file()->has_value());
}

}  // namespace
}  // namespace twofour
