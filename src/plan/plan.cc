// Choosing a kernel: every row is asked, the cheapest that agrees runs.
#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>
#include <utility>

#include "core/environment.h"
#include "core/quote.h"
#include "cuda/device.h"
#include "ops/check.h"
#include "plan/registry.h"
#include "plan/tune.h"
#include "twofour/attention.h"

namespace twofour {

struct Plan::State {
  AttentionProblem problem;
  Device device;
  const Kernel* kernel = nullptr;
  std::vector<Candidate> candidates;
  std::size_t workspace = 0;  // what the caller brings
};

namespace {

// Vector loads of the widest kind stay within a cache line; malloc only promises 16 bytes.
constexpr std::size_t kWorkspaceAlign = 64;

/// Wider than any two positions are apart: same meaning, and sums with a position cannot overflow.
constexpr std::int64_t kWidestWindow = std::int64_t{1} << 33;

constexpr const char* kOnlyByName = "runs only when asked for by name";

AttentionProblem normalized(AttentionProblem problem) {
  problem.sparsity = resolved(problem.sparsity, problem.head_dim);
  problem.window.left = std::min(problem.window.left, kWidestWindow);
  problem.window.right = std::min(problem.window.right, kWidestWindow);
  return problem;
}

/// The row that was asked for by name, and what asked, for messages: the call or the environment.
struct Forced {
  std::string id;  // empty: none
  std::string origin;
};

Result<Forced> forced_kernel(const PlanOptions& options) {
  if (!options.kernel_id.empty()) return Forced{options.kernel_id, "kernel"};
  const auto variable = env_kernel();
  if (!variable.ok()) return variable.status();
  return Forced{variable->value_or(""), "TWOFOUR_KERNEL"};
}

/// Insertions, deletions and replacements that make one of the other.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

Status unknown_kernel(const Forced& forced, const Device& device) {
  constexpr std::size_t kShown = 3;
  constexpr std::size_t kLongestId = 100;  // a name longer than that is like none
  std::vector<std::pair<std::size_t, std::string>> close;
  const std::string_view start = std::string_view(forced.id).substr(0, kLongestId);
  for (const Kernel& row : kernels())
    close.emplace_back(edit_distance(start, row.id) + (is_for(row, device) ? 0 : 2 * kLongestId),
                       row.id);
  std::stable_sort(close.begin(), close.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  close.resize(std::min(close.size(), kShown));
  std::string known;
  for (const auto& [distance, id] : close) {
    known += (known.empty() ? "" : id == close.back().second ? " or " : ", ") + id;
  }
  return {Code::kNotFound, forced.origin + ": expected one of the ids that `twofour info` lists, " +
                               "such as " + known + ", got " + quoted(forced.id)};
}

/// A few ids by name, many by what they begin with and their number.
std::string ids_text(const std::vector<std::string>& ids) {
  constexpr std::size_t kFew = 2;
  std::string text;
  if (ids.size() <= kFew) {
    for (const std::string& id : ids) text += (text.empty() ? "" : ", ") + id;
    return text;
  }
  std::string_view common = ids.front();
  for (const std::string& id : ids) {
    const auto ends = std::mismatch(common.begin(), common.end(), id.begin(), id.end());
    common = common.substr(0, static_cast<std::size_t>(ends.first - common.begin()));
  }
  text = common.substr(0, common.rfind('.') + 1);
  return text + "*, " + std::to_string(ids.size()) + " rows";
}

/// Reasons in the order of the registry, those of the rows for this device first, each with the
/// kernels that gave it.
Status refused_by_all(const std::vector<Candidate>& candidates, const Device& device) {
  constexpr std::size_t kLongest = 450;
  std::vector<std::pair<std::string, std::vector<std::string>>> reasons;
  const auto rows = kernels();
  for (const bool own : {true, false}) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (is_for(rows[i], device) != own) continue;
      const Candidate& candidate = candidates[i];
      const std::string reason =
          candidate.why_not.empty() ? kOnlyByName : "refused, " + candidate.why_not;
      auto found = std::find_if(reasons.begin(), reasons.end(),
                                [&](const auto& entry) { return entry.first == reason; });
      if (found == reasons.end()) found = reasons.insert(found, {reason, {}});
      found->second.push_back(candidate.kernel_id);
    }
  }
  std::string text = "no kernel serves this problem";
  const char* separator = ": ";
  std::size_t left = reasons.size();
  for (const auto& [reason, ids] : reasons) {
    const std::string more = separator + reason + " (" + ids_text(ids) + ")";
    if (text.size() + more.size() > kLongest) break;
    text += more;
    separator = "; ";
    --left;
  }
  if (left > 0) {
    text += "; and " + std::to_string(left) + (left == 1 ? " more reason" : " more reasons") +
            " of other rows";
  }
  return {Code::kUnsupported, text};
}

std::vector<Candidate> ask_all(const AttentionProblem& problem, const Device& device) {
  std::vector<Candidate> candidates;
  for (const Kernel& row : kernels()) {
    Candidate candidate;
    candidate.kernel_id = row.id;
    candidate.why_not = row.why_not(row, problem, device);
    if (candidate.why_not.empty()) {
      candidate.seconds = row.cost(row, problem, device);
      candidate.workspace = row.workspace(row, problem, device);
      if (row.key_parts != nullptr) candidate.key_parts = row.key_parts(problem);
    }
    candidates.push_back(std::move(candidate));
  }
  return candidates;
}

/// Index of the row to run, by name, or as fastest() says; the earlier of equals.
Result<std::size_t> choose(const std::vector<Candidate>& candidates, const Forced& forced,
                           const Device& device) {
  const auto rows = kernels();
  std::vector<std::size_t> able;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Candidate& candidate = candidates[i];
    if (!forced.id.empty()) {
      if (candidate.kernel_id != forced.id) continue;
      if (candidate.why_not.empty()) return i;
      return {Code::kUnsupported,
              forced.origin + " " + forced.id + " cannot serve this problem: " + candidate.why_not};
    }
    if (candidate.why_not.empty() && !rows[i].forced_only) able.push_back(i);
  }
  if (const auto best = fastest(candidates, able)) return *best;
  return forced.id.empty() ? refused_by_all(candidates, device) : unknown_kernel(forced, device);
}

