// Inputs of a case: layouts, masks, and numbers that stress a kernel in a chosen way.
#include <cmath>
#include <limits>
#include <numbers>

#include "core/half.h"
#include "io/cases.h"

namespace twofour::io {
namespace {

/// splitmix64 and Box-Muller: the same numbers on every platform, unlike std::normal_distribution.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(bits() % std::uint64_t(n));
  }
  float normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return static_cast<float>(radius * std::cos(2 * std::numbers::pi * uniform()));
  }

 private:
  std::uint64_t state_;
};

/// FNV-1a: the case's text is its seed.
std::uint64_t seed_of(const std::string& text) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

/// A view [B,L,H,D] (packed: [T,H,D] seen with one batch) and typed access to it.
struct Rows {
  TensorView view;
  bool packed;
  std::int64_t batch() const { return packed ? 1 : view.shape[0]; }
  std::int64_t rows() const { return view.shape[packed ? 0 : 1]; }
  std::int64_t heads() const { return view.shape[packed ? 1 : 2]; }
  std::int64_t dim() const { return view.shape[packed ? 2 : 3]; }
  std::int64_t at(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d) const {
    const auto& s = view.stride;
    return packed ? i * s[0] + h * s[1] + d * s[2] : b * s[0] + i * s[1] + h * s[2] + d * s[3];
  }
  float get(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d) const {
    return load_float(view.data, view.dtype, at(b, i, h, d));
  }
  void set(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d, float value) const {
    store_float(view.data, view.dtype, at(b, i, h, d), value);
  }
  template <class F>
  void fill(F&& value) const {
    for (std::int64_t b = 0; b < batch(); ++b)
      for (std::int64_t i = 0; i < rows(); ++i)
        for (std::int64_t h = 0; h < heads(); ++h)
          for (std::int64_t d = 0; d < dim(); ++d) set(b, i, h, d, value(b, i, h, d));
  }
};

/// One sequence of a case, in the numbering of Rows.
struct Span {
  std::int64_t b, first_row, rows, first_key, keys, first_position;
};

std::vector<Span> spans_of(const Case& c) {
  const AttentionProblem& p = c.problem;
  std::vector<Span> spans;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    Span span{b, 0, p.seqlen_q, 0, p.seqlen_k, 0};
    if (p.packed) {
      const auto i = static_cast<std::size_t>(b);
      span = {0,
              c.cu_seqlens_q[i],
              c.cu_seqlens_q[i + 1] - c.cu_seqlens_q[i],
              c.cu_seqlens_k[i],
              c.cu_seqlens_k[i + 1] - c.cu_seqlens_k[i],
              0};
    }
    if (p.causal && p.align == Align::kBottomRight) span.first_position = span.keys - span.rows;
    spans.push_back(span);
  }
  return spans;
}

bool live(const AttentionProblem& p, const AttentionArgs& args, const Span& span, std::int64_t h,
          std::int64_t i, std::int64_t j) {
  const std::int64_t position = span.first_position + i;
  if (p.causal && j > position) return false;
  if (p.window.left >= 0 && position - j > p.window.left) return false;
  if (p.window.right >= 0 && j - position > p.window.right) return false;
  if (!p.has_mask) return true;
  const auto& s = args.mask.stride;
  return static_cast<const std::uint8_t*>(
             args.mask.data)[span.b * s[0] + h * s[1] + i * s[2] + j * s[3]] != 0;
}

/// The first key of the sequence that no row (or some row, with `wanted`) of any head sees; -1 when
/// there is none.
template <class F>
void for_each_key(const Case& c, const AttentionArgs& args, const Span& span, F&& visit) {
  for (std::int64_t j = 0; j < span.keys; ++j) {
    bool seen = false;
    for (std::int64_t h = 0; h < c.problem.heads_q && !seen; ++h)
      for (std::int64_t i = 0; i < span.rows && !seen; ++i)
        seen = live(c.problem, args, span, h, i, j);
    visit(j, seen);
  }
}

void make_mask(const Case& c, Random& random, CaseMemory& memory) {
  const AttentionProblem& p = c.problem;
  if (!p.has_mask) return;
  const std::int64_t b = p.batch, h = p.heads_q, m = p.seqlen_q, n = p.seqlen_k;
  if (c.mask == CaseMask::kKeys) {
    memory.mask = make_tensor(DType::kBool, {b, n});
    for (std::byte& bit : memory.mask.bytes) bit = std::byte{random.uniform() < c.mask_density};
    ConstTensorView view = contiguous(memory.mask.bytes.data(), DType::kBool, {b, h, m, n});
    view.stride = {n, 0, 0, 1};
    memory.args.mask = view;
    return;
  }
  memory.mask = make_tensor(DType::kBool, {b, h, m, n});
  const std::int64_t tiles_m = m / 64 + 1, tiles_n = n / 64 + 1;
  std::vector<char> tiles;
  if (c.mask == CaseMask::kBlocks)
    for (std::int64_t t = 0; t < b * h * tiles_m * tiles_n; ++t)
      tiles.push_back(random.uniform() < c.mask_density);
  std::size_t at = 0;
  for (std::int64_t head = 0; head < b * h; ++head)
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        bool bit;
        if (c.mask == CaseMask::kBlocks) {
          const std::int64_t tile = (head * tiles_m + i / 64) * tiles_n + j / 64;
          bit = tiles[static_cast<std::size_t>(tile)] != 0;
        } else {
          bit = random.uniform() < c.mask_density && !(c.mask == CaseMask::kRows && i % 3 == 1);
        }
        memory.mask.bytes[at++] = std::byte{bit};
      }
  memory.args.mask = memory.mask.view();
}

