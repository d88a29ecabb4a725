#include "ref/attention_softmax.h"

#include <algorithm>
#include <limits>

namespace twofour::ref {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// exp() and the conversion of its argument to base 2, in fp32 roundings.
constexpr double kExpRoundings = 16;
// exp() of anything below this is 0 in fp32; a kernel may flush it.
constexpr double kSmallestExp = 0x1p-120;

/// How far the weight exp(score - max) of a kernel may be from the exact one, as a difference of
/// logarithms: the score, the subtraction, exp, and a sum of `count` terms in any order.
double weight_bound(const Score& score, double max, std::size_t count) {
  const double roundings =
      kExpRoundings + 4 * std::fabs(score.value - max) + static_cast<double>(count);
  return score.bound + kF32Round * roundings;
}

}  // namespace

RowResult softmax_row(const std::vector<double>& values, std::int64_t dim,
                      const std::vector<std::int64_t>& keys, const std::vector<Score>& scores,
                      const Query& query, const WeightFormat& format) {
  RowResult row{std::vector<double>(dim), std::vector<double>(dim), -kInfinity, 0};
  if (keys.empty()) return row;

  double max = -kInfinity;
  bool has_nan = false;
  for (const Score& score : scores) {
    max = std::max(max, score.value);
    has_nan |= std::isnan(score.value);
  }
  if (has_nan) max = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> weight(keys.size());
  double sum = 0;
  for (std::size_t n = 0; n < keys.size(); ++n) {
    weight[n] = std::exp(scores[n].value - max);
    sum += weight[n];
  }
  for (std::size_t n = 0; n < keys.size(); ++n) {
    for (std::int64_t d = 0; d < dim; ++d) {
      row.o[d] += weight[n] / sum * values[keys[n] * dim + d];
    }
  }
  row.lse = max + std::log(sum) + query.lse_shift;

  // With weights p_n x_n for p_n and |log x_n| <= e_n (and x_n rounded again above the line),
  // O' - O = sum p_n (x_n - 1) (v_n - O) / sum p_n x_n.
  double least = 0, most = 0;
  std::vector<double> moved(keys.size());
  for (std::size_t n = 0; n < keys.size(); ++n) {
    const double e = weight_bound(scores[n], max, keys.size());
    if (!(e < 80)) {  // nothing is known of this weight
      std::fill(row.o_bound.begin(), row.o_bound.end(), kInfinity);
      row.lse_bound = kInfinity;
      return row;
    }
    const double p = weight[n] / sum;
    least += p * std::exp(-e);
    most += p * std::exp(e);
    moved[n] = p * (std::expm1(e) + format.rounding * std::exp(e)) +
               std::max(kSmallestExp, format.floor / sum);
  }
  for (std::size_t n = 0; n < keys.size(); ++n) {
    const double share = moved[n] / least;
    for (std::int64_t d = 0; d < dim; ++d) {
      const double o = row.o[d], v = values[keys[n] * dim + d];
      row.o_bound[d] += share * (std::fabs(v - o) + std::fabs(o));
    }
  }
  row.lse_bound = std::max(std::log(most), -std::log(least)) + query.lse_shift_bound +
                  4 * kF32Round * (std::fabs(max) + std::fabs(row.lse));
  return row;
}

}  // namespace twofour::ref