std::string formatted(const char* format, double value) {
  std::array<char, 48> buffer;
  std::snprintf(buffer.data(), buffer.size(), format, value);
  return buffer.data();
}

std::string seconds_text(double seconds) {
  if (seconds >= 1) return formatted("%.3g s", seconds);
  if (seconds >= 1e-3) return formatted("%.3g ms", seconds * 1e3);
  return formatted("%.3g us", seconds * 1e6);
}

std::string bytes_text(std::size_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  const double kib = static_cast<double>(bytes) / 1024;
  return kib < 1024 ? formatted("%.1f KiB", kib) : formatted("%.1f MiB", kib / 1024);
}

std::string problem_text(const AttentionProblem& p) {
  std::string text = "attention " + std::string(to_string(p.dtype));
  text += " B=" + std::to_string(p.batch) + " M=" + std::to_string(p.seqlen_q) +
          " N=" + std::to_string(p.seqlen_k) + " Hq=" + std::to_string(p.heads_q) +
          " Hkv=" + std::to_string(p.heads_kv) + " D=" + std::to_string(p.head_dim) +
          " Dv=" + std::to_string(p.head_dim_v);
  if (p.packed) {
    text += " packed Tq=" + std::to_string(p.total_q) + " Tk=" + std::to_string(p.total_k);
  }
  if (p.causal) text += p.align == Align::kTopLeft ? " causal(top-left)" : " causal";
  if (!p.window.open()) {
    text += " window=" + std::to_string(p.window.left) + "," + std::to_string(p.window.right);
  }
  if (p.has_mask) text += " mask";
  if (p.key_splits > 0) text += " splits=" + std::to_string(p.key_splits);
  return text + " " + to_string(p.sparsity);
}

/// "AMD EPYC (avx3, 2 threads)", "NVIDIA H200 (cuda:0, sm_90, 132 multiprocessors)".
std::string device_text(const Device& device) {
  if (device.kind == DeviceKind::kCuda) {
    return device.name + " (cuda:" + std::to_string(device.index) + ", " + device.arch + ", " +
           std::to_string(device.multiprocessors) + " multiprocessors)";
  }
  return device.name + " (" + device.arch + ", " + std::to_string(device.threads) +
         (device.threads == 1 ? " thread" : " threads") + ")";
}

constexpr std::size_t kColumns = 5;
using Line = std::array<std::string, kColumns>;

