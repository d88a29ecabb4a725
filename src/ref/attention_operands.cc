#include "ref/attention_operands.h"

#include <algorithm>
#include <limits>

#include "ref/attention_pattern.h"

namespace twofour::ref {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// x times a [D,D] matrix: fp32 in ascending order of the summed channel, then the input dtype.
/// `error` is how far another order of summation may end up, the rounding to the dtype included.
void multiply(const std::vector<float>& x, const float* t, DType dtype, double* value,
              double* error) {
  const std::size_t dim = x.size();
  for (std::size_t e = 0; e < dim; ++e) {
    float sum = 0;
    double magnitude = 0;
    for (std::size_t d = 0; d < dim; ++d) {
      sum = std::fma(x[d], t[d * dim + e], sum);
      magnitude += std::fabs(double{x[d]} * t[d * dim + e]);
    }
    value[e] = round_to(dtype, sum);
    const double slack = 2 * kF32Round * static_cast<double>(dim) * magnitude;
    const double low = round_to(dtype, static_cast<float>(sum - slack));
    const double high = round_to(dtype, static_cast<float>(sum + slack));
    error[e] = std::max(high - value[e], value[e] - low);
  }
}

bool is_nm24(const Inputs& inputs) { return inputs.problem().sparsity.qk == QKProduct::kNm24; }
bool is_int8(const Inputs& inputs) { return inputs.problem().sparsity.qk == QKProduct::kInt8; }

const KeyTransform* transform_of(const Inputs& inputs) {
  return is_nm24(inputs) ? inputs.args().transform : nullptr;
}

/// Quantises a row: one scale amax/127 (0 becomes 1), codes half to even.
void quantise(const std::vector<float>& x, Query* query) {
  float amax = 0;
  bool finite = true;
  for (float element : x) {
    amax = std::max(amax, std::fabs(element));
    finite &= std::isfinite(element);
  }
  float scale = amax / 127.0f;
  if (scale == 0) scale = 1;
  if (!finite) scale = std::numeric_limits<float>::quiet_NaN();
  query->scale = scale;
  for (float element : x) {
    const double quotient = double{element} / scale;
    const double code = finite ? std::clamp(std::nearbyint(quotient), -127.0, 127.0) : 0.0;
    query->value.push_back(code);
    // A quotient next to a half, but not on it, may be rounded either way by fp32 division.
    const double from_half = std::fabs(std::fabs(quotient - std::nearbyint(quotient)) - 0.5);
    const bool doubtful = from_half != 0 && from_half <= 3 * kF32Round * std::fabs(quotient);
    query->error.push_back(finite && doubtful ? 1 : 0);
  }
}

/// Marks the channels whose selection could change within the error of q'.
void mark_doubtful(const std::vector<bool>& kept, const float* w, Query* query) {
  query->doubtful.assign(query->value.size(), 0);
  const auto weight = [&](std::size_t d) { return w ? double{w[d]} : 1.0; };
  for (std::size_t first = 0; first + 4 <= query->value.size(); first += 4) {
    bool any = false;
    for (std::size_t a = first; a < first + 4; ++a) {
      for (std::size_t b = first; b < first + 4; ++b) {
        if (!kept[a] || kept[b] || query->error[a] + query->error[b] == 0) continue;
        const double lowest = weight(a) * (std::fabs(query->value[a]) - query->error[a]);
        const double highest = weight(b) * (std::fabs(query->value[b]) + query->error[b]);
        if (highest * (1 + 4 * kF32Round) < lowest) continue;
        for (std::size_t d : {a, b}) {
          query->doubtful[d] = std::fabs(query->value[d]) + query->error[d];
        }
        any = true;
      }
    }
    query->doubtful_groups += any;
  }
}

/// A dot product and the sum of the magnitudes of its terms.
struct Sums {
  double dot = 0;
  double magnitude = 0;
};

/// In four lanes, for speed; fp64 leaves the order without consequence.
Sums sums_over_all(const double* q, const double* k, std::int64_t dim) {
  double dot[4] = {}, magnitude[4] = {};
  std::int64_t d = 0;
  for (; d + 4 <= dim; d += 4) {
    for (int lane = 0; lane < 4; ++lane) {
      const double term = q[d + lane] * k[d + lane];
      dot[lane] += term;
      magnitude[lane] += std::fabs(term);
    }
  }
  for (; d < dim; ++d) {
    dot[0] += q[d] * k[d];
    magnitude[0] += std::fabs(q[d] * k[d]);
  }
  return {dot[0] + dot[1] + dot[2] + dot[3],
          magnitude[0] + magnitude[1] + magnitude[2] + magnitude[3]};
}

Sums sums_over(const double* q, const double* k, const std::vector<std::int64_t>& channels) {
  Sums sums;
  for (std::int64_t d : channels) {
    sums.dot += q[d] * k[d];
    sums.magnitude += std::fabs(q[d] * k[d]);
  }
  return sums;
}

/// How far the dot product may be off because a kernel's q' or k' is.
double operand_error(const Query& query, const Keys& keys, std::int64_t key, std::int64_t dim,
                     bool pruned) {
  const bool exact_query = query.error.empty(), exact_keys = keys.error.empty();
  if (exact_query && exact_keys) return 0;
  const double* k = &keys.value[key * dim];
  double sum = 0;
  const auto add = [&](std::int64_t d) {
    const double q_error = exact_query ? 0 : query.error[d];
    const double k_error = exact_keys ? 0 : keys.error[key * dim + d];
    if (q_error > 0) sum += q_error * std::fabs(k[d]);
    if (k_error > 0) sum += (std::fabs(query.value[d]) + q_error) * k_error;
  };
  if (!pruned) {
    for (std::int64_t d = 0; d < dim; ++d) add(d);
    return sum;
  }
  for (std::int64_t d : query.kept) add(d);
  for (std::int64_t d = 0; query.doubtful_groups > 0 && d < dim; ++d) {
    if (query.doubtful[d] > 0) sum += query.doubtful[d] * std::fabs(k[d]);
  }
  return sum;
}

}  // namespace

