// From the operator's arguments to a problem: shapes, packed lengths, mode "auto".
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tensors.h"
#include "twofour/attention.h"

namespace twofour::py {

/// "auto" is dense below these lengths: a shorter prompt has next to nothing to prune, and a few
/// new tokens over a cache do not repay quantising it.
inline constexpr std::int64_t kAutoMinKeys = 1024;
inline constexpr std::int64_t kAutoMinRows = 64;

/// The arguments of twofour::attention and twofour::trace, in the order of their schema.
struct Call {
  Tensor q;                            // [B,M,Hq,D], packed [Tq,Hq,D]
  Tensor k;                            // [B,N,Hkv,D], packed [Tk,Hkv,D]
  Tensor v;                            // [B,N,Hkv,Dv], packed [Tk,Hkv,Dv]
  std::optional<Tensor> mask;          // bool [B,Hq,M,N]
  std::optional<Tensor> cu_seqlens_q;  // int32 [B+1]
  std::optional<Tensor> cu_seqlens_k;  // int32 [B+1]
  std::optional<Tensor> t_q;           // fp32 [Hkv,D,D]
  std::optional<Tensor> t_k;           // fp32 [Hkv,D,D]
  std::optional<Tensor> w;             // fp32 [Hkv,D]
  std::string sparsity;
  bool causal;
  bool top_left;
  std::int64_t window_left;
  std::int64_t window_right;
  std::optional<double> scale;
  std::int64_t max_seqlen_q;  // -1: taken from cu_seqlens_q
  std::int64_t max_seqlen_k;
  std::string kernel;
};

/// The problem of a call, with everything but the sparsity filled in. Raises kInvalidArgument when
/// ranks, masks, lengths or transforms do not fit together; values are checked by the core.
AttentionProblem make_problem(const Call& call);

/// Sets problem.sparsity from a mode name, a canonical string or "auto" and plans on the CPU.
/// "auto" is the first of int8, score and dense that is not refused, and dense for short problems.
Plan make_plan(AttentionProblem problem, const std::string& sparsity, const std::string& kernel);

/// Shape checks of T, T^-T and w: raises, or returns the transform that views them.
KeyTransform make_transform(const Call& call, const AttentionProblem& problem);

}  // namespace twofour::py
