// Rows, costs, workspace and launch of attention on Hopper.
#include "cuda/sm90/attention.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "core/decisions.h"
#include "cuda/error.h"
#include "cuda/prepare/keys.h"
#include "cuda/prepare/transform.h"
#include "cuda/sm90/kernels.h"
#include "cuda/sm90/tensor_map.h"

namespace twofour::cuda::sm90 {
namespace {

const Config& config_of(const Kernel& kernel) { return kRows[kernel.number]; }

// Positions, rows and keys are 32-bit in the kernel; the sums it forms stay below 2^31.
constexpr std::int64_t kMaxLength = std::int64_t{1} << 30;
constexpr double kMaxItems = 2e9;

std::int64_t rows_of(const AttentionProblem& p, bool query) {
  if (p.packed) return query ? p.total_q : p.total_k;
  return p.batch * (query ? p.seqlen_q : p.seqlen_k);
}

/// Upper bound over all sequences, from shapes alone.
std::int64_t max_key_blocks(const AttentionProblem& p) {
  if (p.packed) return layout::ceil_div(p.total_k, p.sparsity.block) + p.batch;
  return p.batch * layout::ceil_div(p.seqlen_k, p.sparsity.block);
}
std::int64_t max_row_blocks(const AttentionProblem& p) {
  if (p.packed) return layout::ceil_div(p.total_q, layout::kRowBlock) + 2 * p.batch;
  return p.batch * (layout::ceil_div(p.seqlen_q, layout::kRowBlock) + 1);
}

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

  Workspace(const AttentionProblem& p, const Config& c, void* memory) {
    char* const base = static_cast<char*>(memory);
    auto take = [&]<class T>(T*& pointer, std::int64_t count) {
      if (count == 0) return;
      pointer = reinterpret_cast<T*>(base + bytes);
      bytes += (static_cast<std::size_t>(count) * sizeof(T) + 255) / 256 * 256;
    };
    take(next_item, 1);
    take(row_blocks, p.packed ? p.batch + 1 : 0);
    take(key_blocks, p.packed ? p.batch + 1 : 0);
    if (c.qk == QKProduct::kInt8) {
      take(codes, p.heads_kv * std::max<std::int64_t>(rows_of(p, false), 1) * c.head_dim);
      take(scale, p.heads_kv * max_key_blocks(p));
      take(mean, p.heads_kv * p.batch * c.head_dim);
      take(partial, p.heads_kv * p.batch * mean_chunks(p.seqlen_k) * (c.head_dim + 1));
    }
    if (c.qk == QKProduct::kNm24 && p.has_transform) {
      take(q, rows_of(p, true) * p.heads_q * p.head_dim);
      take(k, rows_of(p, false) * p.heads_kv * p.head_dim);
      take(split, static_cast<std::int64_t>(transform_split_bytes(static_cast<int>(p.heads_kv),
                                                                  static_cast<int>(p.head_dim))));
    }
    if (c.trace) {
      const Decisions d = decisions_shape(p);
      kept_count = d.heads * d.rows * d.words;
      unit_count = d.heads * d.rows * d.half_blocks;
      take(kept, kept_count);
      take(unit, unit_count);
    }
    bytes += 256;  // to reach a 256-byte boundary
  }
};

Rows rows_view(const ConstTensorView& view, bool packed) {
  const int row = packed ? 0 : 1;
  return {const_cast<void*>(view.data), packed ? 0 : view.stride[0], view.stride[row],
          view.stride[row + 1]};
}

/// Contiguous [B,rows,H,D].
Rows contiguous_rows(void* data, std::int64_t rows, std::int64_t heads, std::int64_t dim) {
  return {data, rows * heads * dim, heads * dim, dim};
}

/// Q and K as the kernel reads them: the caller's, or in the basis of the transform.
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

// An axis of one element has a stride that nothing uses, but the driver wants it in range.
TensorMapAxis axis(std::int64_t size, std::int64_t stride_bytes, int box) {
  return {static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1)),
          static_cast<std::uint64_t>(size > 1 && stride_bytes > 0 ? stride_bytes : 16),
          static_cast<std::uint32_t>(box)};
}

/// K or V as the tensor maps see it.
struct TensorRows {
  const void* data;
  CUtensorMapDataType type;
  int element;  // bytes
  std::int64_t channels;
  int channel_box;
  std::int64_t rows, row_stride;
  std::int64_t heads, head_stride;
  std::int64_t batch, batch_stride;
  layout::Swizzle swizzle;
};

Status make_map(CUtensorMap& map, const TensorRows& t, const Config& c) {
  const TensorMapAxis axes[] = {
      axis(t.channels, 0, t.channel_box), axis(t.rows, t.element * t.row_stride, c.tile),
      axis(t.heads, t.element * t.head_stride, 1), axis(t.batch, t.element * t.batch_stride, 1)};
  return make_tensor_map(map, t.type, t.data, axes, t.swizzle);
}

