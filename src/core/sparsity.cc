#include "twofour/sparsity.h"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "core/quote.h"

namespace twofour {
namespace {

constexpr std::array kModes = {Mode::kDense, Mode::kScore, Mode::kInt8, Mode::kDual,
                               Mode::kRefined};
constexpr std::array kProducts = {QKProduct::kExact, QKProduct::kNm24, QKProduct::kInt8};
constexpr std::array kPatterns = {ScorePattern::kNone, ScorePattern::kPair,
                                  ScorePattern::kNm24Strided, ScorePattern::kNm24Adjacent};

/// "a, b or c": the names of a list of enumerators.
template <class List>
std::string names(const List& list) {
  std::string text;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (i > 0) text += i + 1 == list.size() ? " or " : ", ";
    text += to_string(list[i]);
  }
  return text;
}

std::string shortest(float value) {
  std::array<char, 32> buffer;
  // Negative zero equals zero, and has to print like it.
  const float printed = value == 0 ? 0.0f : value;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), printed);
  return {buffer.data(), end.ptr};
}

/// Reads all of `text` as one number without a sign.
template <class Number>
bool read_number(std::string_view text, Number& value) {
  if (text.empty() || text.front() == '-') return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

/// Reads one string; every failure names the part that was not understood.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text), rest_(text) {}

  Result<Sparsity> parse() {
    Sparsity sparsity;
    const std::string_view product = next();
    if (!read_product(product, sparsity)) {
      return wrong(product,
                   "a mode (" + names(kModes) + ") or a QK product (" + names(kProducts) + ")");
    }
    if (!more_) return wrong(product, "a score pattern after \"/\" (" + names(kPatterns) + ")");
    const std::string_view pattern = next();
    if (!read_pattern(pattern, sparsity)) {
      return wrong(pattern, "a score pattern (" + names(kPatterns) +
                                "), with or without a block length such as pair128");
    }
    std::string seen;
    while (more_) {
      const std::string_view part = next();
      if (!read_option(part, sparsity)) {
        return wrong(part, "s<blocks>, l<blocks>, r<nats> or d<nats>");
      }
      if (seen.find(part.front()) != std::string::npos) {
        return wrong(part, std::string("one \"") + part.front() + "\" part");
      }
      seen += part.front();
    }
    const Status status = validate(sparsity);
    if (!status.ok()) {
      return {status.code(), "sparsity " + quoted(text_) + ": " + status.message()};
    }
    return sparsity;
  }

 private:
  std::string_view next() {
    const std::size_t slash = rest_.find('/');
    more_ = slash != std::string_view::npos;
    const std::string_view part = rest_.substr(0, slash);
    rest_ = more_ ? rest_.substr(slash + 1) : std::string_view();
    return part;
  }

  static bool read_product(std::string_view part, Sparsity& sparsity) {
    for (QKProduct qk : kProducts) {
      if (part == to_string(qk)) {
        sparsity.qk = qk;
        return true;
      }
    }
    return false;
  }

  static bool read_pattern(std::string_view part, Sparsity& sparsity) {
    for (ScorePattern pattern : kPatterns) {
      const std::string_view name = to_string(pattern);
      if (part.substr(0, name.size()) != name) continue;
      sparsity.score = pattern;
      const std::string_view block = part.substr(name.size());
      return block.empty() || read_number(block, sparsity.block);
    }
    return false;
  }

  static bool read_option(std::string_view part, Sparsity& sparsity) {
    if (part.empty()) return false;
    const std::string_view number = part.substr(1);
    switch (part.front()) {
      case 's':
        return read_number(number, sparsity.sink_blocks);
      case 'l':
        return read_number(number, sparsity.local_blocks);
      case 'r':
        return read_number(number, sparsity.refine.emplace());
      case 'd':
        return read_number(number, sparsity.drop.emplace());
      default:
        return false;
    }
  }

  Status wrong(std::string_view part, const std::string& expected) const {
    return {Code::kInvalidArgument,
            "sparsity " + quoted(text_) + ": expected " + expected + ", got " + quoted(part)};
  }

  std::string_view text_;
  std::string_view rest_;
  bool more_ = false;
};

Status out_of_range(const std::string& field, const std::string& expected, const std::string& got) {
  return {Code::kInvalidArgument, field + ": expected " + expected + ", got " + got};
}

