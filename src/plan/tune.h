// Measured times of kernels: kept in one small text file, and used by plans instead of the model.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "twofour/attention.h"

namespace twofour {

/// Seconds of one kernel, measured beside the other candidates of its problem.
struct TunedTime {
  std::string version;  // of the library
  std::string device;   // tuned_device
  std::string problem;  // tuned_problem
  std::string kernel;
  double min = 0, median = 0, max = 0;
  friend bool operator==(const TunedTime&, const TunedTime&) = default;
};

std::string tuned_version();

/// Name and instruction set; on the CPU also the threads, on CUDA the multiprocessors.
std::string tuned_device(const Device& device);

/// What times are kept by: type, head dimensions, heads and lengths (batch times heads and both
/// lengths by the power of two that is not above them), masks, layout and sparsity.
std::string tuned_problem(const AttentionProblem& problem);

/// Text of a file and back: a line "twofour-tune 1", then one time a line, fields split by tabs.
std::string tuned_text(std::span<const TunedTime> times);
Result<std::vector<TunedTime>> parse_tuned(std::string_view text, const std::string& name);

/// The times of a file; none when there is no such file. Errors: kIo, kCorrupt.
Result<std::vector<TunedTime>> load_tuned(const std::string& path);

/// Replaces what `times` holds of the same version, device and problem by `fresh`, which are of
/// one.
void replace_tuned(std::vector<TunedTime>& times, std::span<const TunedTime> fresh);

/// Writes the file whole or not at all, making its folder. Errors: kIo.
Status save_tuned(const std::string& path, std::span<const TunedTime> times);

/// What plans of this process go by: the file that the environment names, read once, at the first
/// plan. A file that cannot be read counts as empty; why stands in `status`.
struct TunedTimes {
  std::vector<TunedTime> times;
  Status status;
};
const TunedTimes& tuned_of_process();

/// Sets `measured` of every candidate that has a time of this version for this device and problem.
void look_up_tuned(std::vector<Candidate>& candidates, const AttentionProblem& problem,
                   const Device& device, std::span<const TunedTime> times);

/// Which of the candidates numbered in `able`, in order of preference, to run; nothing of none. By
/// the model, the cheapest. When that one has a measured time, the fastest of those that have:
/// measured times are compared with measured times alone.
std::optional<std::size_t> fastest(const std::vector<Candidate>& candidates,
                                   std::span<const std::size_t> able);

}  // namespace twofour
