// Rows, costs, workspace and launch of attention on Hopper.
#include "cuda/sm90/attention.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "cuda/attention_call.h"
#include "cuda/error.h"
#include "cuda/sm90/kernels.h"
#include "cuda/sm90/tensor_map.h"

namespace twofour::cuda::sm90 {
namespace {

template <int... kRow>
Compiled compiled_row(std::integer_sequence<int, kRow...>, int row) {
  static constexpr Compiled (*kAll[])() = {&sm90::compiled_row<kRow>...};
  return kAll[row]();
}
Compiled compiled(int row) {
  return compiled_row(std::make_integer_sequence<int, kRowCount>(), row);
}

const Config& config_of(const Kernel& kernel) { return kRows[kernel.number]; }

Needs needs_of(const Config& c) {
  return {c.qk, c.trace, c.head_dim, static_cast<int>(layout::kRowBlock)};
}

// An axis of one element has a stride that nothing uses, but the driver wants it in range.
TensorMapAxis axis(std::int64_t size, std::int64_t stride_bytes, int box) {
  return {static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1)),
          static_cast<std::uint64_t>(size > 1 ? stride_bytes : 16),
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
  Params params{};
  fill_params(params, launch, w);
  params.next_item = w.next_item;
  return params;
}

Status launch(const Kernel& kernel, const Launch& launch) {
  const AttentionProblem& p = launch.problem;
  const Config& c = config_of(kernel);
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  if (rows_of(p, true) == 0) return clear_stats(launch, stream);
  const Workspace w(launch, needs_of(c));
  Params params = make_params(launch, w);
  Status status = make_maps(params, launch, c, w);
  if (!status.ok()) return status;
  status = prepare(launch, needs_of(c), w, stream);
  if (!status.ok()) return status;
  const Compiled compiled_row = compiled(kernel.number);
  static std::array<std::atomic<std::uint64_t>, kRowCount> reserved{};
  status = reserve_shared(reserved[kernel.number], compiled_row.kernel, compiled_row.shared_bytes,
                          launch.device.index);
  if (!status.ok()) return status;
  const std::int64_t items = max_row_tiles(p, layout::kRowBlock) * p.heads_q * params.parts;
  const auto grid = static_cast<unsigned>(
      std::clamp<std::int64_t>(items, 1, std::max(launch.device.multiprocessors, 1)));
  void* arguments[] = {&params};
  status = to_status(cudaLaunchKernel(compiled_row.kernel, dim3(grid), dim3(kThreads), arguments,
                                      static_cast<std::size_t>(compiled_row.shared_bytes), stream),
                     kernel.id.c_str());
  if (status.ok()) status = finish(params, launch, stream);
  if (!status.ok() || !c.trace) return status;
  return read_decisions(*launch.args.decisions, w, stream);
}

std::string why_not(const Kernel& kernel, const AttentionProblem& p, const Device& device) {
  const Config& c = config_of(kernel);
  if (device.kind != DeviceKind::kCuda || device.arch != "sm_90")
    return "runs on Hopper (sm_90) only";
  return why_not_config(c, c.head_dim == 64 ? 0 : 64, layout::kRowBlock, p);
}

// Share of the dense fp16 peak that each product reaches, measured (docs/kernels/sm90.md).
double cost(const Kernel& kernel, const AttentionProblem& p, const Device& device) {
  const Config& c = config_of(kernel);
  const double qk = c.qk == QKProduct::kExact ? 0.65 : 1.2;
  const double pv = c.score == ScorePattern::kPair ? 1.2 : 0.65;
  return estimated_seconds(p, device, c.head_dim, qk, pv);
}

std::size_t workspace(const Kernel& kernel, const AttentionProblem& p, const Device&) {
  return Workspace(p, needs_of(config_of(kernel)), nullptr).bytes;
}

std::vector<Kernel> make_kernels() {
  std::vector<Kernel> all;
  for (const Config& c : kRows) {
    Kernel row = kernel_of(c, "sm90", static_cast<int>(all.size()));
    row.arch = "sm_90";
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