/// A lower triangular basis with a unit-free diagonal and its exact-in-fp64 inverse transpose.
void make_transform(const Case& c, Random& random, CaseMemory& memory) {
  const AttentionProblem& p = c.problem;
  if (!p.has_transform) return;
  const auto heads = static_cast<std::size_t>(p.heads_kv);
  const auto dim = static_cast<std::size_t>(p.head_dim);
  memory.t_q.assign(heads * dim * dim, 0.f);
  memory.t_k.assign(heads * dim * dim, 0.f);
  memory.w.resize(heads * dim);
  for (float& weight : memory.w) weight = static_cast<float>(0.5 + random.uniform());
  const double spread = 0.5 / std::sqrt(static_cast<double>(dim));
  for (std::size_t head = 0; head < heads; ++head) {
    std::vector<double> basis(dim * dim, 0), inverse(dim * dim, 0);
    for (std::size_t row = 0; row < dim; ++row) {
      for (std::size_t col = 0; col < row; ++col) basis[row * dim + col] = spread * random.normal();
      basis[row * dim + row] = 0.5 + random.uniform();
    }
    for (std::size_t col = 0; col < dim; ++col)
      for (std::size_t row = col; row < dim; ++row) {
        double sum = row == col ? 1 : 0;
        for (std::size_t i = col; i < row; ++i)
          sum -= basis[row * dim + i] * inverse[i * dim + col];
        inverse[row * dim + col] = sum / basis[row * dim + row];
      }
    for (std::size_t row = 0; row < dim; ++row)
      for (std::size_t col = 0; col < dim; ++col) {
        const std::size_t at = (head * dim + row) * dim + col;
        memory.t_q[at] = static_cast<float>(basis[row * dim + col]);
        memory.t_k[at] = static_cast<float>(inverse[col * dim + row]);
      }
  }
  memory.transform = {p.heads_kv, p.head_dim, memory.t_q.data(), memory.t_k.data(),
                      memory.w.data()};
  memory.args.transform = &memory.transform;
}

/// Allocates q, k, v, o, lse in the layout of the case.
void make_tensors(const Case& c, CaseMemory& memory, Rows& q, Rows& k, Rows& v) {
  const AttentionProblem& p = c.problem;
  AttentionArgs& args = memory.args;
  const std::int64_t b = p.batch, m = p.seqlen_q, n = p.seqlen_k;
  const auto plain = [&](Tensor& tensor, std::int64_t rows, std::int64_t heads, std::int64_t dim) {
    tensor = make_tensor(p.dtype, {b, rows, heads, dim});
    return tensor.view();
  };
  const auto heads_first = [&](Tensor& tensor, std::int64_t rows, std::int64_t heads,
                               std::int64_t dim) {
    tensor = make_tensor(p.dtype, {b, heads, rows, dim});
    return transposed(tensor.view(), 1, 2);
  };
  if (p.packed) {
    const auto make = [&](Tensor& tensor, std::int64_t rows, std::int64_t heads, std::int64_t dim) {
      tensor = make_tensor(p.dtype, {rows, heads, dim});
      return tensor.view();
    };
    q.view = make(memory.q, p.total_q, p.heads_q, p.head_dim);
    k.view = make(memory.k, p.total_k, p.heads_kv, p.head_dim);
    v.view = make(memory.v, p.total_k, p.heads_kv, p.head_dim_v);
    args.o = make(memory.o, p.total_q, p.heads_q, p.head_dim_v);
    memory.lse = make_tensor(DType::kF32, {p.heads_q, p.total_q});
    args.cu_seqlens_q = c.cu_seqlens_q.data();
    args.cu_seqlens_k = c.cu_seqlens_k.data();
  } else {
    memory.lse = make_tensor(DType::kF32, {b, p.heads_q, m});
    if (c.layout == CaseLayout::kBhmd) {
      q.view = heads_first(memory.q, m, p.heads_q, p.head_dim);
      k.view = heads_first(memory.k, n, p.heads_kv, p.head_dim);
      v.view = heads_first(memory.v, n, p.heads_kv, p.head_dim_v);
      args.o = heads_first(memory.o, m, p.heads_q, p.head_dim_v);
    } else if (c.layout == CaseLayout::kFused) {
      const std::int64_t both = p.head_dim + p.head_dim_v;
      const TensorView kv = plain(memory.k, n, p.heads_kv, both);
      k.view = v.view = kv;
      k.view.shape[3] = p.head_dim;
      v.view.shape[3] = p.head_dim_v;
      v.view.data = static_cast<std::byte*>(kv.data) +
                    static_cast<std::size_t>(p.head_dim) * size_of(p.dtype);
      // Rows one element longer than needed, starting one element in.
      q.view = plain(memory.q, m, p.heads_q, p.head_dim + 1);
      q.view.shape[3] = p.head_dim;
      q.view.data = static_cast<std::byte*>(q.view.data) + size_of(p.dtype);
      args.o = plain(memory.o, m, p.heads_q, p.head_dim_v + 1);
      args.o.shape[3] = p.head_dim_v;
    } else {
      q.view = plain(memory.q, m, p.heads_q, p.head_dim);
      k.view = plain(memory.k, n, p.heads_kv, p.head_dim);
      v.view = plain(memory.v, n, p.heads_kv, p.head_dim_v);
      args.o = plain(memory.o, m, p.heads_q, p.head_dim_v);
    }
  }
  args.q = q.view;
  args.k = k.view;
  args.v = v.view;
  args.lse = memory.lse.view();
}

