// Shared memory of a kernel's CTA: that what it holds is aligned and does not overlap.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace twofour::test {

struct Region {
  std::string name;
  int begin, bytes, alignment;
};

/// Where the last one ends.
inline int expect_apart(std::vector<Region> all) {
  std::ranges::sort(all, {}, &Region::begin);
  int end = 0;
  for (const Region& r : all) {
    EXPECT_EQ(r.begin % r.alignment, 0) << r.name << " at " << r.begin;
    EXPECT_GE(r.begin, end) << r.name << " overlaps with what is before it";
    end = r.begin + r.bytes;
  }
  return end;
}

}  // namespace twofour::test