/// Rows and their partners, block / 2 further: side by side, or the first ones before all partners.
/// Only blocks that are wholly inside a sequence are pruned, so that no partner lies beyond.
Status make_pair_map(CUtensorMap& map, const TensorRows& t, const Config& c, bool side_by_side) {
  const std::int64_t distance = c.block / 2;
  const TensorMapAxis partner = axis(2, t.element * t.row_stride * distance, 2);
  const TensorMapAxis row = axis(t.rows - distance, t.element * t.row_stride, c.tile / 2);
  const TensorMapAxis axes[] = {axis(t.channels, 0, t.channel_box), side_by_side ? partner : row,
                                side_by_side ? row : partner,
                                axis(t.heads, t.element * t.head_stride, 1),
                                axis(t.batch, t.element * t.batch_stride, 1)};
  return make_tensor_map(map, t.type, t.data, axes, t.swizzle);
}

Status make_maps(Params& params, const Launch& launch, const Config& c, const Workspace& w) {
  const AttentionProblem& p = launch.problem;
  const auto type =
      p.dtype == DType::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const std::int64_t keys = p.packed ? p.total_k : p.seqlen_k;
  const std::int64_t batch = p.packed ? 1 : p.batch;
  Rows k = key_rows(launch, w);
  Rows v = rows_view(launch.args.v, p.packed);
  // Without keys nothing is read, but a map must point somewhere.
  if (k.data == nullptr) k.data = w.next_item;
  if (v.data == nullptr) v.data = w.next_item;
  TensorRows keys_of_call{k.data, type,       2,      p.head_dim, 64,      keys,
                          k.row,  p.heads_kv, k.head, batch,      k.batch, layout::Swizzle::k128B};
  if (c.qk == QKProduct::kInt8) {
    const std::int64_t all = rows_of(p, false);
    keys_of_call = {w.codes,
                    CU_TENSOR_MAP_DATA_TYPE_UINT8,
                    1,
                    c.head_dim,
                    c.head_dim,
                    all,
                    c.head_dim,
                    p.heads_kv,
                    all * c.head_dim,
                    1,
                    0,
                    c.head_dim == 64 ? layout::Swizzle::k64B : layout::Swizzle::k128B};
  }
  const TensorRows values_of_call{v.data, type,  2,       p.head_dim_v,
                                  64,     keys,  v.row,   p.heads_kv,
                                  v.head, batch, v.batch, layout::Swizzle::k128B};
  Status status = make_map(params.k, keys_of_call, c);
  if (status.ok()) status = make_map(params.v, values_of_call, c);
  if (c.score != ScorePattern::kPair) return status;
  if (status.ok()) status = make_pair_map(params.k_pair, keys_of_call, c, false);
  if (status.ok()) status = make_pair_map(params.v_pair, values_of_call, c, true);
  return status;
}

Params make_params(const Launch& launch, const Workspace& w) {
  const AttentionProblem& p = launch.problem;
  Params params{};
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
  params.scale_log2 = std::fabs(params.scale) * 1.44269504088896341f;
  params.key_scale = w.scale;
  params.key_mean = w.mean;
  params.total_key_blocks = max_key_blocks(p);
  params.next_item = w.next_item;
  constexpr float kLog2e = 1.44269504088896341f;
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
  return params;
}

Status clear(void* memory, std::size_t bytes, cudaStream_t stream) {
  return to_status(cudaMemsetAsync(memory, 0, bytes, stream), "clearing memory");
}

Status clear_stats(const Launch& launch, cudaStream_t stream) {
  if (launch.args.stats == nullptr) return {};
  static_assert(sizeof(AttentionStats) == 5 * sizeof(std::int64_t));
  return clear(launch.args.stats, sizeof(AttentionStats), stream);
}

Status prepare(const Launch& launch, const Config& c, const Workspace& w, cudaStream_t stream) {
  Status status = clear(w.next_item, sizeof(*w.next_item), stream);
  if (status.ok()) status = clear_stats(launch, stream);
  if (status.ok() && c.trace)
    status = clear(w.kept, static_cast<std::size_t>(w.kept_count) * sizeof(*w.kept), stream);
  if (status.ok() && c.trace)
    status = clear(w.unit, static_cast<std::size_t>(w.unit_count) * sizeof(*w.unit), stream);
  if (!status.ok()) return status;
  Sequences sequences = sequences_of(launch.problem, launch.args);
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
  if (c.qk != QKProduct::kInt8 || launch.problem.seqlen_k == 0) return {};
  QuantisedKeys keys = keys_of(launch.problem, launch.args);
  keys.total_blocks = max_key_blocks(launch.problem);
  keys.codes = w.codes;
  keys.scale = w.scale;
  keys.mean = w.mean;
  keys.partial = w.partial;
  return quantise_keys(sequences, keys, stream);
}

/// Debugging rows wait for the device: their decisions are the host's.
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

