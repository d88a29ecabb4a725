// Score patterns (rule 4): which keys compete, and who wins.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "twofour/sparsity.h"

namespace twofour::ref {

/// Keys of a block (numbered within it, ascending) of which `keep` survive.
struct Group {
  std::vector<std::int64_t> keys;
  int keep = 0;
};

/// The groups of a block; `none` gives groups of one that keep it.
std::vector<Group> groups_of(ScorePattern pattern, std::int64_t block);

/// NaN counts as largest, -0 equals +0; equal values are decided by the caller's order.
inline bool larger(double a, double b) {
  if (std::isnan(a)) return !std::isnan(b);
  return a > b;
}

/// Which of `values` are kept: the `keep` largest, ties to the lower index.
std::vector<bool> keep_largest(const std::vector<double>& values, int keep);

}  // namespace twofour::ref
