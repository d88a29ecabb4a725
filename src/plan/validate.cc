// What can be wrong with a problem before any memory or device is looked at.
#include <algorithm>
#include <cmath>

#include "twofour/attention.h"

namespace twofour {
namespace {

// Positions and key numbers stay far from the ends of 64 bits, and packed offsets are int32.
constexpr std::int64_t kMaxExtent = 2147483647;
constexpr std::int64_t kMaxHeadDim = 512;

Status wrong(const std::string& field, const std::string& expected, const std::string& got) {
  return {Code::kInvalidArgument, field + ": expected " + expected + ", got " + got};
}

Status in_range(const char* field, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return {};
  return wrong(field, std::to_string(low) + ".." + std::to_string(high), std::to_string(value));
}

/// The bytes of a tensor, so that no later product of extents overflows; an empty axis counts as
/// one, since the strides of the other axes are still multiplied out.
Status fits(const char* name, std::initializer_list<std::int64_t> extents, std::int64_t bytes) {
  std::int64_t total = bytes;
  for (std::int64_t extent : extents) {
    if (__builtin_mul_overflow(total, std::max<std::int64_t>(extent, 1), &total)) {
      return wrong(name, "less than 2^63 bytes", "a larger product of extents");
    }
  }
  return {};
}

Status validate_shape(const AttentionProblem& p) {
  struct Bound {
    const char* field;
    std::int64_t value, low, high;
  };
  for (const Bound& bound :
       {Bound{"batch", p.batch, 0, kMaxExtent}, Bound{"heads_q", p.heads_q, 1, kMaxExtent},
        Bound{"heads_kv", p.heads_kv, 1, kMaxExtent}, Bound{"head_dim", p.head_dim, 1, kMaxHeadDim},
        Bound{"head_dim_v", p.head_dim_v, 1, kMaxHeadDim},
        Bound{"seqlen_q", p.seqlen_q, 0, kMaxExtent}, Bound{"seqlen_k", p.seqlen_k, 0, kMaxExtent},
        Bound{"key_splits", p.key_splits, 0, kMaxKeySplits}}) {
    Status status = in_range(bound.field, bound.value, bound.low, bound.high);
    if (!status.ok()) return status;
  }
  if (p.heads_q % p.heads_kv != 0) {
    return wrong("heads_q", "a multiple of heads_kv = " + std::to_string(p.heads_kv),
                 std::to_string(p.heads_q));
  }
  if (p.sparsity.qk == QKProduct::kNm24 && p.head_dim % 4 != 0) {
    return wrong("head_dim", "a multiple of 4 with qk nm24", std::to_string(p.head_dim));
  }
  return {};
}

Status validate_packed(const AttentionProblem& p) {
  if (!p.packed) return {};
  if (p.has_mask) return wrong("has_mask", "no mask with packed", "true");
  struct Side {
    const char* total_name;
    std::int64_t total;
    const char* longest_name;
    std::int64_t longest;
  };
  for (const Side& side : {Side{"total_q", p.total_q, "seqlen_q", p.seqlen_q},
                           Side{"total_k", p.total_k, "seqlen_k", p.seqlen_k}}) {
    Status status = in_range(side.total_name, side.total, 0, kMaxExtent);
    if (!status.ok()) return status;
    if (side.total > p.batch * side.longest) {
      return wrong(side.total_name,
                   std::string("at most batch * ") + side.longest_name + " = " +
                       std::to_string(p.batch * side.longest),
                   std::to_string(side.total));
    }
  }
  return {};
}

Status validate_bytes(const AttentionProblem& p) {
  const auto element = static_cast<std::int64_t>(size_of(p.dtype));
  const std::int64_t batch_q = p.packed ? 1 : p.batch;
  const std::int64_t rows_q = p.packed ? p.total_q : p.seqlen_q;
  const std::int64_t rows_k = p.packed ? p.total_k : p.seqlen_k;
  Status status = fits("q", {batch_q, rows_q, p.heads_q, p.head_dim}, element);
  if (status.ok()) status = fits("k", {batch_q, rows_k, p.heads_kv, p.head_dim}, element);
  if (status.ok()) status = fits("v", {batch_q, rows_k, p.heads_kv, p.head_dim_v}, element);
  if (status.ok()) status = fits("o", {batch_q, rows_q, p.heads_q, p.head_dim_v}, element);
  if (status.ok()) status = fits("lse", {batch_q, rows_q, p.heads_q}, sizeof(float));
  if (status.ok() && p.has_mask) {
    status = fits("mask", {p.batch, p.heads_q, p.seqlen_q, p.seqlen_k}, 1);
  }
  if (status.ok() && p.trace) {
    // A bit per pair and a byte per half-block, each row rounded up to a word.
    status = fits("decisions", {batch_q, p.heads_q, rows_q, p.seqlen_k + 64}, 1);
  }
  return status;
}

}  // namespace

Status validate(const AttentionProblem& p) {
  if (p.dtype != DType::kF32 && p.dtype != DType::kF16 && p.dtype != DType::kBF16) {
    return wrong("dtype", "fp32, fp16 or bf16", to_string(p.dtype));
  }
  Status status = validate(p.sparsity);
  if (status.ok()) status = validate_shape(p);
  if (status.ok()) status = validate_packed(p);
  if (status.ok()) status = validate_bytes(p);
  if (!status.ok()) return status;
  if (p.align != Align::kBottomRight && p.align != Align::kTopLeft) {
    return wrong("align", "bottom-right or top-left", std::to_string(int(p.align)));
  }
  if (p.window.left < -1) return wrong("window.left", ">= -1", std::to_string(p.window.left));
  if (p.window.right < -1) return wrong("window.right", ">= -1", std::to_string(p.window.right));
  if (p.scale && !std::isfinite(*p.scale)) {
    return wrong("scale", "a finite number", std::to_string(*p.scale));
  }
  return {};
}

}  // namespace twofour
