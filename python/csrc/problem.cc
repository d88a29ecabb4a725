#include "problem.h"

#include <algorithm>

#include "plan/cache.h"

namespace twofour::py {
namespace {

std::string shape_text(const Tensor& tensor, const char* what) {
  return shape_string(view(tensor, what));
}

/// Checks an int32 [B+1] vector; returns its longest sequence, -1 for one on CUDA. Order is checked
/// by the core, and no sequence is read here beyond the vector itself.
std::int64_t longest(const Tensor& cu_seqlens, const char* what) {
  if (cu_seqlens.scalar_type() != ScalarType::Int || cu_seqlens.dim() != 1 ||
      cu_seqlens.numel() < 1 || !cu_seqlens.is_contiguous()) {
    raise_invalid(
        std::string(what) + ": expected a contiguous int32 vector of batch + 1 offsets, got " +
        to_string(to_dtype(cu_seqlens.scalar_type(), what)) + " " + shape_text(cu_seqlens, what));
  }
  if (cu_seqlens.is_cuda()) return -1;
  const auto* offsets = cu_seqlens.const_data_ptr<std::int32_t>();
  std::int64_t most = 0;
  for (std::int64_t i = 1; i < cu_seqlens.numel(); ++i) {
    most = std::max(most, std::int64_t{offsets[i]} - offsets[i - 1]);
  }
  return most;
}

std::int64_t checked_longest(const Tensor& cu_seqlens, std::int64_t claimed, const char* name) {
  const std::int64_t found = longest(cu_seqlens, (std::string("cu_seqlens_") + name).c_str());
  if (claimed < 0 && found < 0) {
    raise_invalid(std::string("max_seqlen_") + name +
                  ": expected the longest sequence, since cu_seqlens_" + name +
                  " is on a CUDA device, got none");
  }
  if (claimed < 0) return found;
  if (claimed < found) {
    raise_invalid(std::string("max_seqlen_") + name + ": expected at least " +
                  std::to_string(found) + ", the longest sequence, got " + std::to_string(claimed));
  }
  return claimed;
}

const float* transform_data(const std::optional<Tensor>& tensor, const char* what,
                            std::initializer_list<std::int64_t> shape) {
  const auto expected = contiguous(static_cast<const void*>(nullptr), DType::kF32, shape);
  const auto got = view(*tensor, what);
  if (got.dtype != DType::kF32 || got.rank != expected.rank || got.shape != expected.shape ||
      !tensor->is_contiguous()) {
    raise_invalid(std::string(what) + ": expected contiguous fp32 " + shape_string(expected) +
                  ", got " + to_string(got.dtype) + " " + shape_string(got));
  }
  return static_cast<const float*>(got.data);
}

}  // namespace

Result<Device> host_device() {
  // A thread that torch has not used yet does not know torch.set_num_threads; asking makes torch
  // set OpenMP's number of threads, which the CPU kernels go by.
  (void)torch::stable::get_num_threads();
  return cpu_device();
}

Device device_of(const Tensor& tensor) {
  return value(tensor.is_cuda() ? cuda_device(tensor.get_device_index()) : host_device());
}

void check_devices(const Call& call) {
  const auto text = [](const Tensor& tensor) {
    return tensor.is_cuda() ? "cuda:" + std::to_string(tensor.get_device_index()) : "cpu";
  };
  const auto one = [&](const char* name, const Tensor& tensor) {
    if (same_device(tensor, call.q)) return;
    raise_invalid(std::string(name) + ": expected a tensor on " + text(call.q) +
                  " like q, got one on " + text(tensor));
  };
  one("k", call.k);
  one("v", call.v);
  const std::pair<const char*, const std::optional<Tensor>*> others[] = {
      {"mask", &call.mask},
      {"cu_seqlens_q", &call.cu_seqlens_q},
      {"cu_seqlens_k", &call.cu_seqlens_k},
      {"t_q", &call.t_q},
      {"t_k", &call.t_k},
      {"w", &call.w}};
  for (const auto& [name, tensor] : others) {
    if (*tensor) one(name, **tensor);
  }
}

AttentionProblem make_problem(const Call& call) {
  AttentionProblem problem;
  problem.packed = call.cu_seqlens_q.has_value();
  if (problem.packed != call.cu_seqlens_k.has_value()) {
    raise_invalid("cu_seqlens_q and cu_seqlens_k: expected both or neither, got one");
  }
  const std::int64_t rank = problem.packed ? 3 : 4;
  const std::pair<const Tensor*, const char*> inputs[] = {
      {&call.q, "q"}, {&call.k, "k"}, {&call.v, "v"}};
  for (const auto& [tensor, what] : inputs) {
    if (tensor->dim() != rank) {
      raise_invalid(std::string(what) + ": expected " +
                    (problem.packed ? "[tokens, heads, dim] with cu_seqlens"
                                    : "[batch, length, heads, dim]") +
                    ", got " + shape_text(*tensor, what));
    }
  }
  problem.dtype = to_dtype(call.q.scalar_type(), "q");
  problem.heads_q = call.q.size(rank - 2);
  problem.heads_kv = call.k.size(rank - 2);
  problem.head_dim = call.q.size(rank - 1);
  problem.head_dim_v = call.v.size(rank - 1);
  if (problem.packed) {
    problem.seqlen_q = checked_longest(*call.cu_seqlens_q, call.max_seqlen_q, "q");
    problem.seqlen_k = checked_longest(*call.cu_seqlens_k, call.max_seqlen_k, "k");
    problem.batch = call.cu_seqlens_q->numel() - 1;
    if (call.cu_seqlens_k->numel() - 1 != problem.batch) {
      raise_invalid("cu_seqlens_k: expected " + std::to_string(problem.batch + 1) +
                    " offsets like cu_seqlens_q, got " +
                    std::to_string(call.cu_seqlens_k->numel()));
    }
    problem.total_q = call.q.size(0);
    problem.total_k = call.k.size(0);
  } else {
    problem.batch = call.q.size(0);
    problem.seqlen_q = call.q.size(1);
    problem.seqlen_k = call.k.size(1);
  }
  problem.causal = call.causal;
  problem.align = call.top_left ? Align::kTopLeft : Align::kBottomRight;
  problem.window = {call.window_left, call.window_right};
  problem.has_mask = call.mask.has_value();
  problem.has_transform = call.t_q.has_value();
  if (call.t_q.has_value() != call.t_k.has_value() || (call.w && !call.t_q)) {
    raise_invalid("calibration: expected t_q and t_k together, and w only with them");
  }
  if (call.scale) problem.scale = static_cast<float>(*call.scale);
  return problem;
}

Plan make_plan(AttentionProblem problem, const Device& device, const std::string& sparsity,
               const std::string& kernel) {
  // The layers of a model share a problem, and few problems are in use at a time.
  static PlanCache cache(64);
  const PlanOptions options{kernel};
  if (sparsity == "auto") return value(cache.plan_auto(problem, device, options));
  problem.sparsity = value(parse_sparsity(sparsity));
  return value(cache.plan(problem, device, options));
}

KeyTransform make_transform(const Call& call, const AttentionProblem& problem) {
  KeyTransform out;
  out.heads_kv = problem.heads_kv;
  out.head_dim = problem.head_dim;
  const std::int64_t heads = problem.heads_kv;
  const std::int64_t dim = problem.head_dim;
  out.t_q = transform_data(call.t_q, "t_q", {heads, dim, dim});
  out.t_k = transform_data(call.t_k, "t_k", {heads, dim, dim});
  if (call.w) out.w = transform_data(call.w, "w", {heads, dim});
  return out;
}

}  // namespace twofour::py
