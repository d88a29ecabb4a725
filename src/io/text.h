// A strict cursor over the text of a header: JSON for safetensors, a Python literal for npy.
//
// Headers have a fixed form, so there is no general value and no recursion: the caller asks for
// what must come next, and a deeply nested document is refused at its first unexpected bracket.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "twofour/status.h"

namespace twofour::io {

/// Text for a one-line message: in single quotes, control characters as \xNN, at most 200 bytes.
std::string in_quotes(std::string_view text);

/// Whether every byte belongs to a well-formed UTF-8 sequence (no surrogates, no overlong forms).
bool is_utf8(std::string_view text);

/// `text` as a JSON string, quotes included.
std::string json_string(std::string_view text);

class Cursor {
 public:
  /// `what` names the text in messages: "header of 'x.safetensors'".
  Cursor(std::string_view text, std::string what) : text_(text), what_(std::move(what)) {}

  /// Skips white space, then takes `c` if it comes next.
  bool accept(char c);
  Status expect(char c);
  /// Takes a word such as True if it comes next.
  bool accept_word(std::string_view word);
  /// True at the end of the text, white space aside.
  bool at_end();

  /// A JSON string with its escapes decoded: UTF-8 in, UTF-8 out.
  Result<std::string> json_text();
  /// A Python string in single or double quotes, printable ASCII, without escapes.
  Result<std::string> python_text();
  /// A decimal integer without sign or leading zeros, at most `limit`.
  Result<std::uint64_t> integer(std::uint64_t limit);

  /// kCorrupt: "header of 'x' at byte 17: expected ..., got ...".
  Status error(const std::string& expected) const;

 private:
  void skip_space();
  Result<std::uint32_t> hex4();
  std::string_view text_;
  std::string what_;
  std::size_t at_ = 0;
};

}  // namespace twofour::io
