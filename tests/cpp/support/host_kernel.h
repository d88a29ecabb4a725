// The whole mma.sync kernel on the host: every CTA of a call, one after the other, over the tensors
// of a case. Preparation is that of the reference; there is no change of basis.
#pragma once

#include "host_cta.h"
// After host_cta.h, which it needs.
#include "core/decisions.h"
#include "cuda/sm80/attention.cuh"
#include "kernel_run.h"
#include "ref/attention.h"

namespace twofour::cuda::sm80 {

inline constexpr std::size_t kWindowBytes = 227 * 1024;
alignas(1024) inline unsigned char allocated[kWindowBytes];  // what the kernel declares extern

}  // namespace twofour::cuda::sm80

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

/// Runs row kRow of the kernel on the case. `stages` of shared memory, if they fit; `seed` orders
/// the warps.
template <int kRow>
KernelOutput run_on_host(AttentionCase& c, const PreparedK* prepared, int stages,
                         std::uint64_t seed) {
  using namespace cuda::sm80;
  constexpr Config config = kRows[kRow];
  constexpr float kLog2e = 1.44269504088896341f;
  while (Shared<config>::allocated(stages) > static_cast<int>(kWindowBytes)) --stages;
  AttentionProblem p = c.problem;
  p.sparsity.block = config.block;
  p.trace = config.trace;
  const std::int64_t rows = p.packed ? p.total_q : p.batch * p.seqlen_q;
  KernelOutput out;
  out.o = Tensor(p.dtype,
                 {p.packed ? 1 : p.batch, p.packed ? rows : p.seqlen_q, p.heads_q, p.head_dim_v},
                 Layout::kContiguous, p.packed);
  out.lse.assign(rows * p.heads_q, std::numeric_limits<float>::quiet_NaN());

  Params params{};
  const AttentionArgs args = c.args();
  params.q = rows_of(args.q, p.packed);
  params.k = rows_of(args.k, p.packed);
  params.v = rows_of(args.v, p.packed);
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
  params.stages = stages;

  std::vector<std::int32_t> row_tiles{0}, key_blocks{0};
  if (p.packed) {
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const std::int64_t m = c.cu_q[b + 1] - c.cu_q[b], n = c.cu_k[b + 1] - c.cu_k[b];
      const std::int64_t first = layout::first_position(p.causal, p.align, m, n);
      const std::int64_t tiles = m == 0 ? 0
                                        : layout::floor_div(first + m - 1, config.rows()) -
                                              layout::floor_div(first, config.rows()) + 1;
      row_tiles.push_back(row_tiles.back() + static_cast<std::int32_t>(tiles));
      key_blocks.push_back(key_blocks.back() +
                           static_cast<std::int32_t>(layout::ceil_div(n, config.block)));
    }
    params.cu_seqlens_q = c.cu_q.data();
    params.cu_seqlens_k = c.cu_k.data();
    params.row_blocks = row_tiles.data();
    params.key_blocks = key_blocks.data();
  }
  HostKeys keys;
  if constexpr (is_int8(config)) {
    keys = lay_out(*prepared, p.batch, code_width(config));
    params.k = {keys.codes.data(), 0, code_width(config), prepared->rows * code_width(config)};
    params.key_scale = keys.scale.data();
    params.key_mean = keys.mean.data();
    params.total_key_blocks = prepared->blocks;
  }
  if constexpr (config.trace) {
    out.decisions = make_decisions(p);
    params.kept = reinterpret_cast<unsigned long long*>(out.decisions.kept.data());
    params.unit = reinterpret_cast<unsigned char*>(out.decisions.unit.data());
    params.rows = out.decisions.rows;
    params.words = out.decisions.words;
    params.half_blocks = out.decisions.half_blocks;
  }
  const int ctas = cuda::total_row_tiles(params, config.rows()) * params.heads_q;
  const std::span window(reinterpret_cast<std::byte*>(allocated),
                         static_cast<std::size_t>(Shared<config>::allocated(stages)));
  for (int i = 0; i <= ctas; ++i) {  // one more than there is work for
    std::ranges::fill(window, std::byte{0xFF});
    cuda::blockIdx.x = static_cast<unsigned>(i);
    HostCta(config.warps, window, 0, seed + i).run([&] { attention_kernel<kRow>(params); });
  }
  return out;
}

}  // namespace twofour::test
