#include "io/text.h"

#include <array>
#include <utility>

#include "core/quote.h"

namespace twofour::io {
namespace {

constexpr char kHex[] = "0123456789abcdef";

void append_utf8(std::string& out, std::uint32_t code_point) {
  const auto put = [&out](std::uint32_t byte) { out += static_cast<char>(byte); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

/// Bytes of the well-formed UTF-8 sequence at `at`, or 0.
std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) -> unsigned {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const unsigned lead = byte(at);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return follows(at + 1) ? 2 : 0;
  const unsigned second = byte(at + 1);
  if (lead >= 0xE0 && lead <= 0xEF) {
    if (!follows(at + 1) || !follows(at + 2)) return 0;
    if (lead == 0xE0 && second < 0xA0) return 0;   // overlong
    if (lead == 0xED && second >= 0xA0) return 0;  // surrogate
    return 3;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    if (!follows(at + 1) || !follows(at + 2) || !follows(at + 3)) return 0;
    if (lead == 0xF0 && second < 0x90) return 0;   // overlong
    if (lead == 0xF4 && second >= 0x90) return 0;  // above U+10FFFF
    return 4;
  }
  return 0;
}

}  // namespace

std::string in_quotes(std::string_view text) { return "'" + escaped(text) + "'"; }

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  return out + '"';
}

void Cursor::skip_space() {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
    ++at_;
}

bool Cursor::accept(char c) {
  skip_space();
  if (at_ >= text_.size() || text_[at_] != c) return false;
  ++at_;
  return true;
}

Status Cursor::expect(char c) {
  if (accept(c)) return {};
  return error(std::string("'") + c + "'");
}

bool Cursor::accept_word(std::string_view word) {
  skip_space();
  if (text_.substr(at_, word.size()) != word) return false;
  at_ += word.size();
  return true;
}

bool Cursor::at_end() {
  skip_space();
  return at_ == text_.size();
}

Status Cursor::error(const std::string& expected) const {
  const std::string got =
      at_ < text_.size() ? in_quotes(text_.substr(at_, 12)) : std::string("the end");
  return Status(Code::kCorrupt, what_ + " at byte " + std::to_string(at_) + ": expected " +
                                    expected + ", got " + got);
}

Result<std::uint32_t> Cursor::hex4() {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return error("a hexadecimal digit");
    value = value * 16 + static_cast<std::uint32_t>(digit);
  }
  return value;
}

Result<std::string> Cursor::json_text() {
  if (!accept('"')) return error("a string");
  std::string out;
  while (true) {
    if (at_ >= text_.size()) return error("'\"'");
    const char c = text_[at_];
    if (c == '"') {
      ++at_;
      return out;
    }
    if (static_cast<unsigned char>(c) < 0x20) return error("no control character in a string");
    if (c != '\\') {
      const std::size_t length = utf8_length(text_, at_);
      if (length == 0) return error("UTF-8");
      out.append(text_.substr(at_, length));
      at_ += length;
      continue;
    }
    ++at_;
    const char kind = at_ < text_.size() ? text_[at_] : '\0';
    constexpr std::string_view kEscapes = "\"\\/bfnrt";
    constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    if (const std::size_t i = kEscapes.find(kind); kind != '\0' && i != std::string_view::npos) {
      out += kMeanings[i];
      ++at_;
      continue;
    }
    if (kind != 'u') return error("an escape sequence");
    ++at_;
    Result<std::uint32_t> high = hex4();
    if (!high.ok()) return high.status();
    std::uint32_t code_point = *high;
    if (code_point >= 0xDC00 && code_point <= 0xDFFF) return error("no lone surrogate");
    if (code_point >= 0xD800 && code_point <= 0xDBFF) {
      if (text_.substr(at_, 2) != "\\u") return error("the second half of a surrogate pair");
      at_ += 2;
      Result<std::uint32_t> low = hex4();
      if (!low.ok()) return low.status();
      if (*low < 0xDC00 || *low > 0xDFFF) return error("the second half of a surrogate pair");
      code_point = 0x10000 + ((code_point - 0xD800) << 10) + (*low - 0xDC00);
    }
    append_utf8(out, code_point);
  }
}

Result<std::string> Cursor::python_text() {
  char quote = '\'';
  if (!accept('\'')) {
    if (!accept('"')) return error("a string");
    quote = '"';
  }
  std::string out;
  for (; at_ < text_.size(); ++at_) {
    const char c = text_[at_];
    if (c == quote) {
      ++at_;
      return out;
    }
    if (static_cast<unsigned char>(c) - 0x20u >= 0x5Fu || c == '\\')
      return error("printable ASCII");
    out += c;
  }
  return error("a closing quote");
}

Result<std::uint64_t> Cursor::integer(std::uint64_t limit) {
  skip_space();
  const std::size_t start = at_;
  std::uint64_t value = 0;
  for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
    const std::uint64_t digit = static_cast<std::uint64_t>(text_[at_] - '0');
    if (digit > limit || value > (limit - digit) / 10) {
      at_ = start;
      return error("an integer of at most " + std::to_string(limit));
    }
    value = value * 10 + digit;
  }
  const std::size_t digits = at_ - start;
  const bool leading_zero = digits > 1 && text_[start] == '0';
  if (digits == 0 || leading_zero) {
    at_ = start;
    return error("a non-negative integer");
  }
  return value;
}

}  // namespace twofour::io
