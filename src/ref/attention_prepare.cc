// The prepared K of int8 (rule 5), by definition.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ref/attention.h"
#include "ref/attention_inputs.h"

namespace twofour::ref {
namespace {

/// Does some row of the sequence and some query head of the group see key j?
bool seen_by_group(const Inputs& inputs, const Sequence& s, std::int64_t kv_head, std::int64_t j) {
  const std::int64_t group = inputs.queries_per_kv_head();
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
      if (inputs.live(s, head, i, j)) return true;
    }
  }
  return false;
}

bool is_finite_key(const Inputs& inputs, const Sequence& s, std::int64_t kv_head, std::int64_t j) {
  for (std::int64_t d = 0; d < inputs.problem().head_dim; ++d) {
    if (!std::isfinite(inputs.k(s, j, kv_head, d))) return false;
  }
  return true;
}

void prepare_sequence(const Inputs& inputs, const Sequence& s, std::int64_t kv_head,
                      PreparedK* out) {
  const std::int64_t dim = inputs.problem().head_dim;
  std::vector<bool> live(s.seqlen_k), finite(s.seqlen_k);
  std::vector<double> sum(dim);
  std::int64_t count = 0;
  for (std::int64_t j = 0; j < s.seqlen_k; ++j) {
    live[j] = seen_by_group(inputs, s, kv_head, j);
    finite[j] = is_finite_key(inputs, s, kv_head, j);
    if (!live[j] || !finite[j]) continue;
    ++count;
    for (std::int64_t d = 0; d < dim; ++d) sum[d] += inputs.k(s, j, kv_head, d);
  }
  float* mean = &out->mean[(kv_head * inputs.problem().batch + s.index) * dim];
  for (std::int64_t d = 0; d < dim; ++d) {
    mean[d] = count > 0 ? static_cast<float>(sum[d] / static_cast<double>(count)) : 0.0f;
  }

  for (std::int64_t begin = 0; begin < s.seqlen_k; begin += out->block) {
    const std::int64_t end = std::min<std::int64_t>(begin + out->block, s.seqlen_k);
    float amax = 0;
    bool poisoned = false;
    for (std::int64_t j = begin; j < end; ++j) {
      if (!live[j]) continue;
      poisoned |= !finite[j];
      for (std::int64_t d = 0; finite[j] && d < dim; ++d) {
        amax = std::max(amax, std::fabs(inputs.k(s, j, kv_head, d) - mean[d]));
      }
    }
    poisoned |= std::isinf(amax);  // a difference of finite numbers may overflow
    float scale = amax / 127.0f;
    if (scale == 0) scale = 1;
    const std::int64_t number = out->block_offset[s.index] + begin / out->block;
    out->scale[kv_head * out->blocks + number] =
        poisoned ? std::numeric_limits<float>::quiet_NaN() : scale;
    for (std::int64_t j = begin; j < end; ++j) {
      if (!live[j] || poisoned) continue;  // codes stay 0
      for (std::int64_t d = 0; d < dim; ++d) {
        const float quotient = (inputs.k(s, j, kv_head, d) - mean[d]) / scale;
        const float code = std::clamp(std::nearbyint(quotient), -127.0f, 127.0f);
        out->codes[(kv_head * out->rows + s.first_key + j) * dim + d] =
            static_cast<std::int8_t>(code);
      }
    }
  }
}

}  // namespace

Result<PreparedK> prepare_k(const AttentionProblem& problem, const AttentionArgs& args) {
  Status status = validate(problem);
  if (!status.ok()) return status;
  AttentionProblem full = problem;
  full.sparsity = resolved(problem.sparsity, problem.head_dim);
  const Inputs inputs(full, args);
  PreparedK out;
  out.heads_kv = full.heads_kv;
  out.head_dim = full.head_dim;
  out.rows = inputs.keys();
  out.block = full.sparsity.block;
  for (std::int64_t b = 0; b < full.batch; ++b) {
    out.block_offset.push_back(out.blocks);
    out.blocks += (inputs.sequence(b).seqlen_k + out.block - 1) / out.block;
  }
  out.block_offset.push_back(out.blocks);
  out.codes.resize(out.heads_kv * out.rows * out.head_dim);
  out.scale.resize(out.heads_kv * out.blocks);
  out.mean.resize(out.heads_kv * full.batch * out.head_dim);
  for (std::int64_t kv_head = 0; kv_head < full.heads_kv; ++kv_head) {
    for (std::int64_t b = 0; b < full.batch; ++b) {
      prepare_sequence(inputs, inputs.sequence(b), kv_head, &out);
    }
  }
  return out;
}

}  // namespace twofour::ref