/// Lines of cells, each column as wide as its widest cell, numbers (those within) to the right.
std::string table(const std::vector<Line>& lines) {
  std::array<std::size_t, kColumns> width{};
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) width[i] = std::max(width[i], line[i].size());
  }
  std::string text;
  for (const auto& line : lines) {
    std::string row;
    for (std::size_t i = 0; i < line.size(); ++i) {
      const std::string padding(width[i] - line[i].size(), ' ');
      const bool number = i > 0 && i + 1 < kColumns;
      row += (i == 0 ? "" : "  ") + (number ? padding + line[i] : line[i] + padding);
    }
    text += row.substr(0, row.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace

Result<Plan> plan(const AttentionProblem& problem, const Device& device,
                  const PlanOptions& options) {
  Status status = validate(problem);
  if (!status.ok()) return status;
  if (device.threads < 1) {
    return {Code::kInvalidArgument,
            "device: expected at least 1 thread, got " + std::to_string(device.threads)};
  }
  if (device.kind == DeviceKind::kCuda && problem.has_prepared_k &&
      problem.sparsity.qk == QKProduct::kInt8) {
    return {Code::kUnsupported,
            "prepared_k: expected none on CUDA, where every run prepares its own, got one"};
  }
  const auto forced = forced_kernel(options);
  if (!forced.ok()) return forced.status();

  auto state = std::make_shared<Plan::State>();
  state->problem = normalized(problem);
  state->device = device;
  state->candidates = ask_all(state->problem, device);
  look_up_tuned(state->candidates, state->problem, device, tuned_of_process().times);
  const auto chosen = choose(state->candidates, *forced, device);
  if (!chosen.ok()) return chosen.status();

  Candidate& candidate = state->candidates[*chosen];
  candidate.chosen = true;
  state->kernel = &kernels()[*chosen];
  state->workspace = candidate.workspace == 0 ? 0 : candidate.workspace + kWorkspaceAlign - 1;
  Plan plan;
  plan.state_ = std::move(state);
  return plan;
}

const std::string& Plan::kernel_id() const {
  static const std::string none;
  return state_ ? state_->kernel->id : none;
}

const AttentionProblem& Plan::problem() const {
  static const AttentionProblem none;
  return state_ ? state_->problem : none;
}

const std::vector<Candidate>& Plan::candidates() const {
  static const std::vector<Candidate> none;
  return state_ ? state_->candidates : none;
}

std::size_t Plan::workspace_bytes() const { return state_ ? state_->workspace : 0; }

std::string Plan::explain() const {
  if (!state_) return "";
  std::vector<Line> lines = {{"  kernel", "predicted", "measured", "workspace", ""}};
  const auto rows = kernels();
  for (std::size_t i = 0; i < state_->candidates.size(); ++i) {
    const Candidate& candidate = state_->candidates[i];
    const std::string id = (candidate.chosen ? "* " : "  ") + candidate.kernel_id;
    if (!candidate.why_not.empty()) {
      lines.push_back({id, "-", "-", "-", "refused: " + candidate.why_not});
    } else {
      const bool only_by_name = rows[i].forced_only && !candidate.chosen;
      std::string remark = candidate.chosen ? "chosen" : only_by_name ? kOnlyByName : "";
      if (candidate.key_parts > 1)
        remark += (remark.empty() ? "" : ", ") + std::string("splits keys in ") +
                  std::to_string(candidate.key_parts);
      lines.push_back({id, seconds_text(candidate.seconds),
                       candidate.measured > 0 ? seconds_text(candidate.measured) : "-",
                       bytes_text(candidate.workspace), remark});
    }
  }
  const Status& tuned = tuned_of_process().status;
  return problem_text(state_->problem) + "\non " + device_text(state_->device) + "\n" +
         (tuned.ok() ? "" : "measured times are ignored: " + tuned.message() + "\n") + table(lines);
}

Status Plan::run(const AttentionArgs& args, void* workspace, std::size_t workspace_bytes,
                 Stream stream) const {
  if (!state_)
    return {Code::kInvalidArgument, "plan: expected one made by plan(), got an empty one"};
  Status status = check_args(state_->problem, args, state_->device);
  if (!status.ok()) return status;
  if (workspace_bytes < state_->workspace) {
    return {Code::kInvalidArgument, "workspace: expected at least " +
                                        std::to_string(state_->workspace) + " bytes, got " +
                                        std::to_string(workspace_bytes)};
  }
  if (state_->workspace > 0 && workspace == nullptr) {
    return {Code::kInvalidArgument, "workspace: expected " + std::to_string(state_->workspace) +
                                        " bytes of memory, got a null pointer"};
  }
  status = check_workspace(state_->problem, args, workspace, state_->workspace);
  if (!status.ok()) return status;

  // Rows add what they decide to decisions that start out empty.
  if (state_->problem.trace) {
    std::fill(args.decisions->kept.begin(), args.decisions->kept.end(), 0);
    std::fill(args.decisions->unit.begin(), args.decisions->unit.end(), UnitDecision::kPlain);
  }
  const auto address = reinterpret_cast<std::uintptr_t>(workspace);
  const std::uintptr_t aligned = (address + kWorkspaceAlign - 1) & ~(kWorkspaceAlign - 1);
  void* scratch = state_->workspace == 0 ? nullptr : reinterpret_cast<void*>(aligned);
  const Launch launch{state_->problem, args, state_->device, scratch, stream};
  if (state_->device.kind == DeviceKind::kCuda) {
    const cuda::CurrentDevice current(state_->device.index);
    if (!current.status().ok()) return current.status();
    return state_->kernel->launch(*state_->kernel, launch);
  }
  return state_->kernel->launch(*state_->kernel, launch);
}

}  // namespace twofour
