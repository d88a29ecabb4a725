#include "ref/attention_pattern.h"

namespace twofour::ref {

std::vector<Group> groups_of(ScorePattern pattern, std::int64_t block) {
  std::vector<Group> groups;
  switch (pattern) {
    case ScorePattern::kNone:
      for (std::int64_t j = 0; j < block; ++j) groups.push_back({{j}, 1});
      break;
    case ScorePattern::kPair:
      for (std::int64_t j = 0; j < block / 2; ++j) groups.push_back({{j, j + block / 2}, 1});
      break;
    case ScorePattern::kNm24Strided:
      for (std::int64_t j = 0; j < block / 4; ++j) {
        groups.push_back({{j, j + block / 4, j + block / 2, j + 3 * block / 4}, 2});
      }
      break;
    case ScorePattern::kNm24Adjacent:
      for (std::int64_t j = 0; j < block; j += 4) groups.push_back({{j, j + 1, j + 2, j + 3}, 2});
      break;
  }
  return groups;
}

std::vector<bool> keep_largest(const std::vector<double>& values, int keep) {
  std::vector<bool> kept(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    int better = 0;  // values that go before this one
    for (std::size_t other = 0; other < values.size(); ++other) {
      if (other == i) continue;
      const bool equal = !larger(values[other], values[i]) && !larger(values[i], values[other]);
      better += larger(values[other], values[i]) || (equal && other < i);
    }
    kept[i] = better < keep;
  }
  return kept;
}

}  // namespace twofour::ref
