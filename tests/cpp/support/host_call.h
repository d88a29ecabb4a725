// A call of attention as the kernels of CUDA see it, over the tensors of a case on the host.
// Preparation is that of the reference; there is no change of basis.
#pragma once

#include "core/decisions.h"
#include "cuda/tile/parts.h"
#include "kernel_run.h"
#include "layout/key_parts.h"

namespace twofour::test {

/// Codes, scales and means where the kernel looks for them.
struct HostKeys {
  std::vector<std::int8_t> codes;  // [Hkv, rows, width]
  std::vector<float> scale;        // [Hkv, key blocks]
  std::vector<float> mean;         // [Hkv, B, width]
};

inline HostKeys lay_out(const PreparedK& k, std::int64_t batch, int width) {
  const auto pad = [&](const auto& from, std::int64_t rows) {
    auto to = from;
    to.assign(rows * width, 0);
    for (std::int64_t row = 0; row < rows; ++row)
      std::copy_n(&from[row * k.head_dim], k.head_dim, &to[row * width]);
    return to;
  };
  return {pad(k.codes, k.heads_kv * k.rows), k.scale, pad(k.mean, k.heads_kv * batch)};
}

inline cuda::Rows rows_of(ConstTensorView view, bool packed) {
  const int row = packed ? 0 : 1;
  return {const_cast<void*>(view.data), packed ? 0 : view.stride[0], view.stride[row],
          view.stride[row + 1]};
}

/// The memory that the parameters of a call point to, and what it writes.
struct HostCall {
  AttentionProblem problem;
  cuda::Rows k, v;  // k of int8: its codes
  KernelOutput out;
  HostKeys keys;
  std::vector<std::int32_t> row_tiles{0}, key_blocks{0};
  std::vector<cuda::PartRow> part_rows;  // of split keys
  std::vector<float> part_o;

  /// `code_width` channels of a key's codes, of int8; row tiles of `row_tile` positions.
  template <class Config>
  HostCall(cuda::CallParams& params, AttentionCase& c, const Config& config, int row_tile,
           int code_width, const PreparedK* prepared)
      : problem(c.problem) {
    constexpr float kLog2e = 1.44269504088896341f;
    AttentionProblem& p = problem;
    p.sparsity.block = config.block;
    p.trace = config.trace;
    const std::int64_t rows = p.packed ? p.total_q : p.batch * p.seqlen_q;
    out.o = Tensor(p.dtype,
                   {p.packed ? 1 : p.batch, p.packed ? rows : p.seqlen_q, p.heads_q, p.head_dim_v},
                   Layout::kContiguous, p.packed);
    out.lse.assign(rows * p.heads_q, std::numeric_limits<float>::quiet_NaN());

    const AttentionArgs args = c.args();
    params.q = rows_of(args.q, p.packed);
    k = rows_of(args.k, p.packed);
    v = rows_of(args.v, p.packed);
    params.o = rows_of(out.o.view(), p.packed);
    params.lse = out.lse.data();
    params.lse_batch = p.packed ? 0 : p.heads_q * p.seqlen_q;
    params.lse_head = p.packed ? rows : p.seqlen_q;
    params.lse_row = 1;
    params.batch = static_cast<int>(p.batch);
    params.heads_q = static_cast<int>(p.heads_q);
    params.heads_kv = static_cast<int>(p.heads_kv);
    params.group = params.heads_q / params.heads_kv;
    params.head_dim = static_cast<int>(p.head_dim);
    params.head_dim_v = static_cast<int>(p.head_dim_v);
    params.seqlen_q = static_cast<int>(p.seqlen_q);
    params.seqlen_k = static_cast<int>(p.seqlen_k);
    params.packed = p.packed;
    params.causal = p.causal;
    params.align = p.align;
    params.window = p.window;
    params.sink_blocks = p.sparsity.is_dense() ? 0 : p.sparsity.sink_blocks;
    params.local_blocks = p.sparsity.is_dense() ? 0 : p.sparsity.local_blocks;
    params.scale = p.scale.value_or(1.0f / std::sqrt(static_cast<float>(p.head_dim)));
    params.scale_log2 = std::fabs(params.scale) * kLog2e;
    params.refine_log2 = p.sparsity.refine.value_or(0.0f) * kLog2e;
    params.drop_log2 = p.sparsity.drop.value_or(0.0f) * kLog2e;
    params.stats = reinterpret_cast<unsigned long long*>(&out.stats);

    if (p.packed) count_blocks(params, c, config.block, row_tile);
    split(params);
    if (config.qk == QKProduct::kInt8) {
      keys = lay_out(*prepared, p.batch, code_width);
      k = {keys.codes.data(), 0, code_width, prepared->rows * code_width};
      params.key_scale = keys.scale.data();
      params.key_mean = keys.mean.data();
      params.total_key_blocks = prepared->blocks;
    }
    if (config.trace) {
      out.decisions = make_decisions(p);
      params.kept = reinterpret_cast<unsigned long long*>(out.decisions.kept.data());
      params.unit = reinterpret_cast<unsigned char*>(out.decisions.unit.data());
      params.rows = out.decisions.rows;
      params.words = out.decisions.words;
      params.half_blocks = out.decisions.half_blocks;
    }
  }

  /// What comes after the kernel: partial results become one.
  KernelOutput finish(const cuda::CallParams& params) {
    const std::int64_t chunks = params.rows_of_part * params.head_dim_v / 8;
    for (std::int64_t i = 0; i < chunks && params.parts > 1; ++i)
      problem.dtype == DType::kF16 ? cuda::tile::combine_chunk<DType::kF16>(params, i)
                                   : cuda::tile::combine_chunk<DType::kBF16>(params, i);
    return std::move(out);
  }

 private:
  void split(cuda::CallParams& params) {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    params.parts = layout::key_parts(problem);
    params.rows_of_part = static_cast<std::int64_t>(out.lse.size());
    if (params.parts == 1) return;
    part_rows.assign(params.parts * out.lse.size(), {kNan, kNan, kNan});
    part_o.assign(part_rows.size() * params.head_dim_v, kNan);
    params.part_rows = part_rows.data();
    params.part_o = part_o.data();
  }

  void count_blocks(cuda::CallParams& params, const AttentionCase& c, int block, int row_tile) {
    const AttentionProblem& p = problem;
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const std::int64_t m = c.cu_q[b + 1] - c.cu_q[b], n = c.cu_k[b + 1] - c.cu_k[b];
      const std::int64_t first = layout::first_position(p.causal, p.align, m, n);
      const std::int64_t tiles = m == 0 ? 0
                                        : layout::floor_div(first + m - 1, row_tile) -
                                              layout::floor_div(first, row_tile) + 1;
      row_tiles.push_back(row_tiles.back() + static_cast<std::int32_t>(tiles));
      key_blocks.push_back(key_blocks.back() +
                           static_cast<std::int32_t>(layout::ceil_div(n, block)));
    }
    params.cu_seqlens_q = c.cu_q.data();
    params.cu_seqlens_k = c.cu_k.data();
    params.row_blocks = row_tiles.data();
    params.key_blocks = key_blocks.data();
  }
};

}  // namespace twofour::test
