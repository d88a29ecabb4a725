// Attention: describe it, plan it, run it.
//
//   auto plan = twofour::plan(problem, *twofour::cpu_device());   // decides everything
//   if (!plan.ok()) return plan.status();
//   std::vector<std::byte> workspace(plan->workspace_bytes());
//   auto status = plan->run(args, workspace.data(), workspace.size());
//
// Semantics: docs/semantics.md. All strides are in elements and 64-bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "twofour/decisions.h"
#include "twofour/device.h"
#include "twofour/prepare.h"
#include "twofour/sparsity.h"
#include "twofour/status.h"
#include "twofour/tensor.h"

namespace TWOFOUR_API twofour {

/// Where row i of a causal sequence sits: p = i + (N - M), as for a KV cache, or p = i.
enum class Align : std::uint8_t { kBottomRight, kTopLeft };

/// Keys p - left .. p + right are live; -1 leaves that side open.
struct Window {
  std::int64_t left = -1;
  std::int64_t right = -1;
  constexpr bool open() const { return left < 0 && right < 0; }
  friend bool operator==(const Window&, const Window&) = default;
};

inline constexpr int kMaxKeySplits = 64;

/// Everything that decides which kernel runs and how much workspace it needs.
struct AttentionProblem {
  DType dtype = DType::kF32;  // of Q, K, V and O: fp32, fp16, bf16
  std::int64_t batch = 1;     // sequences; with `packed`, len(cu_seqlens) - 1
  std::int64_t heads_q = 1;
  std::int64_t heads_kv = 1;     // divides heads_q
  std::int64_t head_dim = 64;    // of Q and K; a multiple of 8 in 8..256 on the CPU
  std::int64_t head_dim_v = 64;  // of V and O
  std::int64_t seqlen_q = 0;     // M; with `packed`, the longest
  std::int64_t seqlen_k = 0;     // N; with `packed`, the longest
  bool packed = false;           // [T,H,D] with cu_seqlens instead of [B,M,H,D]
  std::int64_t total_q = 0;      // rows of packed Q; ignored otherwise
  std::int64_t total_k = 0;      // rows of packed K
  bool causal = false;
  Align align = Align::kBottomRight;  // read only with causal
  Window window;
  bool has_mask = false;        // a boolean mask will be given; not with `packed`
  bool has_transform = false;   // a KeyTransform will be given; only read by nm24
  bool has_prepared_k = false;  // a PreparedK will be given; only read by int8
  bool trace = false;           // Decisions will be written (debugging rows only)
  std::optional<float> scale;   // default 1/sqrt(head_dim)
  Sparsity sparsity;
  // Parts that CUDA kernels work on the keys of a row in: 0 by rule (docs/semantics.md, rule 10), 1
  // never splits, n is that many up to kMaxKeySplits, refused with refine, drop and `packed`. The
  // CPU and debugging rows never split.
  int key_splits = 0;
  friend bool operator==(const AttentionProblem&, const AttentionProblem&) = default;
};

/// The memory of one call. Pointers stay the caller's.
///
/// For a plan on a CUDA device every pointer here, and those in `transform`, is memory that device
/// can use, which the host never reads: the values of cu_seqlens and of w are not checked, and
/// offsets that are not as described below give undefined results. There the base addresses of q,
/// k, v and o and their strides other than the last are multiples of 16 bytes, and a run returns
/// before its outputs are there: stats as much as o and lse are written in the order of the stream.
/// `decisions` stay memory of the host, so a traced run waits for the stream.
struct AttentionArgs {
  ConstTensorView q;  // [B,M,Hq,D], packed [Tq,Hq,D]; unit last stride
  ConstTensorView k;  // [B,N,Hkv,D], packed [Tk,Hkv,D]
  ConstTensorView v;  // [B,N,Hkv,Dv], packed [Tk,Hkv,Dv]
  TensorView o;       // [B,M,Hq,Dv], packed [Tq,Hq,Dv]; overlaps nothing else
  TensorView lse;     // fp32 natural log, [B,Hq,M], packed [Hq,Tq]; null data: not wanted
  const std::int32_t* cu_seqlens_q = nullptr;  // [B+1], ascending from 0; null without `packed`
  const std::int32_t* cu_seqlens_k = nullptr;  // [B+1]
  ConstTensorView mask;                        // bool [B,Hq,M,N], true = live, strides may be 0
  const KeyTransform* transform = nullptr;     // nm24: null is identity
  const PreparedK* prepared_k = nullptr;       // int8: null computes it in the workspace; CPU only
  AttentionStats* stats = nullptr;             // optional counts, written on success
  Decisions* decisions = nullptr;              // with problem.trace; sized by make_decisions
};

struct Kernel;  // a row of the registry, src/plan/registry.h

/// One row of a plan's printout: a kernel with its predicted seconds, or why it was refused.
struct Candidate {
  std::string kernel_id;
  std::string why_not;  // empty: it can run
  double seconds = 0;   // predicted; 0 when refused
  double measured = 0;  // seconds that `twofour tune` measured here; 0: none
  std::size_t workspace = 0;
  bool chosen = false;
  int key_parts = 1;  // that the keys of a row are worked on in
};

struct PlanOptions {
  std::string kernel_id;  // force this row; empty: the cheapest. The reference is only ever forced.
};

/// An immutable decision; run() is re-entrant with distinct workspaces and outputs.
/// A default-constructed plan is empty: no kernel (id ""), a default problem, no candidates, a
/// workspace of 0 bytes, the explanation "", and run() refuses.
class Plan {
 public:
  const std::string& kernel_id() const;
  const AttentionProblem& problem() const;  // sparsity.block resolved
  const std::vector<Candidate>& candidates() const;
  std::size_t workspace_bytes() const;

