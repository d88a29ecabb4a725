// What a launch of attention needs on every architecture: sizes, workspace, preparation of Q and K,
// parameters, and the refusals that do not depend on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "cuda/call_params.h"
#include "layout/key_parts.h"
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
  PartRow* part_rows = nullptr;  // as in CallParams
  float* part_o = nullptr;
  std::int64_t kept_count = 0, unit_count = 0;
  std::size_t bytes = 0;

  Workspace(const AttentionProblem& p, const Needs& needs, void* memory);
  Workspace(const Launch& launch, const Needs& needs);
};

Rows rows_view(const ConstTensorView& view, bool packed);

/// Q and K as the kernel reads them: the caller's, or in the basis of the transform.
Rows query_rows(const Launch& launch, const Workspace& w);
Rows key_rows(const Launch& launch, const Workspace& w);

void fill_params(CallParams& params, const Launch& launch, const Workspace& w);

/// Everything of a launch before the kernel, in the order of the stream.
Status clear_stats(const Launch& launch, cudaStream_t stream);
Status prepare(const Launch& launch, const Needs& needs, const Workspace& w, cudaStream_t stream);

/// Everything after the kernel: partial results of split keys become one.
Status finish(const CallParams& params, const Launch& launch, cudaStream_t stream);

/// Lets a kernel have more shared memory than kernels may by default. The runtime remembers it for
/// the current device, so the first launch on each asks: `reserved` has a bit for each device.
Status reserve_shared(std::atomic<std::uint64_t>& reserved, const void* kernel, int bytes,
                      int device);

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
  if (p.key_splits > 1 && !layout::may_split_keys(p))
    return "splits keys only without refine and drop, and not of packed sequences";
  if (static_cast<double>(max_row_tiles(p, row_tile)) * static_cast<double>(p.heads_q) *
              layout::key_parts(p) * 4 >
          kMaxItems ||
      static_cast<double>(max_key_blocks(p)) > kMaxItems ||
      static_cast<double>(rows_of(p, false)) > kMaxItems)
    return "serves up to 5e8 row blocks and 2e9 keys in a call";
  return "";
}

/// Id and config of row `number` of a family, which is a part of the id.
template <class Config>
Kernel kernel_of(const Config& c, const char* family, int number) {
  Kernel row;
  row.id = std::string("attention.") + to_string(c.dtype) + "." + family + ".d" +
           std::to_string(c.head_dim) + "." + to_string(c.qk) + "." + to_string(c.score) +
           (c.refine ? ".refine" : "") + (c.drop ? ".drop" : "") + (c.trace ? ".trace" : "");
  row.number = number;
  row.config = {c.qk, c.score, c.trace};
  row.key_parts = &layout::key_parts;
  return row;
}

/// Seconds: a launch, and the two products at these shares of the dense fp16 peak.
double estimated_seconds(const AttentionProblem& p, const Device& device, int head_dim, double qk,
                         double pv);

}  // namespace twofour::cuda