/// Adds to every query of a sequence a multiple of three of its keys.
void lean_towards_keys(const Case& c, Random& random, const Rows& q, const Rows& k) {
  const std::int64_t group = c.problem.heads_q / c.problem.heads_kv;
  // A unit key seen by itself has q.k/sqrt(D) = sqrt(D): this makes its logit about 6.
  const float strength = 6.f / std::sqrt(static_cast<float>(c.problem.head_dim));
  for (const Span& span : spans_of(c)) {
    if (span.keys == 0) continue;
    for (std::int64_t i = 0; i < span.rows; ++i)
      for (std::int64_t h = 0; h < q.heads(); ++h)
        for (int favourite = 0; favourite < 3; ++favourite) {
          const std::int64_t j = span.first_key + random.below(span.keys);
          for (std::int64_t d = 0; d < q.dim(); ++d) {
            const std::int64_t row = span.first_row + i;
            q.set(span.b, row, h, d,
                  q.get(span.b, row, h, d) + strength * k.get(span.b, j, h / group, d));
          }
        }
  }
}

void poison(const Case& c, const AttentionArgs& args, const Rows& k, const Rows& v) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Span& span : spans_of(c)) {
    int live_keys = 0;
    for_each_key(c, args, span, [&](std::int64_t j, bool seen) {
      const std::int64_t key = span.first_key + j;
      live_keys += seen;
      for (std::int64_t h = 0; h < k.heads(); ++h) {
        if (c.input == CaseInput::kPoison && !seen) {
          for (std::int64_t d = 0; d < k.dim(); ++d) k.set(span.b, key, h, d, nan);
          for (std::int64_t d = 0; d < v.dim(); ++d) v.set(span.b, key, h, d, infinity);
        }
        // In the first KV head only: the others must not notice.
        if (c.input == CaseInput::kSpread && seen && h == 0) {
          if (live_keys == 3) k.set(span.b, key, h, 1, nan);
          if (live_keys == 5) v.set(span.b, key, h, 0, infinity);
        }
      }
    });
  }
}

void fill_inputs(const Case& c, Random& random, const AttentionArgs& args, const Rows& q,
                 const Rows& k, const Rows& v) {
  const auto normal = [&](float scale) {
    return [&random, scale](auto...) { return scale * random.normal(); };
  };
  v.fill(normal(1));
  switch (c.input) {
    case CaseInput::kFlat:
      q.fill(normal(1e-3f));
      k.fill(normal(1));
      return;
    case CaseInput::kHuge: {
      // Logits of standard deviation 2,500 reach 1e4; fp16 holds both factors.
      const float factor = 50.f;
      q.fill(normal(factor));
      k.fill(normal(factor));
      v.fill([&](auto...) { return static_cast<float>(6e4 * (2 * random.uniform() - 1)); });
      return;
    }
    case CaseInput::kOffset: {
      std::vector<float> offset(static_cast<std::size_t>(k.heads() * k.dim()));
      for (float& value : offset) value = 8.f * random.normal();
      q.fill(normal(1));
      k.fill([&](std::int64_t, std::int64_t, std::int64_t h, std::int64_t d) {
        return random.normal() + offset[static_cast<std::size_t>(h * k.dim() + d)];
      });
      return;
    }
    case CaseInput::kEqual:
      q.fill(normal(1));
      k.fill([&](std::int64_t, std::int64_t, std::int64_t h, std::int64_t d) {
        return static_cast<float>((h + d) % 5) - 2.f;
      });
      return;
    default:
      q.fill(normal(1));
      k.fill(normal(1));
      if (c.input == CaseInput::kPeaky) lean_towards_keys(c, random, q, k);
      poison(c, args, k, v);
  }
}

}  // namespace

std::unique_ptr<CaseMemory> make_case_memory(const Case& c) {
  auto memory = std::make_unique<CaseMemory>();
  Random random(seed_of(c.text));
  Rows q{{}, c.problem.packed}, k = q, v = q;
  make_tensors(c, *memory, q, k, v);
  make_mask(c, random, *memory);
  make_transform(c, random, *memory);
  fill_inputs(c, random, memory->args, q, k, v);
  return memory;
}

}  // namespace twofour::io
