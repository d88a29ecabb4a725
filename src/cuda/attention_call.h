// What a launch of attention needs on every architecture: sizes, workspace, preparation of Q and K,
// parameters, and the refusals that do not depend on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/decisions.h"
#include "layout/schedule.h"
#include "plan/registry.h"

namespace twofour::cuda {

// Positions, rows and keys are 32-bit in the kernels; the sums they form stay below 2^31.
inline constexpr std::int64_t kMaxLength = std::int64_t{1} << 30;

/// Rows of Q or K in the whole call.
std::int64_t rows_of(const AttentionProblem& p, bool query);

/// Upper bounds over all sequences, from shapes alone. A row tile is an aligned run of `rows`
/// positions.
std::int64_t max_key_blocks(const AttentionProblem& p);
std::int64_t max_row_tiles(const AttentionProblem& p, std::int64_t rows);

/// What of a row's configuration the workspace and the preparation depend on.
struct Needs {
  QKProduct qk = QKProduct::kExact;
  bool trace = false;
  int code_width = 128;  // channels of a key's int8 codes
  int row_tile = static_cast<int>(layout::kRowBlock);
};

/// What the device workspace holds; all offsets from one base, 256-byte aligned.
struct Workspace {
  std::int32_t* next_item = nullptr;
  std::int32_t* row_blocks = nullptr;
  std::int32_t* key_blocks = nullptr;
  std::int8_t* codes = nullptr;
  float* scale = nullptr;
  float* mean = nullptr;
  float* partial = nullptr;
  unsigned short* q = nullptr;  // transformed, contiguous
  unsigned short* k = nullptr;
  char* split = nullptr;          // scratch of the transform
  std::uint64_t* kept = nullptr;  // trace, as in Decisions
  UnitDecision* unit = nullptr;
  std::int64_t kept_count = 0, unit_count = 0;
  std::size_t bytes = 0;

