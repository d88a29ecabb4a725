// A problem with its tensors, in any of the layouts a caller may use.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "core/half.h"
#include "random.h"
#include "twofour/attention.h"

namespace twofour::test {

/// How the tensors lie in memory.
enum class Layout {
  kContiguous,  // [B,M,H,D]
  kBhmd,        // PyTorch's [B,H,M,D], seen as [B,M,H,D]
  kFused,       // q, k and v interleaved in one row, an odd number of elements apart
};

/// A tensor of the input dtype with its own memory, read and written by index.
class Tensor {
 public:
  Tensor() = default;
  /// `shape` is [B,M,H,D]; a packed tensor has B = 1 and its view drops that axis.
  Tensor(DType dtype, std::array<std::int64_t, 4> shape, Layout layout, bool packed)
      : dtype_(dtype), shape_(shape), packed_(packed) {
    const auto [b, m, h, d] = shape;
    if (layout == Layout::kBhmd) {
      stride_ = {m * h * d, d, m * d, 1};
    } else {
      const std::int64_t row = layout == Layout::kFused ? 2 * h * d + 3 : h * d;
      offset_ = layout == Layout::kFused ? 3 : 0;
      stride_ = {m * row, row, d, 1};
    }
    const std::int64_t elements = offset_ + b * std::max(stride_[0], stride_[2] * h) + 1;
    data_.assign(elements * size_of(dtype), 0xFF);  // NaN between the rows
    for (std::int64_t i = 0; i < b * m * h * d; ++i) {
      set(i / (m * h * d), i / (h * d) % m, i / d % h, i % d, 0);
    }
  }

  float get(std::int64_t b, std::int64_t m, std::int64_t h, std::int64_t d) const {
    return load_float(data_.data(), dtype_, at(b, m, h, d));
  }
  void set(std::int64_t b, std::int64_t m, std::int64_t h, std::int64_t d, double value) {
    store_float(data_.data(), dtype_, at(b, m, h, d), static_cast<float>(value));
  }
  TensorView view() {
    TensorView view;
    view.data = data_.data() + offset_ * size_of(dtype_);
    view.dtype = dtype_;
    view.rank = packed_ ? 3 : 4;
    for (int axis = 0; axis < view.rank; ++axis) {
      view.shape[axis] = shape_[axis + packed_];
      view.stride[axis] = stride_[axis + packed_];
    }
    return view;
  }
  const std::array<std::int64_t, 4>& shape() const { return shape_; }
  const std::vector<std::uint8_t>& bytes() const { return data_; }

 private:
  std::int64_t at(std::int64_t b, std::int64_t m, std::int64_t h, std::int64_t d) const {
    return offset_ + b * stride_[0] + m * stride_[1] + h * stride_[2] + d * stride_[3];
  }

  DType dtype_ = DType::kF32;
  std::array<std::int64_t, 4> shape_{};
  std::array<std::int64_t, 4> stride_{};
  std::int64_t offset_ = 0;
  bool packed_ = false;
  std::vector<std::uint8_t> data_;
};

/// Tensors of one call; every element starts at 0, the mask at true.
struct AttentionCase {
  AttentionProblem problem;
  Tensor q, k, v;
  std::vector<std::int32_t> cu_q, cu_k;  // packed
  std::vector<std::uint8_t> mask;        // [B,Hq,M,N] or fewer elements with zero strides
  std::array<std::int64_t, 4> mask_stride{};
  std::vector<float> t_q, t_k, w;
  KeyTransform transform;
  const PreparedK* prepared = nullptr;

  AttentionArgs args() {
    AttentionArgs args;
    args.q = q.view();
    args.k = k.view();
    args.v = v.view();
    if (problem.packed) {
      args.cu_seqlens_q = cu_q.data();
      args.cu_seqlens_k = cu_k.data();
    }
    if (problem.has_mask) {
      args.mask.data = mask.data();
      args.mask.dtype = DType::kBool;
      args.mask.rank = 4;
      args.mask.shape = {problem.batch, problem.heads_q, problem.seqlen_q, problem.seqlen_k};
      for (int axis = 0; axis < 4; ++axis) args.mask.stride[axis] = mask_stride[axis];
    }
    if (problem.has_transform) {
      transform = {problem.heads_kv, problem.head_dim, t_q.data(), t_k.data(),
                   w.empty() ? nullptr : w.data()};
      args.transform = &transform;
    }
    args.prepared_k = prepared;
    return args;
  }