  /// The candidates as text, one a line, for `twofour explain`.
  std::string explain() const;

  /// Checks the arguments against the problem, then launches on `stream`. Allocates nothing on
  /// the device and does not synchronise, unless traced. Refused arguments leave all memory as it
  /// is. On CUDA the workspace is memory of the device, which need not be the current one.
  Status run(const AttentionArgs& args, void* workspace, std::size_t workspace_bytes,
             Stream stream = nullptr) const;

 private:
  friend Result<Plan> plan(const AttentionProblem&, const Device&, const PlanOptions&);
  struct State;
  std::shared_ptr<const State> state_;
};

/// kOk, or the first thing wrong with the problem itself.
Status validate(const AttentionProblem& problem);

/// Chooses a kernel. Errors: kInvalidArgument for a contradictory problem; kUnsupported naming
/// every kernel tried and why it was refused; kNotFound for an unknown kernel_id.
Result<Plan> plan(const AttentionProblem& problem, const Device& device,
                  const PlanOptions& options = {});

/// Mode "auto" is dense below these lengths: a shorter prompt has next to nothing to prune, and a
/// few new tokens over a cache do not repay quantising it.
inline constexpr std::int64_t kAutoMinKeys = 1024;
inline constexpr std::int64_t kAutoMinRows = 64;

/// plan with the sparsity of mode "auto", whatever problem.sparsity says: the first of int8, score
/// and dense that is not refused, and dense for short problems. Never a pruned query, whose quality
/// depends on a transform. The plan's problem() says which it is.
Result<Plan> plan_auto(AttentionProblem problem, const Device& device,
                       const PlanOptions& options = {});

/// plan + run in one call with an internally allocated workspace: for scripts and tests. Runs where
/// q lies, on the CPU or on the default stream of a CUDA device, and returns when it is done.
/// `problem`'s shapes and dtype are taken from the views in `args` (packed: batch, seqlen_q and
/// seqlen_k stay as given), has_mask, has_transform, has_prepared_k and trace from what is there.
Status attention(AttentionProblem problem, const AttentionArgs& args);

}  // namespace twofour
