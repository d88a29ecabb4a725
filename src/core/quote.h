// Text of the user in messages of one line.
#pragma once

#include <string>
#include <string_view>

namespace twofour {

/// Control characters as \xNN, at most `longest` bytes and then "...".
std::string escaped(std::string_view text, std::size_t longest = 200);

/// `text` escaped, in double quotes.
std::string quoted(std::string_view text);

}  // namespace twofour