std::vector<double> make_values(const Inputs& inputs, const Sequence& s, std::int64_t kv_head) {
  std::vector<double> values;
  for (std::int64_t j = 0; j < s.seqlen_k; ++j) {
    for (std::int64_t d = 0; d < inputs.problem().head_dim_v; ++d) {
      values.push_back(inputs.v(s, j, kv_head, d));
    }
  }
  return values;
}

Keys make_keys(const Inputs& inputs, const Sequence& s, std::int64_t kv_head,
               const PreparedK* prepared) {
  const std::int64_t dim = inputs.problem().head_dim;
  Keys keys;
  keys.value.resize(s.seqlen_k * dim);
  if (is_int8(inputs)) {
    for (std::int64_t j = 0; j < s.seqlen_k; ++j) {
      for (std::int64_t d = 0; d < dim; ++d) {
        const std::int64_t row = kv_head * prepared->rows + s.first_key + j;
        keys.value[j * dim + d] = prepared->codes[row * dim + d];
      }
    }
    const std::int64_t begin = prepared->block_offset[s.index];
    const std::int64_t end = prepared->block_offset[s.index + 1];
    for (std::int64_t b = begin; b < end; ++b) {
      keys.scale.push_back(prepared->scale[kv_head * prepared->blocks + b]);
    }
    for (std::int64_t d = 0; d < dim; ++d) {
      const std::int64_t row = kv_head * inputs.problem().batch + s.index;
      keys.mean.push_back(prepared->mean[row * dim + d]);
    }
    return keys;
  }
  const KeyTransform* transform = transform_of(inputs);
  if (transform) keys.error.resize(keys.value.size());
  std::vector<float> k(dim);
  for (std::int64_t j = 0; j < s.seqlen_k; ++j) {
    for (std::int64_t d = 0; d < dim; ++d) k[d] = inputs.k(s, j, kv_head, d);
    if (transform) {
      multiply(k, transform->t_k + kv_head * dim * dim, inputs.problem().dtype,
               &keys.value[j * dim], &keys.error[j * dim]);
    } else {
      std::copy(k.begin(), k.end(), keys.value.begin() + j * dim);
    }
  }
  return keys;
}