  Workspace(const AttentionProblem& p, const Needs& needs, void* memory);
};

/// Strides in elements.
struct RowsView {
  void* data = nullptr;
  std::int64_t batch = 0;
  std::int64_t row = 0;
  std::int64_t head = 0;
};
RowsView rows_view(const ConstTensorView& view, bool packed);

/// Q and K as the kernel reads them: the caller's, or in the basis of the transform.
RowsView query_rows(const Launch& launch, const Workspace& w);
RowsView key_rows(const Launch& launch, const Workspace& w);

template <class Rows>
void assign(Rows& rows, const RowsView& view) {
  rows.data = view.data;
  rows.batch = view.batch;
  rows.row = view.row;
  rows.head = view.head;
}

/// The members of Params that all architectures have.
template <class Params>
void fill_params(Params& params, const Launch& launch, const Workspace& w) {
  constexpr float kLog2e = 1.44269504088896341f;
  const AttentionProblem& p = launch.problem;
  assign(params.q, query_rows(launch, w));
  if (launch.args.transform != nullptr) params.weights = launch.args.transform->w;
  assign(params.o, rows_view(launch.args.o, p.packed));
  const TensorView& lse = launch.args.lse;
  params.lse = static_cast<float*>(lse.data);
  params.lse_batch = p.packed ? 0 : lse.stride[0];
  params.lse_head = lse.stride[p.packed ? 0 : 1];
  params.lse_row = lse.stride[p.packed ? 1 : 2];
  params.batch = static_cast<int>(p.batch);
  params.heads_q = static_cast<int>(p.heads_q);
  params.heads_kv = static_cast<int>(p.heads_kv);
  params.group = static_cast<int>(p.heads_q / p.heads_kv);
  params.head_dim = static_cast<int>(p.head_dim);
  params.head_dim_v = static_cast<int>(p.head_dim_v);
  params.seqlen_q = static_cast<int>(p.seqlen_q);
  params.seqlen_k = static_cast<int>(p.seqlen_k);
  params.packed = p.packed;
  params.cu_seqlens_q = launch.args.cu_seqlens_q;
  params.cu_seqlens_k = launch.args.cu_seqlens_k;
  params.row_blocks = w.row_blocks;
  params.key_blocks = w.key_blocks;
  params.causal = p.causal;
  params.align = p.align;
  params.window = p.window;
  params.sink_blocks = p.sparsity.is_dense() ? 0 : p.sparsity.sink_blocks;
  params.local_blocks = p.sparsity.is_dense() ? 0 : p.sparsity.local_blocks;
  params.scale = p.scale.value_or(1.0f / std::sqrt(static_cast<float>(p.head_dim)));
  params.scale_log2 = std::fabs(params.scale) * kLog2e;
  params.key_scale = w.scale;
  params.key_mean = w.mean;
  params.total_key_blocks = max_key_blocks(p);
  params.refine_log2 = p.sparsity.refine.value_or(0.0f) * kLog2e;
  params.drop_log2 = p.sparsity.drop.value_or(0.0f) * kLog2e;
  params.stats = reinterpret_cast<unsigned long long*>(launch.args.stats);
  if (p.trace) {
    const Decisions d = decisions_shape(p);
    params.kept = reinterpret_cast<unsigned long long*>(w.kept);
    params.unit = reinterpret_cast<unsigned char*>(w.unit);
    params.rows = d.rows;
    params.words = d.words;
    params.half_blocks = d.half_blocks;
  }
}

/// Everything of a launch before the kernel, in the order of the stream.
Status clear_stats(const Launch& launch, cudaStream_t stream);
Status prepare(const Launch& launch, const Needs& needs, const Workspace& w, cudaStream_t stream);

/// Debugging rows wait for the device: their decisions are the host's.
Status read_decisions(Decisions& decisions, const Workspace& w, cudaStream_t stream);

/// Why a row with this configuration cannot serve the problem, on whatever device. It serves
/// head_dim and head_dim_v whose larger is above `above` and up to c.head_dim.
template <class Config>
std::string why_not_config(const Config& c, int above, std::int64_t row_tile,
                           const AttentionProblem& p) {
  constexpr double kMaxItems = 2e9;
  if (p.dtype != c.dtype) return std::string("computes ") + to_string(c.dtype) + " only";
  for (const auto& [name, dim] :
       {std::pair{"head_dim", p.head_dim}, std::pair{"head_dim_v", p.head_dim_v}})
    if (dim % 8 != 0 || dim < 8 || dim > 128)
      return std::string("unsupported: ") + name + " " + std::to_string(dim) +
             ", supported are the multiples of 8 from 8 to 128";
  const std::int64_t widest = std::max(p.head_dim, p.head_dim_v);
  if (widest <= above || widest > c.head_dim)
    return "serves head_dim " + (above == 0 ? "up to " : std::to_string(above + 1) + " to ") +
           std::to_string(c.head_dim);
  if (p.sparsity.qk != c.qk)
    return std::string("computes the ") + to_string(c.qk) + " product only";
  if (p.sparsity.score != c.score)
    return std::string("prunes scores by ") + to_string(c.score) + " only";
  if (p.sparsity.refine.has_value() != c.refine || p.sparsity.drop.has_value() != c.drop)
    return std::string(c.refine ? "refines" : "does not refine") +
           (c.drop ? " and drops" : ", does not drop");
  if (!p.sparsity.is_dense() && p.sparsity.block != c.block)
    return "cuts keys into blocks of " + std::to_string(c.block);
  if (p.trace != c.trace)
    return c.trace ? "a debugging row, for traced problems" : "writes no decisions";
  if (p.has_mask) return "takes no boolean mask";
  if (p.has_prepared_k) return "prepares K itself";
  if (std::max({p.seqlen_q, p.seqlen_k, p.total_q, p.total_k}) > kMaxLength)
    return "serves lengths up to 2^30";
  if (static_cast<double>(max_row_tiles(p, row_tile)) * static_cast<double>(p.heads_q) * 4 >
          kMaxItems ||
      static_cast<double>(max_key_blocks(p)) > kMaxItems ||
      static_cast<double>(rows_of(p, false)) > kMaxItems)
    return "serves up to 5e8 row blocks and 2e9 keys in a call";
  return "";
}

}  // namespace twofour::cuda