  /// A mask with an element for every pair, all true.
  void full_mask() {
    problem.has_mask = true;
    mask.assign(problem.batch * problem.heads_q * problem.seqlen_q * problem.seqlen_k, 1);
    const std::int64_t row = problem.seqlen_k, head = row * problem.seqlen_q;
    mask_stride = {problem.heads_q * head, head, row, 1};
  }
  /// A mask of keys alone, [B,1,1,N] broadcast, all true.
  void key_mask() {
    problem.has_mask = true;
    mask.assign(problem.batch * problem.seqlen_k, 1);
    mask_stride = {problem.seqlen_k, 0, 0, 1};
  }
  void set_mask(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j, bool live) {
    mask[b * mask_stride[0] + h * mask_stride[1] + i * mask_stride[2] + j * mask_stride[3]] = live;
  }
};

/// Zero tensors for a padded problem.
inline AttentionCase zero_case(const AttentionProblem& problem,
                               Layout layout = Layout::kContiguous) {
  AttentionCase c;
  c.problem = problem;
  const AttentionProblem& p = problem;
  c.q = Tensor(p.dtype, {p.batch, p.seqlen_q, p.heads_q, p.head_dim}, layout, false);
  c.k = Tensor(p.dtype, {p.batch, p.seqlen_k, p.heads_kv, p.head_dim}, layout, false);
  c.v = Tensor(p.dtype, {p.batch, p.seqlen_k, p.heads_kv, p.head_dim_v}, layout, false);
  return c;
}

/// Zero tensors for packed sequences of these lengths; fills the problem's batch and totals.
inline AttentionCase zero_packed(AttentionProblem problem, const std::vector<std::int32_t>& len_q,
                                 const std::vector<std::int32_t>& len_k) {
  AttentionCase c;
  problem.packed = true;
  problem.batch = static_cast<std::int64_t>(len_q.size());
  problem.seqlen_q = problem.seqlen_k = 0;
  c.cu_q = c.cu_k = {0};
  for (std::size_t b = 0; b < len_q.size(); ++b) {
    c.cu_q.push_back(c.cu_q.back() + len_q[b]);
    c.cu_k.push_back(c.cu_k.back() + len_k[b]);
    problem.seqlen_q = std::max<std::int64_t>(problem.seqlen_q, len_q[b]);
    problem.seqlen_k = std::max<std::int64_t>(problem.seqlen_k, len_k[b]);
  }
  problem.total_q = c.cu_q.back();
  problem.total_k = c.cu_k.back();
  c.problem = problem;
  const AttentionProblem& p = problem;
  c.q = Tensor(p.dtype, {1, p.total_q, p.heads_q, p.head_dim}, Layout::kContiguous, true);
  c.k = Tensor(p.dtype, {1, p.total_k, p.heads_kv, p.head_dim}, Layout::kContiguous, true);
  c.v = Tensor(p.dtype, {1, p.total_k, p.heads_kv, p.head_dim_v}, Layout::kContiguous, true);
  return c;
}

/// Kinds of content.
enum class Fill {
  kRandom,   // independent standard normals
  kPeaky,    // as real activations: a few keys take nearly all of the softmax
  kFlat,     // all scores nearly equal
  kHostile,  // scores of about 1e4, a constant added to every key, large values
};

inline const char* to_string(Fill fill) {
  switch (fill) {
    case Fill::kRandom:
      return "random";
    case Fill::kPeaky:
      return "peaky";
    case Fill::kFlat:
      return "flat";
    case Fill::kHostile:
      return "hostile";
  }
  return "?";
}

inline void fill_tensor(Tensor& tensor, Random& random, double size, double shift = 0) {
  const auto& shape = tensor.shape();
  for (std::int64_t b = 0; b < shape[0]; ++b) {
    for (std::int64_t m = 0; m < shape[1]; ++m) {
      for (std::int64_t h = 0; h < shape[2]; ++h) {
        for (std::int64_t d = 0; d < shape[3]; ++d) {
          tensor.set(b, m, h, d, size * random.normal() + shift);
        }
      }
    }
  }
}

inline void fill_case(AttentionCase& c, Fill fill, std::uint64_t seed) {
  Random random(seed);
  const double large_v = c.problem.dtype == DType::kF16 ? 1e4 : 1e6;
  switch (fill) {
    case Fill::kRandom:
      fill_tensor(c.q, random, 1);
      fill_tensor(c.k, random, 1);
      fill_tensor(c.v, random, 1);
      break;
    case Fill::kPeaky:
      fill_tensor(c.q, random, 2);
      fill_tensor(c.k, random, 2, 0.5);
      fill_tensor(c.v, random, 1);
      break;
    case Fill::kFlat:
      fill_tensor(c.q, random, 1e-2);
      fill_tensor(c.k, random, 1e-2);
      fill_tensor(c.v, random, 1, 3);
      break;
    case Fill::kHostile:
      fill_tensor(c.q, random, 100);
      fill_tensor(c.k, random, 100, 30);
      fill_tensor(c.v, random, large_v);
      break;
  }
}

/// A well-conditioned random T per KV head with T^-T, and weights in [0.5, 2).
inline void random_transform(AttentionCase& c, std::uint64_t seed) {
  Random random(seed);
  const std::int64_t dim = c.problem.head_dim;
  c.problem.has_transform = true;
  c.t_q.assign(c.problem.heads_kv * dim * dim, 0);
  c.t_k.assign(c.problem.heads_kv * dim * dim, 0);
  c.w.resize(c.problem.heads_kv * dim);
  for (float& w : c.w) w = static_cast<float>(0.5 + 1.5 * random.uniform());
  for (std::int64_t head = 0; head < c.problem.heads_kv; ++head) {
    // T = H D with a reflection H = I - 2 u u^T and a diagonal D, so T^-T = H D^-1.
    std::vector<double> u(dim);
    double norm = 0;
    for (double& x : u) {
      x = random.normal();
      norm += x * x;
    }
    for (double& x : u) x /= std::sqrt(norm);
    for (std::int64_t e = 0; e < dim; ++e) {
      const double stretch = std::exp2(std::round(2 * random.normal()));
      for (std::int64_t d = 0; d < dim; ++d) {
        const double reflection = (d == e) - 2 * u[d] * u[e];
        const std::int64_t at = (head * dim + d) * dim + e;
        c.t_q[at] = static_cast<float>(reflection * stretch);
        c.t_k[at] = static_cast<float>(reflection / stretch);
      }
    }
  }
}

}  // namespace twofour::test
