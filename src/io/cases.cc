#include "io/cases.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include "io/file.h"
#include "io/text.h"

namespace twofour::io {
namespace {

constexpr std::size_t kMaxFile = std::size_t{1} << 20;
constexpr std::size_t kMaxCases = 20000;  // of one line: a slip of the comma should not fill memory
constexpr std::int64_t kMaxExtent = 1 << 24;

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

template <class Number>
std::optional<Number> number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

/// "9/3" or "9" (both the same).
bool read_pair(std::string_view text, char separator, std::int64_t low, std::int64_t& first,
               std::int64_t& second, std::int64_t high = kMaxExtent) {
  const auto parts = split(text, separator);
  if (parts.size() > 2) return false;
  const auto a = number<std::int64_t>(parts.front()), b = number<std::int64_t>(parts.back());
  if (!a || !b || *a < low || *b < low || *a > high || *b > high) return false;
  first = *a;
  second = *b;
  return true;
}

template <class Enum>
struct Name {
  const char* name;
  Enum value;
};

template <class Enum, std::size_t kCount>
bool read_name(std::string_view text, const Name<Enum> (&names)[kCount], Enum& value) {
  for (const Name<Enum>& candidate : names) {
    if (text != candidate.name) continue;
    value = candidate.value;
    return true;
  }
  return false;
}

constexpr Name<DType> kDTypes[] = {
    {"fp32", DType::kF32}, {"fp16", DType::kF16}, {"bf16", DType::kBF16}};
constexpr Name<CaseInput> kInputs[] = {
    {"random", CaseInput::kRandom}, {"peaky", CaseInput::kPeaky},   {"flat", CaseInput::kFlat},
    {"huge", CaseInput::kHuge},     {"offset", CaseInput::kOffset}, {"equal", CaseInput::kEqual},
    {"poison", CaseInput::kPoison}, {"spread", CaseInput::kSpread}};
constexpr Name<CaseMask> kMasks[] = {{"none", CaseMask::kNone},
                                     {"random", CaseMask::kRandom},
                                     {"rows", CaseMask::kRows},
                                     {"blocks", CaseMask::kBlocks},
                                     {"keys", CaseMask::kKeys}};
constexpr Name<CaseLayout> kLayouts[] = {
    {"bmhd", CaseLayout::kBmhd}, {"bhmd", CaseLayout::kBhmd}, {"fused", CaseLayout::kFused}};

/// "5x5+0x0+1x7": M x N of each sequence.
bool read_packed(std::string_view text, Case& c) {
  AttentionProblem& p = c.problem;
  p.packed = true;
  p.batch = p.seqlen_q = p.seqlen_k = 0;
  c.cu_seqlens_q = c.cu_seqlens_k = {0};
  for (const std::string_view part : split(text, '+')) {
    std::int64_t m = 0, n = 0;
    if (!read_pair(part, 'x', 0, m, n)) return false;
    p.seqlen_q = std::max(p.seqlen_q, m);
    p.seqlen_k = std::max(p.seqlen_k, n);
    p.total_q += m;
    p.total_k += n;
    if (p.total_q > kMaxExtent || p.total_k > kMaxExtent) return false;
    c.cu_seqlens_q.push_back(static_cast<std::int32_t>(p.total_q));
    c.cu_seqlens_k.push_back(static_cast<std::int32_t>(p.total_k));
    ++p.batch;
  }
  return true;
}

bool read_causal(std::string_view text, AttentionProblem& p) {
  p.causal = text != "no";
  if (text == "top_left") p.align = Align::kTopLeft;
  return text == "no" || text == "top_left" || text == "bottom_right";
}

bool read_window(std::string_view text, AttentionProblem& p) {
  if (text == "none") return true;
  std::int64_t left = 0, right = 0;
  constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
  if (!read_pair(text, ':', -1, left, right, kAny) || text.find(':') == std::string_view::npos)
    return false;
  p.window = {left, right};
  return true;
}

/// "random:0.3"
bool read_mask(std::string_view text, Case& c) {
  const auto parts = split(text, ':');
  if (!read_name(parts[0], kMasks, c.mask) || parts.size() > 2) return false;
  c.problem.has_mask = c.mask != CaseMask::kNone;
  if (parts.size() == 1) return true;
  const auto density = number<double>(parts[1]);
  if (!density || !(*density >= 0 && *density <= 1)) return false;
  c.mask_density = *density;
  return true;
}

/// Sets one key; false when the value is not understood.
Result<bool> set_key(Case& c, std::string_view key, std::string_view value) {
  AttentionProblem& p = c.problem;
  if (key == "mode") {
    Result<Sparsity> sparsity = parse_sparsity(value);
    if (!sparsity.ok()) return sparsity.status();
    p.sparsity = *sparsity;
    return true;
  }
  if (key == "dtype") return read_name(value, kDTypes, p.dtype);
  if (key == "batch") {
    const auto batch = number<std::int64_t>(value);
    p.batch = batch.value_or(0);
    return batch && *batch >= 0 && *batch <= kMaxExtent;
  }
  if (key == "heads") return read_pair(value, '/', 1, p.heads_q, p.heads_kv);
  if (key == "dim") return read_pair(value, '/', 1, p.head_dim, p.head_dim_v);
  if (key == "len") return read_pair(value, 'x', 0, p.seqlen_q, p.seqlen_k);
  if (key == "packed") return read_packed(value, c);
  if (key == "causal") return read_causal(value, p);
  if (key == "window") return read_window(value, p);
  if (key == "mask") return read_mask(value, c);
  if (key == "input") return read_name(value, kInputs, c.input);
  if (key == "layout") return read_name(value, kLayouts, c.layout);
  if (key == "transform") {
    p.has_transform = value == "random";
    return value == "random" || value == "none";
  }
  if (key == "scale") {
    const auto scale = number<float>(value);
    p.scale = scale;
    return scale && std::isfinite(*scale);
  }
  if (key == "splits") {
    const auto splits = number<int>(value);
    p.key_splits = splits.value_or(-1);
    return p.key_splits >= 0 && p.key_splits <= kMaxKeySplits;
  }
  return {Code::kInvalidArgument, "unknown key " + in_quotes(key)};
}

template <class Enum, std::size_t kCount>
std::string names_of(const Name<Enum> (&names)[kCount]) {
  std::string text;
  for (std::size_t i = 0; i < kCount; ++i) {
    if (i > 0) text += i + 1 == kCount ? " or " : ", ";
    text += names[i].name;
  }
  return text;
}

/// What the values of a known key look like, for messages.
std::string expected(std::string_view key) {
  const auto from = [](int low) {
    return "whole numbers in " + std::to_string(low) + ".." + std::to_string(kMaxExtent);
  };
  if (key == "dtype") return names_of(kDTypes);
  if (key == "batch") return "one of the " + from(0);
  if (key == "heads") return "Hq or Hq/Hkv, " + from(1);
  if (key == "dim") return "D or D/Dv, " + from(1);
  if (key == "len") return "N or MxN, " + from(0);
  if (key == "packed") return "MxN of each sequence as in 5x5+0x3, in sum " + from(0);
  if (key == "causal") return "no, bottom_right or top_left";
  if (key == "window") return "none or LEFT:RIGHT in keys, -1 open";
  if (key == "mask") return names_of(kMasks) + ", with or without a density such as random:0.3";
  if (key == "input") return names_of(kInputs);
  if (key == "layout") return names_of(kLayouts);
  if (key == "transform") return "none or random";
  if (key == "splits") return "one of the whole numbers in 0.." + std::to_string(kMaxKeySplits);
  return "a finite number";  // scale
}

Status check_case(const Case& c) {
  if (c.problem.packed && c.layout != CaseLayout::kBmhd)
    return {Code::kInvalidArgument, "packed sequences have layout bmhd"};
  return validate(c.problem);
}

/// The alternatives of one line, as a product in the order of its words.
Status expand_line(std::string_view line, std::vector<Case>& out) {
  struct Key {
    std::string_view name;
    std::vector<std::string_view> values;
  };
  std::vector<Key> keys;
  std::size_t count = 1;
  for (const std::string_view word : split(line, ' ')) {
    if (word.empty()) continue;
    const std::size_t equals = word.find('=');
    if (equals == std::string_view::npos)
      return {Code::kInvalidArgument, "expected key=value, got " + in_quotes(word)};
    const std::string_view name = word.substr(0, equals);
    for (const Key& key : keys)
      if (key.name == name)
        return {Code::kInvalidArgument, "key " + in_quotes(name) + " came before"};
    keys.push_back({name, split(word.substr(equals + 1), ',')});
    count *= keys.back().values.size();
    if (count > kMaxCases)
      return {Code::kInvalidArgument,
              "expected at most " + std::to_string(kMaxCases) + " cases on a line"};
  }
  if (keys.empty()) return {};
  for (std::size_t index = 0; index < count; ++index) {
    Case c;
    std::size_t rest = index, below = count;
    for (const Key& key : keys) {
      below /= key.values.size();
      const std::string_view value = key.values[rest / below];
      rest %= below;
      const Result<bool> understood = set_key(c, key.name, value);
      if (!understood.ok()) return understood.status();
      if (!*understood)
        return {Code::kInvalidArgument,
                "cannot read " + in_quotes(std::string(key.name) + "=" + std::string(value)) +
                    ": expected " + expected(key.name)};
      if (!c.text.empty()) c.text += ' ';
      c.text.append(key.name).append("=").append(value);
    }
    if (Status status = check_case(c); !status.ok()) return status;
    out.push_back(std::move(c));
  }
  return {};
}

}  // namespace

Result<std::vector<Case>> parse_cases(std::string_view text, const std::string& name) {
  std::vector<Case> cases;
  std::size_t line_number = 0;
  for (std::string_view line : split(text, '\n')) {
    ++line_number;
    line = line.substr(0, line.find('#'));
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.remove_suffix(1);
    if (Status status = expand_line(line, cases); !status.ok())
      return {Code::kInvalidArgument,
              name + ":" + std::to_string(line_number) + ": " + status.message()};
  }
  return cases;
}

Result<std::vector<Case>> load_cases(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<std::string> files;
  if (fs::is_directory(path, error)) {
    for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error))
      if (it->path().extension() == ".cases") files.push_back(it->path().string());
    if (error) return {Code::kIo, "cannot read " + in_quotes(path) + ": " + error.message()};
    if (files.empty())
      return {Code::kNotFound, "expected *.cases files in " + in_quotes(path) + ", found none"};
    std::sort(files.begin(), files.end());
  } else {
    files.push_back(path);
  }
  std::vector<Case> cases;
  for (const std::string& file : files) {
    Result<std::vector<std::byte>> bytes = read_file(file, kMaxFile);
    if (!bytes.ok()) return bytes.status();
    const std::string_view text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
    Result<std::vector<Case>> part = parse_cases(text, file);
    if (!part.ok()) return part.status();
    std::move(part->begin(), part->end(), std::back_inserter(cases));
  }
  return cases;
}

}  // namespace twofour::io
