// A kernel's output against the reference, element by element within its error bounds.
#pragma once

#include <optional>
#include <string>

#include "ref/attention.h"

namespace twofour::tool {

struct Comparison {
  double worst = 0;   // largest error as a share of what is allowed
  std::string where;  // empty, or the first element outside, in words
};

/// "" when the counts are the same.
std::string compare_counts(const AttentionStats& got, const AttentionStats& expected);

/// Compares args.o and args.lse with what the reference computed from the same decisions. Rows of
/// rule 9 that non-finite input may spread to are skipped.
Comparison compare(const AttentionProblem& problem, const AttentionArgs& args,
                   const ref::Output& expected);

}  // namespace twofour::tool