/// Lets a kernel have more shared memory than kernels may by default. The runtime remembers it for
/// the current device, so the first launch on each asks.
Status reserve_shared(int row, const Compiled& compiled_row, int device) {
  static std::array<std::atomic<std::uint64_t>, kRowCount> reserved{};  // a bit for each device
  const std::uint64_t bit = device >= 0 && device < 64 ? std::uint64_t{1} << device : 0;
  if (reserved[row].load(std::memory_order_acquire) & bit) return {};
  const Status status = to_status(
      cudaFuncSetAttribute(compiled_row.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           compiled_row.shared_bytes),
      "reserving shared memory");
  if (status.ok()) reserved[row].fetch_or(bit, std::memory_order_release);
  return status;
}

Status launch(const Kernel& kernel, const Launch& launch) {
  const AttentionProblem& p = launch.problem;
  const Config& c = config_of(kernel);
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  if (rows_of(p, true) == 0) return clear_stats(launch, stream);
  const auto address = reinterpret_cast<std::uintptr_t>(launch.workspace);
  const Workspace w(p, c, reinterpret_cast<void*>((address + 255) & ~std::uintptr_t{255}));
  Params params = make_params(launch, w);
  Status status = make_maps(params, launch, c, w);
  if (!status.ok()) return status;
  status = prepare(launch, c, w, stream);
  if (!status.ok()) return status;
  const Compiled compiled_row = compiled(kernel.number);
  status = reserve_shared(kernel.number, compiled_row, launch.device.index);
  if (!status.ok()) return status;
  const std::int64_t items = max_row_blocks(p) * p.heads_q;
  const auto grid = static_cast<unsigned>(
      std::clamp<std::int64_t>(items, 1, std::max(launch.device.multiprocessors, 1)));
  void* arguments[] = {&params};
  status = to_status(cudaLaunchKernel(compiled_row.kernel, dim3(grid), dim3(kThreads), arguments,
                                      static_cast<std::size_t>(compiled_row.shared_bytes), stream),
                     kernel.id.c_str());
  if (!status.ok() || !c.trace) return status;
  return read_decisions(*launch.args.decisions, w, stream);
}

std::string why_not(const Kernel& kernel, const AttentionProblem& p, const Device& device) {
  const Config& c = config_of(kernel);
  if (device.kind != DeviceKind::kCuda || device.arch != "sm_90")
    return "runs on Hopper (sm_90) only";
  if (p.dtype != c.dtype) return std::string("computes ") + to_string(c.dtype) + " only";
  for (const auto& [name, dim] :
       {std::pair{"head_dim", p.head_dim}, std::pair{"head_dim_v", p.head_dim_v}})
    if (dim % 8 != 0 || dim < 8 || dim > 128)
      return std::string("unsupported: ") + name + " " + std::to_string(dim) +
             ", supported are the multiples of 8 from 8 to 128";
  if (padded_head_dim(p) != c.head_dim)
    return "serves head_dim " + std::string(c.head_dim == 64 ? "up to 64" : "65 to 128");
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
  if (static_cast<double>(max_row_blocks(p)) * static_cast<double>(p.heads_q) * 4 > kMaxItems ||
      static_cast<double>(max_key_blocks(p)) > kMaxItems ||
      static_cast<double>(rows_of(p, false)) > kMaxItems)
    return "serves up to 5e8 row blocks and 2e9 keys in a call";
  return "";
}

// Share of the dense fp16 peak that each product reaches, measured (docs/kernels/sm90.md).
double cost(const Kernel& kernel, const AttentionProblem& p, const Device& device) {
  const Config& c = config_of(kernel);
  const double queries = static_cast<double>(p.packed ? p.total_q : p.batch * p.seqlen_q);
  double pairs = queries * static_cast<double>(p.heads_q) * static_cast<double>(p.seqlen_k);
  if (p.causal && p.seqlen_q > 1) pairs *= 0.5;
  const double qk = c.qk == QKProduct::kExact ? 0.65 : 1.2;
  const double pv = c.score == ScorePattern::kPair ? 1.2 : 0.65;
  const double rate = std::max(device.peak_gflops, 1.0) * 1e9;
  return 5e-6 + 2 * pairs * c.head_dim / rate * (1 / qk + 1 / pv);
}

std::size_t workspace(const Kernel& kernel, const AttentionProblem& p, const Device&) {
  return Workspace(p, config_of(kernel), nullptr).bytes;
}

std::vector<Kernel> make_kernels() {
  std::vector<Kernel> all;
  for (const Config& c : kRows) {
    Kernel row;
    row.id = std::string("attention.") + to_string(c.dtype) + ".sm90.d" +
             std::to_string(c.head_dim) + "." + to_string(c.qk) + "." + to_string(c.score) +
             (c.refine ? ".refine" : "") + (c.drop ? ".drop" : "") + (c.trace ? ".trace" : "");
    row.arch = "sm_90";
    row.number = static_cast<int>(all.size());
    row.config = {c.qk, c.score, c.trace};
    row.why_not = &why_not;
    row.cost = &cost;
    row.workspace = &workspace;
    row.launch = &launch;
    all.push_back(std::move(row));
  }
  return all;
}

}  // namespace

std::span<const Kernel> attention_kernels() {
  static const std::vector<Kernel> rows = make_kernels();
  return rows;
}

}  // namespace twofour::cuda::sm90
