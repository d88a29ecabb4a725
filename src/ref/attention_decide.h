// Decisions on units and groups (rules 4, 7 and 8), and whether somebody else's are admissible
// ("Near ties").
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "ref/attention_operands.h"
#include "twofour/sparsity.h"

namespace twofour::ref {

/// The largest of some scores, with the interval a kernel's may lie in. NaN once a NaN was seen.
struct Maximum {
  double value = -std::numeric_limits<double>::infinity();
  double low = -std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void cover(const Score& score);
  void cover(const Maximum& other);
};

/// What one row of a unit says: its maximum over the unit, and m before the unit.
struct Vote {
  std::int64_t row = 0;  // in memory order
  Maximum unit;
  Maximum m;
};

/// Rules 7 and 8: drop is tested first.
UnitDecision decide_unit(const Sparsity& sparsity, const std::vector<Vote>& votes);

/// Where a checked decision was made, for the message.
struct Place {
  std::int64_t head = 0;
  std::int64_t row = 0;         // of the group
  std::int64_t half_block = 0;  // of the unit
  std::string text() const;
};

/// kOk when `decision` can be had by moving scores within their bounds; `used` is raised to the
/// share of the bound that this takes.
Status check_unit(const Sparsity& sparsity, const std::vector<Vote>& votes, UnitDecision decision,
                  const Place& place, double* used);

/// The same for a group of keys: exactly `keep` are kept, and none of them is surely smaller than
/// one that is not.
Status check_group(const std::vector<Score>& scores, const std::vector<std::int64_t>& keys,
                   const std::vector<bool>& kept, const Place& place, double* used);

}  // namespace twofour::ref
