#include "twofour/attention.h"

#include "cuda/device.h"
#include "cuda/memory.h"

namespace twofour {
namespace {

/// Takes the shapes from views of the expected rank; other ranks are left for check_args to name.
void take_shapes(AttentionProblem& problem, const AttentionArgs& args) {
  const int rank = problem.packed ? 3 : 4;
  if (args.q.rank == rank) {
    problem.heads_q = args.q.shape[rank - 2];
    problem.head_dim = args.q.shape[rank - 1];
    (problem.packed ? problem.total_q : problem.seqlen_q) = args.q.shape[rank - 3];
    if (!problem.packed) problem.batch = args.q.shape[0];
  }
  if (args.k.rank == rank) {
    problem.heads_kv = args.k.shape[rank - 2];
    (problem.packed ? problem.total_k : problem.seqlen_k) = args.k.shape[rank - 3];
  }
  if (args.v.rank == rank) problem.head_dim_v = args.v.shape[rank - 1];
  problem.dtype = args.q.dtype;
  problem.has_mask = static_cast<bool>(args.mask);
  problem.has_transform = args.transform != nullptr;
  problem.has_prepared_k = args.prepared_k != nullptr;
  problem.trace = args.decisions != nullptr;
}

}  // namespace

Status attention(AttentionProblem problem, const AttentionArgs& args) {
  take_shapes(problem, args);
  const auto index = cuda::device_of(args.q, args.cu_seqlens_q);
  const auto device = index ? cuda_device(*index) : cpu_device();
  if (!device.ok()) return device.status();
  const auto chosen = plan(problem, *device);
  if (!chosen.ok()) return chosen.status();
  const std::size_t bytes = chosen->workspace_bytes();
  if (!index) {
    const auto workspace = std::make_unique_for_overwrite<std::byte[]>(bytes);
    return chosen->run(args, workspace.get(), bytes);
  }
  const auto workspace = cuda::Buffer::allocate(*index, bytes);
  if (!workspace.ok()) return workspace.status();
  const Status status = chosen->run(args, workspace->data(), bytes);
  return status.ok() ? cuda::synchronize(*index) : status;
}

}  // namespace twofour