/// refine and drop share their range and their need for half-blocks closed under the pattern.
Status validate_nats(const char* field, const std::optional<float>& nats, ScorePattern pattern) {
  if (!nats) return {};
  if (!std::isfinite(*nats) || *nats < 0) {
    return out_of_range(field, "a finite number of nats >= 0", shortest(*nats));
  }
  if (pattern == ScorePattern::kNm24Strided) {
    return out_of_range(field,
                        "a score pattern whose groups lie within a half-block "
                        "(none, pair or nm24_adjacent)",
                        to_string(pattern));
  }
  return {};
}

}  // namespace

const char* to_string(Mode mode) {
  switch (mode) {
    case Mode::kDense:
      return "dense";
    case Mode::kScore:
      return "score";
    case Mode::kInt8:
      return "int8";
    case Mode::kDual:
      return "dual";
    case Mode::kRefined:
      return "refined";
  }
  return "unknown";
}

const char* to_string(QKProduct qk) {
  switch (qk) {
    case QKProduct::kExact:
      return "exact";
    case QKProduct::kNm24:
      return "nm24";
    case QKProduct::kInt8:
      return "int8";
  }
  return "unknown";
}

const char* to_string(ScorePattern pattern) {
  switch (pattern) {
    case ScorePattern::kNone:
      return "none";
    case ScorePattern::kPair:
      return "pair";
    case ScorePattern::kNm24Strided:
      return "nm24_strided";
    case ScorePattern::kNm24Adjacent:
      return "nm24_adjacent";
  }
  return "unknown";
}

Sparsity preset(Mode mode) {
  Sparsity sparsity;
  if (mode == Mode::kDense) return sparsity;
  sparsity.score = ScorePattern::kPair;
  sparsity.sink_blocks = 1;
  if (mode == Mode::kInt8) sparsity.qk = QKProduct::kInt8;
  if (mode == Mode::kDual || mode == Mode::kRefined) {
    sparsity.qk = QKProduct::kNm24;
    sparsity.local_blocks = 1;
  }
  if (mode == Mode::kRefined) sparsity.refine = 2.0f;
  return sparsity;
}

Result<Mode> parse_mode(std::string_view text) {
  for (Mode mode : kModes) {
    if (text == to_string(mode)) return mode;
  }
  return {Code::kInvalidArgument, "mode: expected " + names(kModes) + ", got " + quoted(text)};
}

Sparsity resolved(Sparsity sparsity, std::int64_t head_dim) {
  if (sparsity.block == 0) sparsity.block = default_block(head_dim);
  return sparsity;
}

std::string to_string(const Sparsity& sparsity) {
  // Block, sinks and local blocks change nothing where nothing is pruned: one string for all.
  if (sparsity.is_dense() && !sparsity.refine) return "exact/none";
  std::string text = std::string(to_string(sparsity.qk)) + "/" + to_string(sparsity.score);
  if (sparsity.block != 0) text += std::to_string(sparsity.block);
  text += "/s" + std::to_string(sparsity.sink_blocks);
  text += "/l" + std::to_string(sparsity.local_blocks);
  if (sparsity.refine) text += "/r" + shortest(*sparsity.refine);
  if (sparsity.drop) text += "/d" + shortest(*sparsity.drop);
  return text;
}

Result<Sparsity> parse_sparsity(std::string_view text) {
  for (Mode mode : kModes) {
    if (text == to_string(mode)) return preset(mode);
  }
  return Parser(text).parse();
}

Status validate(const Sparsity& sparsity) {
  if (sparsity.qk > QKProduct::kInt8) {
    return out_of_range("qk", names(kProducts), std::to_string(int(sparsity.qk)));
  }
  if (sparsity.score > ScorePattern::kNm24Adjacent) {
    return out_of_range("score", names(kPatterns), std::to_string(int(sparsity.score)));
  }
  const int block = sparsity.block;
  if (block != 0 && (block < 64 || block > 512 || block % 64 != 0)) {
    return out_of_range("block", "0 or a multiple of 64 in 64..512", std::to_string(block));
  }
  if (sparsity.sink_blocks < 0) {
    return out_of_range("sink_blocks", ">= 0", std::to_string(sparsity.sink_blocks));
  }
  if (sparsity.local_blocks < 0) {
    return out_of_range("local_blocks", ">= 0", std::to_string(sparsity.local_blocks));
  }
  if (sparsity.refine && sparsity.qk != QKProduct::kNm24) {
    return out_of_range("refine", "qk nm24", std::string("qk ") + to_string(sparsity.qk));
  }
  Status status = validate_nats("refine", sparsity.refine, sparsity.score);
  if (!status.ok()) return status;
  return validate_nats("drop", sparsity.drop, sparsity.score);
}

}  // namespace twofour