std::vector<bool> kept_channels(const std::vector<double>& q, const float* w) {
  std::vector<bool> kept;
  for (std::size_t first = 0; first + 4 <= q.size(); first += 4) {
    std::vector<double> size;  // fp32 products, as a kernel compares them
    for (std::size_t d = first; d < first + 4; ++d) {
      size.push_back((w ? w[d] : 1.0f) * std::fabs(static_cast<float>(q[d])));
    }
    for (bool keep : keep_largest(size, 2)) kept.push_back(keep);
  }
  return kept;
}

Query make_query(const Inputs& inputs, const Sequence& s, std::int64_t i, std::int64_t head,
                 const Keys& keys) {
  const std::int64_t dim = inputs.problem().head_dim;
  const std::int64_t kv_head = head / inputs.queries_per_kv_head();
  std::vector<float> q(dim);
  for (std::int64_t d = 0; d < dim; ++d) q[d] = inputs.q(s, i, head, d);
  Query query;
  if (is_int8(inputs)) {
    quantise(q, &query);
    double magnitude = 0;
    for (std::int64_t d = 0; d < dim; ++d) {
      query.lse_shift += inputs.scale() * (q[d] * keys.mean[d]);
      magnitude += std::fabs(inputs.scale() * (q[d] * keys.mean[d]));
    }
    query.lse_shift_bound = 2 * static_cast<double>(dim + 8) * kF32Round * magnitude;
    return query;
  }
  query.value.assign(q.begin(), q.end());
  if (!is_nm24(inputs)) return query;

  const KeyTransform* transform = transform_of(inputs);
  query.error.assign(dim, 0);
  if (transform) {
    multiply(q, transform->t_q + kv_head * dim * dim, inputs.problem().dtype, query.value.data(),
             query.error.data());
  }
  const float* w = transform && transform->w ? transform->w + kv_head * dim : nullptr;
  const std::vector<bool> kept = kept_channels(query.value, w);
  for (std::int64_t d = 0; d < dim; ++d) {
    if (kept[d]) query.kept.push_back(d);
  }
  mark_doubtful(kept, w, &query);
  return query;
}

Score score_of(const Inputs& inputs, const Query& query, const Keys& keys, std::int64_t key,
               bool pruned) {
  const std::int64_t dim = inputs.problem().head_dim;
  const double* q = query.value.data();
  const double* k = &keys.value[key * dim];
  const Sums sums = pruned ? sums_over(q, k, query.kept) : sums_over_all(q, k, dim);
  double magnitude = sums.magnitude;
  double unit = inputs.scale();
  double roundings = 2 * static_cast<double>(dim + 8);
  if (!keys.scale.empty()) {
    // The integer sum is exact; only the products with the three scales round.
    unit *= query.scale * keys.scale[key / inputs.problem().sparsity.block];
    roundings = 8;
    magnitude = std::fabs(sums.dot);
  }
  Score score;
  score.value = unit * sums.dot;
  score.bound = std::fabs(unit) *
                (roundings * kF32Round * magnitude + operand_error(query, keys, key, dim, pruned));
  // Sums that may leave the range of fp32 are not known to a kernel at all.
  const double largest = magnitude * std::max(1.0, std::fabs(unit));
  if (largest > std::numeric_limits<float>::max() / 4) score.bound = kInfinity;
  return score;
}

}  // namespace twofour::ref
