// Typed reads of the arguments, and which (row, key) pairs are live (rule 1).
#pragma once

#include <cmath>
#include <cstdint>

#include "core/half.h"
#include "twofour/attention.h"

namespace twofour::ref {

inline constexpr std::int64_t kRowBlockPositions = 192;
inline constexpr std::int64_t kUnitPositions = 64;

/// Quotient rounded down: positions before the first key are negative.
inline std::int64_t floor_quotient(std::int64_t a, std::int64_t b) {
  const std::int64_t q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

/// One sequence of a call.
struct Sequence {
  std::int64_t index = 0;
  std::int64_t seqlen_q = 0;
  std::int64_t seqlen_k = 0;
  std::int64_t first_row = 0;       // number of row 0 in memory order
  std::int64_t first_key = 0;       // number of key 0 in memory order
  std::int64_t first_position = 0;  // position of row 0
};

class Inputs {
 public:
  Inputs(const AttentionProblem& problem, const AttentionArgs& args)
      : problem_(problem), args_(args) {}

  const AttentionProblem& problem() const { return problem_; }
  const AttentionArgs& args() const { return args_; }

  std::int64_t rows() const {
    return problem_.packed ? problem_.total_q : problem_.batch * problem_.seqlen_q;
  }
  std::int64_t keys() const {
    return problem_.packed ? problem_.total_k : problem_.batch * problem_.seqlen_k;
  }
  std::int64_t queries_per_kv_head() const { return problem_.heads_q / problem_.heads_kv; }

  float scale() const {
    if (problem_.scale) return *problem_.scale;
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(problem_.head_dim)));
  }

  Sequence sequence(std::int64_t b) const {
    Sequence s;
    s.index = b;
    if (problem_.packed) {
      s.first_row = args_.cu_seqlens_q[b];
      s.first_key = args_.cu_seqlens_k[b];
      s.seqlen_q = args_.cu_seqlens_q[b + 1] - s.first_row;
      s.seqlen_k = args_.cu_seqlens_k[b + 1] - s.first_key;
    } else {
      s.first_row = b * problem_.seqlen_q;
      s.first_key = b * problem_.seqlen_k;
      s.seqlen_q = problem_.seqlen_q;
      s.seqlen_k = problem_.seqlen_k;
    }
    const bool bottom_right = problem_.causal && problem_.align == Align::kBottomRight;
    s.first_position = bottom_right ? s.seqlen_k - s.seqlen_q : 0;
    return s;
  }

  float q(const Sequence& s, std::int64_t i, std::int64_t head, std::int64_t d) const {
    return read(args_.q, s.index, i, s.first_row, head, d);
  }
  float k(const Sequence& s, std::int64_t j, std::int64_t kv_head, std::int64_t d) const {
    return read(args_.k, s.index, j, s.first_key, kv_head, d);
  }
  float v(const Sequence& s, std::int64_t j, std::int64_t kv_head, std::int64_t d) const {
    return read(args_.v, s.index, j, s.first_key, kv_head, d);
  }

  /// Rule 1 without the mask: does position p see key j?
  bool position_sees(std::int64_t p, std::int64_t j) const {
    if (problem_.causal && j > p) return false;
    // Differences, not p + right: a window may be as wide as the type.
    if (problem_.window.left >= 0 && p - j > problem_.window.left) return false;
    if (problem_.window.right >= 0 && j - p > problem_.window.right) return false;
    return true;
  }

  bool mask(const Sequence& s, std::int64_t head, std::int64_t i, std::int64_t j) const {
    if (!problem_.has_mask) return true;
    const auto& stride = args_.mask.stride;
    const std::int64_t at = s.index * stride[0] + head * stride[1] + i * stride[2] + j * stride[3];
    return static_cast<const std::uint8_t*>(args_.mask.data)[at] != 0;
  }

  /// Rule 1: is the pair of row i and key j live for this head?
  bool live(const Sequence& s, std::int64_t head, std::int64_t i, std::int64_t j) const {
    return position_sees(s.first_position + i, j) && mask(s, head, i, j);
  }

 private:
  float read(const ConstTensorView& view, std::int64_t b, std::int64_t i, std::int64_t first,
             std::int64_t head, std::int64_t d) const {
    const auto& stride = view.stride;
    const std::int64_t at = problem_.packed
                                ? (first + i) * stride[0] + head * stride[1] + d * stride[2]
                                : b * stride[0] + i * stride[1] + head * stride[2] + d * stride[3];
    return load_float(view.data, problem_.dtype, at);
  }

  const AttentionProblem& problem_;
  const AttentionArgs& args_;
};

}  // namespace twofour::ref
