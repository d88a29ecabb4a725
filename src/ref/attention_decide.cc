#include "ref/attention_decide.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "ref/attention_pattern.h"

namespace twofour::ref {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double nan_or_max(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return kNaN;
  return std::max(a, b);
}

std::string number(double value) {
  std::array<char, 32> buffer;
  std::snprintf(buffer.data(), buffer.size(), "%.9g", value);
  return buffer.data();
}

/// Rules 7 and 8 ask the same of a row: is its maximum below m - nats? False with a NaN.
bool below(const Vote& vote, double nats) { return vote.unit.value < vote.m.value - nats; }

double reach(const Maximum& maximum) {
  if (!std::isfinite(maximum.value)) return 0;  // no score yet, or nothing to compare
  return std::max(maximum.high - maximum.value, maximum.value - maximum.low);
}

double bound_of(const Vote& vote, double nats) {
  const double subtraction =
      std::isfinite(vote.m.value) ? 2 * kF32Round * (std::fabs(vote.m.value) + nats) : 0;
  return reach(vote.unit) + reach(vote.m) + subtraction;
}

/// How far the row is from the threshold, in units of the bound: below -1 it is surely below,
/// above 1 surely not. NaN with a NaN.
double margin(const Vote& vote, double nats) {
  const double bound = bound_of(vote, nats);
  if (bound == kInfinity) return 0;
  const double difference = vote.unit.value - (vote.m.value - nats);
  if (std::isnan(difference) || difference == 0) return difference;
  return bound == 0 ? std::copysign(kInfinity, difference) : difference / bound;
}

Status inadmissible(const Place& place, const Vote& vote, double nats, const char* did,
                    const char* relation) {
  Place at = place;
  at.row = vote.row;
  return {Code::kInvalidArgument, "replay: " + at.text() + " unit " +
                                      std::to_string(place.half_block) + " was " + did +
                                      ", but its maximum " + number(vote.unit.value) + " is " +
                                      relation + " the threshold " + number(vote.m.value - nats) +
                                      " by more than the bound " + number(bound_of(vote, nats))};
}

/// Checks the claim "every row is below m - nats", or its contrary.
Status check_claim(const std::vector<Vote>& votes, double nats, bool all_below, const Place& place,
                   const char* did, double* used) {
  // The row that speaks most against "all below": a NaN, else the largest margin.
  const Vote* highest = &votes.front();
  for (const Vote& vote : votes) {
    if (std::isnan(margin(*highest, nats))) break;
    if (!(margin(vote, nats) <= margin(*highest, nats))) highest = &vote;
  }
  const double most = margin(*highest, nats);
  if (all_below) {
    if (!(most < 1)) return inadmissible(place, *highest, nats, did, "above");
    *used = std::max(*used, most);
  } else if (most < 0) {
    if (most < -1) return inadmissible(place, *highest, nats, did, "below");
    *used = std::max(*used, -most);
  }
  return {};
}

}  // namespace

void Maximum::cover(const Score& score) {
  value = nan_or_max(value, score.value);
  low = nan_or_max(low, score.value - score.bound);
  high = nan_or_max(high, score.value + score.bound);
}

void Maximum::cover(const Maximum& other) {
  value = nan_or_max(value, other.value);
  low = nan_or_max(low, other.low);
  high = nan_or_max(high, other.high);
}

std::string Place::text() const {
  return "head " + std::to_string(head) + " row " + std::to_string(row);
}

UnitDecision decide_unit(const Sparsity& sparsity, const std::vector<Vote>& votes) {
  const auto all_below = [&](double nats) {
    return std::all_of(votes.begin(), votes.end(),
                       [&](const Vote& vote) { return below(vote, nats); });
  };
  if (sparsity.drop && all_below(*sparsity.drop)) return UnitDecision::kDropped;
  if (sparsity.refine && !all_below(*sparsity.refine)) return UnitDecision::kRefined;
  return UnitDecision::kPruned;
}

Status check_unit(const Sparsity& sparsity, const std::vector<Vote>& votes, UnitDecision decision,
                  const Place& place, double* used) {
  const bool dropped = decision == UnitDecision::kDropped;
  const bool refined = decision == UnitDecision::kRefined;
  if (decision == UnitDecision::kPlain || (dropped && !sparsity.drop) ||
      (refined && !sparsity.refine)) {
    return {Code::kInvalidArgument, "replay: " + place.text() + " unit " +
                                        std::to_string(place.half_block) +
                                        ": expected a decision that " + to_string(sparsity) +
                                        " can make, got " + std::to_string(int(decision))};
  }
  if (sparsity.drop) {
    const char* did = dropped ? "dropped" : "not dropped";
    Status status = check_claim(votes, *sparsity.drop, dropped, place, did, used);
    if (!status.ok() || dropped) return status;
  }
  if (!sparsity.refine) return {};
  return check_claim(votes, *sparsity.refine, !refined, place, refined ? "refined" : "not refined",
                     used);
}

Status check_group(const std::vector<Score>& scores, const std::vector<std::int64_t>& keys,
                   const std::vector<bool>& kept, const Place& place, double* used) {
  for (std::size_t a = 0; a < scores.size(); ++a) {
    for (std::size_t b = 0; b < scores.size(); ++b) {
      if (!kept[a] || kept[b] || !larger(scores[b].value, scores[a].value)) continue;
      const double bound = scores[a].bound + scores[b].bound;
      if (bound == kInfinity) continue;
      const double difference = scores[b].value - scores[a].value;
      if (difference <= bound) {  // false with a NaN, which must be kept
        *used = std::max(*used, difference / bound);
        continue;
      }
      return {Code::kInvalidArgument,
              "replay: " + place.text() + " kept key " + std::to_string(keys[a]) + " of score " +
                  number(scores[a].value) + " and not key " + std::to_string(keys[b]) +
                  " of score " + number(scores[b].value) + ", which is larger by more than the " +
                  "bound " + number(bound)};
    }
  }
  return {};
}

}  // namespace twofour::ref
