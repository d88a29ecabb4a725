#include "cuda/attention_call.h"

#include "cuda/error.h"
#include "cuda/prepare/keys.h"
#include "cuda/prepare/transform.h"

namespace twofour::cuda {
namespace {

/// Contiguous [B,rows,H,D].
RowsView contiguous_rows(void* data, std::int64_t rows, std::int64_t heads, std::int64_t dim) {
  return {data, rows * heads * dim, heads * dim, dim};
}

Status transform(const Launch& launch, const Workspace& w, bool query, cudaStream_t stream) {
  const AttentionProblem& p = launch.problem;
  const RowsView from = rows_view(query ? launch.args.q : launch.args.k, p.packed);
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
  bytes += 256;  // to reach a 256-byte boundary
}

RowsView rows_view(const ConstTensorView& view, bool packed) {
  const int row = packed ? 0 : 1;
  return {const_cast<void*>(view.data), packed ? 0 : view.stride[0], view.stride[row],
          view.stride[row + 1]};
}

RowsView query_rows(const Launch& launch, const Workspace& w) {
  const AttentionProblem& p = launch.problem;
  if (w.q == nullptr) return rows_view(launch.args.q, p.packed);
  return contiguous_rows(w.q, p.packed ? 0 : p.seqlen_q, p.heads_q, p.head_dim);
}
RowsView key_rows(const Launch& launch, const Workspace& w) {
  const AttentionProblem& p = launch.problem;
  if (w.k == nullptr) return rows_view(launch.args.k, p.packed);
  return contiguous_rows(w.k, p.packed ? 0 : p.seqlen_k, p.heads_kv, p.head_dim);
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

}  // namespace twofour::cuda
