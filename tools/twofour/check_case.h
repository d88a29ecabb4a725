// One case through every row of the registry, each against the reference.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "io/cases.h"
#include "plan/registry.h"

namespace twofour::tool {

/// What happened to one row over all cases.
struct RowTally {
  std::int64_t passed = 0;
  std::int64_t failed = 0;
  std::int64_t refused = 0;       // why_not gave a reason
  double worst_error = 0;         // largest share of an output's error bound
  double worst_decision = 0;      // trace rows: largest share of a decision's rounding bound
  std::int64_t pruned_pairs = 0;  // a row that never prunes has not been tested
};

struct Failure {
  std::string kernel;
  std::string target;
  std::string case_text;
  std::string message;
};

struct Tally {
  std::map<std::string, RowTally> rows;
  std::vector<Failure> failures;
};

/// A row and its debugging twin (the same id with ".trace"); either may be missing.
struct Family {
  const Kernel* row = nullptr;
  const Kernel* twin = nullptr;
};

/// The rows for a device whose id contains a text.
struct Selection {
  std::vector<Family> families;  // all but the reference, in registry order
  bool reference = false;
};
Selection select_rows(const std::string& filter, const Device& device);

/// Runs the case through the selection; through the reference's own row only when it is small.
///
/// The twin's decisions are replayed by the reference, which checks that each is admissible;
/// outputs of both rows must then lie within the reference's error bounds, counts must be equal, a
/// repeated run must give the same bits, and nothing may be written outside the outputs and the
/// workspace. On a CUDA device everything lies in its memory, and the bounds allow for weights in
/// the dtype of V.
void check_case(const io::Case& c, const Device& device, const Selection& selection, Tally* tally);

}  // namespace twofour::tool
