// The selection rules in scalar code: the query's channels, and the score patterns that have no
// kernel of their own. NaN counts as largest, ties keep the lower index, -0 equals +0.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace twofour::cpu {

/// True when a value at a higher index beats one at a lower index.
inline bool higher_index_wins(float lower, float higher) {
  return !(higher <= lower) && lower == lower;
}

/// Bits (of 4) of the two largest of four values.
inline unsigned best_two_of_four(float a, float b, float c, float d) {
  // Wins of each over the others; of a tie the lower index wins. The two with two or more wins of
  // three stay: with a strict order the counts are 3, 2, 1, 0.
  const bool ba = higher_index_wins(a, b), ca = higher_index_wins(a, c);
  const bool da = higher_index_wins(a, d), cb = higher_index_wins(b, c);
  const bool db = higher_index_wins(b, d), dc = higher_index_wins(c, d);
  const int wins_a = !ba + !ca + !da, wins_b = ba + !cb + !db;
  const int wins_c = ca + cb + !dc, wins_d = da + db + dc;
  return unsigned{wins_a >= 2} | unsigned{wins_b >= 2} << 1 | unsigned{wins_c >= 2} << 2 |
         unsigned{wins_d >= 2} << 3;
}

/// Of s[0], s[stride], s[2*stride], s[3*stride] keeps two and sets the others to -inf.
inline void keep_two_of_four(float* s, std::int64_t stride) {
  const unsigned kept = best_two_of_four(s[0], s[stride], s[2 * stride], s[3 * stride]);
  for (int i = 0; i < 4; ++i)
    if (!(kept >> i & 1)) s[i * stride] = -std::numeric_limits<float>::infinity();
}

}  // namespace twofour::cpu
