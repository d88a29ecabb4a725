#include "plan/tune.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "core/environment.h"
#include "core/quote.h"
#include "io/file.h"
#include "twofour/twofour.h"

namespace twofour {
namespace {

constexpr std::string_view kHeader = "twofour-tune 1";
constexpr std::uint64_t kLongestFile = std::uint64_t{4} << 20;
constexpr std::size_t kFields = 7;

/// The power of two that is not above it.
std::string bucket(std::int64_t n) {
  return std::to_string(n < 1 ? 0 : std::bit_floor(static_cast<std::uint64_t>(n)));
}

/// Shortest text that reads back as the same number.
std::string exactly(double value) {
  std::array<char, 32> buffer;
  return {buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr};
}

std::optional<double> seconds(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (!std::isfinite(value) || value <= 0) return std::nullopt;
  return value;
}

bool same_problem(const TunedTime& a, const TunedTime& b) {
  return a.version == b.version && a.device == b.device && a.problem == b.problem;
}

TunedTimes read_once() {
  const auto path = env_tune_file();
  if (!path.ok()) return {{}, path.status()};
  if (!path->has_value()) return {};
  auto times = load_tuned(**path);
  if (!times.ok()) return {{}, times.status()};
  return {*std::move(times), {}};
}

}  // namespace

std::string tuned_version() { return twofour_version_string(); }

std::string tuned_device(const Device& device) {
  std::string text = device.name;
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  text += " (" + device.arch + ", ";
  return text + (device.kind == DeviceKind::kCuda
                     ? std::to_string(device.multiprocessors) + " multiprocessors)"
                     : std::to_string(device.threads) + " threads)");
}

std::string tuned_problem(const AttentionProblem& p) {
  std::string text = to_string(p.dtype);
  text += " d" + std::to_string(p.head_dim) + "/" + std::to_string(p.head_dim_v);
  text += " heads" + bucket((p.packed ? 1 : p.batch) * p.heads_q) + "/group" +
          std::to_string(p.heads_kv > 0 ? p.heads_q / p.heads_kv : 0);
  text += " len" + bucket(p.seqlen_q) + "x" + bucket(p.seqlen_k);
  if (p.packed) text += " packed" + bucket(p.total_q) + "x" + bucket(p.total_k);
  if (p.causal) text += p.align == Align::kTopLeft ? " causal-top" : " causal";
  if (p.window.left >= 0) text += " left" + bucket(p.window.left);
  if (p.window.right >= 0) text += " right" + bucket(p.window.right);
  if (p.has_mask) text += " mask";
  if (p.has_transform) text += " transform";
  if (p.has_prepared_k) text += " prepared";
  if (p.trace) text += " trace";
  if (p.key_splits > 0) text += " splits" + std::to_string(p.key_splits);
  return text + " " + to_string(resolved(p.sparsity, p.head_dim));
}

std::string tuned_text(std::span<const TunedTime> times) {
  std::string text = std::string(kHeader) + "\n";
  for (const TunedTime& t : times) {
    text += t.version + "\t" + t.device + "\t" + t.problem + "\t" + t.kernel + "\t" +
            exactly(t.min) + "\t" + exactly(t.median) + "\t" + exactly(t.max) + "\n";
  }
  return text;
}

Result<std::vector<TunedTime>> parse_tuned(std::string_view text, const std::string& name) {
  std::vector<TunedTime> times;
  for (std::size_t number = 1; !text.empty() || number == 1; ++number) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    const auto wrong = [&](const std::string& expected) -> Status {
      return {Code::kCorrupt, name + ":" + std::to_string(number) + ": expected " + expected +
                                  ", got " + quoted(line)};
    };
    if (number == 1 && line != kHeader) return wrong("\"" + std::string(kHeader) + "\"");
    if (end == std::string_view::npos) return wrong("a line that ends");
    if (number > 1) {
      std::vector<std::string_view> fields;
      for (std::size_t from = 0; from <= line.size();) {
        const std::size_t to = std::min(line.find('\t', from), line.size());
        fields.push_back(line.substr(from, to - from));
        from = to + 1;
      }
      const bool whole = fields.size() == kFields;
      const auto min = whole ? seconds(fields[4]) : std::nullopt;
      const auto median = whole ? seconds(fields[5]) : std::nullopt;
      const auto max = whole ? seconds(fields[6]) : std::nullopt;
      if (!min || !median || !max || *min > *median || *median > *max)
        return wrong("version, device, problem, kernel and three ascending times, split by tabs");
      times.push_back({std::string(fields[0]), std::string(fields[1]), std::string(fields[2]),
                       std::string(fields[3]), *min, *median, *max});
    }
    text.remove_prefix(end + 1);
  }
  return times;
}

Result<std::vector<TunedTime>> load_tuned(const std::string& path) {
  const auto bytes = io::read_file(path, kLongestFile);
  if (bytes.status().code() == Code::kNotFound) return std::vector<TunedTime>();
  if (!bytes.ok()) return bytes.status();
  return parse_tuned({reinterpret_cast<const char*>(bytes->data()), bytes->size()}, path);
}

void replace_tuned(std::vector<TunedTime>& times, std::span<const TunedTime> fresh) {
  if (fresh.empty()) return;
  std::erase_if(times, [&](const TunedTime& t) { return same_problem(t, fresh.front()); });
  times.insert(times.end(), fresh.begin(), fresh.end());
}

Status save_tuned(const std::string& path, std::span<const TunedTime> times) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error)
    return {Code::kIo,
            "cannot make the folder " + twofour::quoted(folder) + ": " + error.message()};
  return io::write_file(path, tuned_text(times));
}

const TunedTimes& tuned_of_process() {
  static const TunedTimes times = read_once();
  return times;
}

void look_up_tuned(std::vector<Candidate>& candidates, const AttentionProblem& problem,
                   const Device& device, std::span<const TunedTime> times) {
  if (times.empty()) return;
  const TunedTime wanted{
      tuned_version(), tuned_device(device), tuned_problem(problem), "", 0, 0, 0};
  for (const TunedTime& time : times) {
    if (!same_problem(time, wanted)) continue;
    for (Candidate& candidate : candidates)
      if (candidate.kernel_id == time.kernel && candidate.why_not.empty())
        candidate.measured = time.median;
  }
}

std::optional<std::size_t> fastest(const std::vector<Candidate>& candidates,
                                   std::span<const std::size_t> able) {
  std::optional<std::size_t> best;
  for (const std::size_t i : able)
    if (!best || candidates[i].seconds < candidates[*best].seconds) best = i;
  if (!best || candidates[*best].measured == 0) return best;
  for (const std::size_t i : able) {
    const double measured = candidates[i].measured;
    if (measured > 0 && measured < candidates[*best].measured) best = i;
  }
  return best;
}

}  // namespace twofour
