#include "cuda/attention_call.h"

#include <cmath>

#include "core/decisions.h"
#include "cuda/combine.h"
#include "cuda/error.h"
#include "cuda/prepare/keys.h"
#include "cuda/prepare/transform.h"

namespace twofour::cuda {
namespace {

/// Contiguous [B,rows,H,D].
Rows contiguous_rows(void* data, std::int64_t rows, std::int64_t heads, std::int64_t dim) {
  return {data, rows * heads * dim, heads * dim, dim};
}

Status transform(const Launch& launch, const Workspace& w, bool query, cudaStream_t stream) {
  const AttentionProblem& p = launch.problem;
  const Rows from = rows_view(query ? launch.args.q : launch.args.k, p.packed);
  TransformedRows rows;
  rows.x = from.data;
  rows.dtype = p.dtype;
  rows.batch_stride = from.batch;
  rows.row_stride = from.row;
  rows.head_stride = from.head;
  rows.batch = p.packed ? 1 : p.batch;
  rows.rows = p.packed ? rows_of(p, query) : query ? p.seqlen_q : p.seqlen_k;
  rows.heads = static_cast<int>(query ? p.heads_q : p.heads_kv);
  rows.heads_per_kv = static_cast<int>(query ? p.heads_q / p.heads_kv : 1);
  rows.head_dim = static_cast<int>(p.head_dim);
  rows.t = query ? launch.args.transform->t_q : launch.args.transform->t_k;
  rows.out = query ? w.q : w.k;
  rows.split = w.split;
  if (rows.batch * rows.rows == 0) return {};
  return transform_rows(rows, stream);
}

Status clear(void* memory, std::size_t bytes, cudaStream_t stream) {
  return to_status(cudaMemsetAsync(memory, 0, bytes, stream), "clearing memory");
}

}  // namespace

std::int64_t rows_of(const AttentionProblem& p, bool query) {
  if (p.packed) return query ? p.total_q : p.total_k;
  return p.batch * (query ? p.seqlen_q : p.seqlen_k);
}

std::int64_t max_key_blocks(const AttentionProblem& p) {
  if (p.packed) return layout::ceil_div(p.total_k, p.sparsity.block) + p.batch;
  return p.batch * layout::ceil_div(p.seqlen_k, p.sparsity.block);
}
std::int64_t max_row_tiles(const AttentionProblem& p, std::int64_t rows) {
  if (p.packed) return layout::ceil_div(p.total_q, rows) + 2 * p.batch;
  return p.batch * (layout::ceil_div(p.seqlen_q, rows) + 1);
}

Workspace::Workspace(const AttentionProblem& p, const Needs& needs, void* memory) {
  char* const base = static_cast<char*>(memory);
  auto take = [&]<class T>(T*& pointer, std::int64_t count) {
    if (count == 0) return;
    pointer = reinterpret_cast<T*>(base + bytes);
    bytes += (static_cast<std::size_t>(count) * sizeof(T) + 255) / 256 * 256;
  };
  take(next_item, 1);
  take(row_blocks, p.packed ? p.batch + 1 : 0);
  take(key_blocks, p.packed ? p.batch + 1 : 0);
  if (needs.qk == QKProduct::kInt8) {
    take(codes, p.heads_kv * std::max<std::int64_t>(rows_of(p, false), 1) * needs.code_width);
    take(scale, p.heads_kv * max_key_blocks(p));
    take(mean, p.heads_kv * p.batch * needs.code_width);
    take(partial, p.heads_kv * p.batch * mean_chunks(p.seqlen_k) * (needs.code_width + 1));
  }
  if (needs.qk == QKProduct::kNm24 && p.has_transform) {
    take(q, rows_of(p, true) * p.heads_q * p.head_dim);
    take(k, rows_of(p, false) * p.heads_kv * p.head_dim);
    take(split, static_cast<std::int64_t>(transform_split_bytes(static_cast<int>(p.heads_kv),
                                                                static_cast<int>(p.head_dim))));
  }
  if (needs.trace) {
    const Decisions d = decisions_shape(p);
    kept_count = d.heads * d.rows * d.words;
    unit_count = d.heads * d.rows * d.half_blocks;
    take(kept, kept_count);
    take(unit, unit_count);
  }
  if (const int parts = layout::key_parts(p); parts > 1) {
    const std::int64_t rows = parts * rows_of(p, true) * p.heads_q;
    take(part_rows, rows);
    take(part_o, rows * p.head_dim_v);
  }
  bytes += 256;  // to reach a 256-byte boundary
}

Workspace::Workspace(const Launch& launch, const Needs& needs)
    : Workspace(launch.problem, needs,
                reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(launch.workspace) + 255) &
                                        ~std::uintptr_t{255})) {}

Rows rows_view(const ConstTensorView& view, bool packed) {
  const int row = packed ? 0 : 1;
  return {const_cast<void*>(view.data), packed ? 0 : view.stride[0], view.stride[row],
          view.stride[row + 1]};
}

