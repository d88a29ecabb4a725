// Work done once per K (and per model): the basis of the pruned query, and the int8 keys.
#pragma once

#include <cstdint>
#include <vector>

#include "twofour/status.h"
#include "twofour/tensor.h"

namespace TWOFOUR_API twofour {

struct AttentionProblem;
struct AttentionArgs;

/// A change of basis per KV head with q' = q T, k' = k T^-T and so q'.k' = q.k, and the weights by
/// which channels of q' are compared. Row-vector convention: q'_e = sum_d q_d t_q[d][e].
struct KeyTransform {
  std::int64_t heads_kv = 0;
  std::int64_t head_dim = 0;
  const float* t_q = nullptr;  // [Hkv,D,D]: T
  const float* t_k = nullptr;  // [Hkv,D,D]: T^-T
  const float* w = nullptr;    // [Hkv,D], > 0; null: all 1
};

/// K as int8: codes of (k - mean) / scale rounded half to even, one scale (amax/127; 0 becomes 1)
/// per key block, the mean over the finite live keys of the sequence per KV head and channel.
/// A live key with a non-finite channel makes its block's scale NaN.
/// Sequences are numbered as in memory; block s of sequence b sits at block_offset[b] + s.
struct PreparedK {
  std::int64_t heads_kv = 0;
  std::int64_t head_dim = 0;
  std::int64_t rows = 0;                   // B * N, or Tk when packed
  std::int64_t blocks = 0;                 // key blocks of all sequences
  int block = 0;                           // keys in a block
  std::vector<std::int64_t> block_offset;  // [B+1]
  std::vector<std::int8_t> codes;          // [Hkv, rows, D]
  std::vector<float> scale;                // [Hkv, blocks]
  std::vector<float> mean;                 // [Hkv, B, D]
};

/// Computes the prepared K of `args.k` for int8 problems; reads q only for its shape.
/// Where k is memory of a CUDA device, computed there as its int8 runs do, and copied to the host:
/// runs on the CPU take it, those on CUDA prepare their own.
/// Errors as for plan and run.
Result<PreparedK> prepare_k(const AttentionProblem& problem, const AttentionArgs& args);

}  // namespace twofour
