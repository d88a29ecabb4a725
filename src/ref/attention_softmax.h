// Softmax and P.V of one row over the keys that were kept, with the bound on a kernel's error.
#pragma once

#include <vector>

#include "ref/attention.h"
#include "ref/attention_operands.h"

namespace twofour::ref {

struct RowResult {
  std::vector<double> o;        // [Dv]
  std::vector<double> o_bound;  // [Dv]
  double lse = 0;
  double lse_bound = 0;
};

/// `keys` and `scores` are those kept, `values` is V of the head, [N,Dv]. No keys: zeros and -inf.
RowResult softmax_row(const std::vector<double>& values, std::int64_t dim,
                      const std::vector<std::int64_t>& keys, const std::vector<Score>& scores,
                      const Query& query, const WeightFormat& format = {});

}  // namespace twofour::ref