Rows query_rows(const Launch& launch, const Workspace& w) {
  const AttentionProblem& p = launch.problem;
  if (w.q == nullptr) return rows_view(launch.args.q, p.packed);
  return contiguous_rows(w.q, p.packed ? 0 : p.seqlen_q, p.heads_q, p.head_dim);
}
Rows key_rows(const Launch& launch, const Workspace& w) {
  const AttentionProblem& p = launch.problem;
  if (w.k == nullptr) return rows_view(launch.args.k, p.packed);
  return contiguous_rows(w.k, p.packed ? 0 : p.seqlen_k, p.heads_kv, p.head_dim);
}

void fill_params(CallParams& params, const Launch& launch, const Workspace& w) {
  constexpr float kLog2e = 1.44269504088896341f;
  const AttentionProblem& p = launch.problem;
  params.q = query_rows(launch, w);
  if (launch.args.transform != nullptr) params.weights = launch.args.transform->w;
  params.o = rows_view(launch.args.o, p.packed);
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
  params.parts = layout::key_parts(p);
  params.rows_of_part = rows_of(p, true) * p.heads_q;
  params.part_rows = w.part_rows;
  params.part_o = w.part_o;
  if (p.trace) {
    const Decisions d = decisions_shape(p);
    params.kept = reinterpret_cast<unsigned long long*>(w.kept);
    params.unit = reinterpret_cast<unsigned char*>(w.unit);
    params.rows = d.rows;
    params.words = d.words;
    params.half_blocks = d.half_blocks;
  }
}

Status clear_stats(const Launch& launch, cudaStream_t stream) {
  if (launch.args.stats == nullptr) return {};
  static_assert(sizeof(AttentionStats) == 5 * sizeof(std::int64_t));
  return clear(launch.args.stats, sizeof(AttentionStats), stream);
}

Status prepare(const Launch& launch, const Needs& needs, const Workspace& w, cudaStream_t stream) {
  Status status = clear(w.next_item, sizeof(*w.next_item), stream);
  if (status.ok()) status = clear_stats(launch, stream);
  if (status.ok() && needs.trace)
    status = clear(w.kept, static_cast<std::size_t>(w.kept_count) * sizeof(*w.kept), stream);
  if (status.ok() && needs.trace)
    status = clear(w.unit, static_cast<std::size_t>(w.unit_count) * sizeof(*w.unit), stream);
  if (!status.ok()) return status;
  Sequences sequences = sequences_of(launch.problem, launch.args);
  sequences.row_tile = needs.row_tile;
  sequences.row_blocks = w.row_blocks;
  sequences.key_blocks = w.key_blocks;
  if (sequences.packed) {
    status = count_blocks(sequences, stream);
    if (!status.ok()) return status;
  }
  if (w.q != nullptr) {
    status = transform(launch, w, true, stream);
    return status.ok() ? transform(launch, w, false, stream) : status;
  }
  if (needs.qk != QKProduct::kInt8 || launch.problem.seqlen_k == 0) return {};
  QuantisedKeys keys = keys_of(launch.problem, launch.args);
  keys.total_blocks = max_key_blocks(launch.problem);
  keys.codes = w.codes;
  keys.scale = w.scale;
  keys.mean = w.mean;
  keys.partial = w.partial;
  return quantise_keys(sequences, keys, stream);
}

Status finish(const CallParams& params, const Launch& launch, cudaStream_t stream) {
  if (params.parts == 1) return {};
  return combine_parts(params, launch.problem.dtype, stream);
}

Status reserve_shared(std::atomic<std::uint64_t>& reserved, const void* kernel, int bytes,
                      int device) {
  const std::uint64_t bit = device >= 0 && device < 64 ? std::uint64_t{1} << device : 0;
  if (reserved.load(std::memory_order_acquire) & bit) return {};
  const Status status =
      to_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                "reserving shared memory");
  if (status.ok()) reserved.fetch_or(bit, std::memory_order_release);
  return status;
}

Status read_decisions(Decisions& decisions, const Workspace& w, cudaStream_t stream) {
  Status status =
      to_status(cudaMemcpyAsync(decisions.kept.data(), w.kept,
                                static_cast<std::size_t>(w.kept_count) * sizeof(*w.kept),
                                cudaMemcpyDefault, stream),
                "reading decisions");
  if (!status.ok()) return status;
  status = to_status(cudaMemcpyAsync(decisions.unit.data(), w.unit,
                                     static_cast<std::size_t>(w.unit_count) * sizeof(*w.unit),
                                     cudaMemcpyDefault, stream),
                     "reading decisions");
  if (!status.ok()) return status;
  return to_status(cudaStreamSynchronize(stream), "reading decisions");
}

double estimated_seconds(const AttentionProblem& p, const Device& device, int head_dim, double qk,
                         double pv) {
  const double rate = std::max(device.peak_gflops, 1.0) * 1e9;
  return 5e-6 + 2 * estimated_pairs(p) * head_dim / rate * (1 / qk + 1 / pv);
}

}  // namespace twofour::cuda
