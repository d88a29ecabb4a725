// From the operator's arguments to a problem: shapes, packed lengths, mode "auto".
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tensors.h"
#include "twofour/attention.h"

namespace twofour::py {

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
  std::int64_t max_seqlen_q;  // -1: taken from cu_seqlens_q, which must be on the CPU then
  std::int64_t max_seqlen_k;
  std::string kernel;
};

/// The CPU as torch.set_num_threads leaves it.
Result<Device> host_device();

/// Where a tensor is, as plans see it. Raises what cpu_device and cuda_device refuse.
Device device_of(const Tensor& tensor);

/// Raises kInvalidArgument when a tensor is not where q is.
void check_devices(const Call& call);

/// The problem of a call, with everything but the sparsity filled in. Raises kInvalidArgument when
/// ranks, masks, lengths or transforms do not fit together; values are checked by the core. Reads
/// nothing in the memory of a CUDA device, so that the longest sequences must be given there.
AttentionProblem make_problem(const Call& call);

/// Sets problem.sparsity from a mode name, a canonical string or "auto" and plans on the device.
Plan make_plan(AttentionProblem problem, const Device& device, const std::string& sparsity,
               const std::string& kernel);

/// Shape checks of T, T^-T and w: raises, or returns the transform that views them.
KeyTransform make_transform(const Call& call, const AttentionProblem& problem);

}  // namespace twofour::py
