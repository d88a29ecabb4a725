#include "core/quote.h"

namespace twofour {

std::string escaped(std::string_view text, std::size_t longest) {
  constexpr char kHex[] = "0123456789abcdef";
  std::size_t end = text.size();
  if (end > longest) {
    // Not within a UTF-8 sequence, which would no longer be one.
    for (end = longest; end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80;) --end;
  }
  std::string out;
  for (const char c : text.substr(0, end)) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7F) {
      out += c;
    } else {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  return out + (end < text.size() ? "..." : "");
}

std::string quoted(std::string_view text) { return '"' + escaped(text) + '"'; }

}  // namespace twofour
