// The one place that judges the memory of an attention call: after it, kernels index freely.
#include "ops/check.h"

#include <cmath>
#include <initializer_list>
#include <string_view>

#include "core/decisions.h"
#include "ops/memory.h"
#include "plan/registry.h"

namespace twofour {
namespace {

Status wrong(const std::string& what, const std::string& expected, const std::string& got) {
  return {Code::kInvalidArgument, what + ": expected " + expected + ", got " + got};
}

enum class Strides { kUnitLast, kAny };

/// Rank, shape, dtype, strides, alignment and presence of one tensor.
Status check_view(const std::string& name, const ConstTensorView& view, DType dtype,
                  std::initializer_list<std::int64_t> shape, Strides strides) {
  const ConstTensorView expected = contiguous(static_cast<const void*>(nullptr), dtype, shape);
  if (view.rank < 0 || view.rank > kMaxRank) {
    return wrong(name, "rank " + std::to_string(expected.rank),
                 "rank " + std::to_string(view.rank));
  }
  if (view.rank != expected.rank || view.shape != expected.shape) {
    return wrong(name, "shape " + shape_string(expected), shape_string(view));
  }
  if (view.dtype != dtype) return wrong(name, to_string(dtype), to_string(view.dtype));
  if (view.numel() == 0) return {};
  if (view.data == nullptr) {
    return wrong(name, "memory of shape " + shape_string(view), "a null pointer");
  }
  for (int i = 0; i < view.rank; ++i) {
    if (view.stride[i] < 0) {
      return wrong(name, "strides >= 0",
                   "stride " + std::to_string(view.stride[i]) + " of axis " + std::to_string(i));
    }
  }
  const int last = view.rank - 1;
  if (strides == Strides::kUnitLast && view.shape[last] > 1 && view.stride[last] != 1) {
    return wrong(name, "a last axis of stride 1", "stride " + std::to_string(view.stride[last]));
  }
  if (reinterpret_cast<std::uintptr_t>(view.data) % size_of(dtype) != 0) {
    return wrong(name, "an address aligned to " + std::to_string(size_of(dtype)) + " bytes",
                 "one that is not");
  }
  if (!footprint(view)) return wrong(name, "strides that stay within 63 bits", "larger ones");
  return {};
}

/// One of q, k, v, o: [B,rows,heads,dim], packed [rows,heads,dim].
Status check_operand(const std::string& name, const ConstTensorView& view,
                     const AttentionProblem& p, std::int64_t rows, std::int64_t heads,
                     std::int64_t dim) {
  return p.packed
             ? check_view(name, view, p.dtype, {rows, heads, dim}, Strides::kUnitLast)
             : check_view(name, view, p.dtype, {p.batch, rows, heads, dim}, Strides::kUnitLast);
}

Status check_views(const AttentionProblem& p, const AttentionArgs& args) {
  struct Operand {
    const char* name;
    const ConstTensorView view;
    std::int64_t batch_rows, heads, dim;
  };
  const std::int64_t rows_q = p.packed ? p.total_q : p.seqlen_q;
  const std::int64_t rows_k = p.packed ? p.total_k : p.seqlen_k;
  for (const Operand& t : {Operand{"q", args.q, rows_q, p.heads_q, p.head_dim},
                           Operand{"k", args.k, rows_k, p.heads_kv, p.head_dim},
                           Operand{"v", args.v, rows_k, p.heads_kv, p.head_dim_v},
                           Operand{"o", args.o, rows_q, p.heads_q, p.head_dim_v}}) {
    Status status = check_operand(t.name, t.view, p, t.batch_rows, t.heads, t.dim);
    if (!status.ok()) return status;
  }
  if (args.lse) {
    Status status = p.packed ? check_view("lse", args.lse, DType::kF32, {p.heads_q, p.total_q},
                                          Strides::kUnitLast)
                             : check_view("lse", args.lse, DType::kF32,
                                          {p.batch, p.heads_q, p.seqlen_q}, Strides::kUnitLast);
    if (!status.ok()) return status;
  }
  return {};
}

Status check_mask(const AttentionProblem& p, const AttentionArgs& args) {
  if (!p.has_mask) {
    if (args.mask) return wrong("mask", "none, since the problem's has_mask is false", "a mask");
    return {};
  }
  return check_view("mask", args.mask, DType::kBool, {p.batch, p.heads_q, p.seqlen_q, p.seqlen_k},
                    Strides::kAny);
}

/// Starts at 0, ascends, ends at the number of rows, and no sequence is longer than planned.
Status check_offsets(const std::string& side, const std::int32_t* offsets, std::int64_t batch,
                     std::int64_t total, std::int64_t longest) {
  const std::string name = "cu_seqlens_" + side;
  if (offsets == nullptr) {
    return wrong(name, std::to_string(batch + 1) + " offsets with packed", "a null pointer");
  }
  const auto element = [&](std::int64_t i) { return name + "[" + std::to_string(i) + "]"; };
  if (offsets[0] != 0) return wrong(element(0), "0", std::to_string(offsets[0]));
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t length = std::int64_t{offsets[b + 1]} - offsets[b];
    if (length < 0) {
      return wrong(element(b + 1), "at least " + std::to_string(offsets[b]),
                   std::to_string(offsets[b + 1]));
    }
    if (length > longest) {
      return wrong(
          element(b + 1),
          "a sequence of at most seqlen_" + side + " = " + std::to_string(longest) + " rows",
          std::to_string(length));
    }
  }
  if (offsets[batch] != total) {
    return wrong(element(batch), "total_" + side + " = " + std::to_string(total),
                 std::to_string(offsets[batch]));
  }
  return {};
}

/// TMA reads and writes in steps of 16 bytes, and so do the CUDA kernels without it.
constexpr std::int64_t kCudaAlign = 16;

Status check_cuda_view(const char* name, const ConstTensorView& view) {
  if (view.numel() == 0) return {};
  if (reinterpret_cast<std::uintptr_t>(view.data) % kCudaAlign != 0) {
    return wrong(name, "an address aligned to 16 bytes on CUDA", "one that is not");
  }
  const auto element = static_cast<std::int64_t>(size_of(view.dtype));
  for (int i = 0; i + 1 < view.rank; ++i) {
    const std::int64_t bytes = view.stride[i] * element;
    if (view.shape[i] > 1 && bytes % kCudaAlign != 0) {
      return wrong(name, "strides of a multiple of 16 bytes on CUDA",
                   "stride " + std::to_string(view.stride[i]) + " (" + std::to_string(bytes) +
                       " bytes) of axis " + std::to_string(i));
    }
  }
  return {};
}

Status check_cuda_alignment(const AttentionArgs& args) {
  Status status = check_cuda_view("q", args.q);
  if (status.ok()) status = check_cuda_view("k", args.k);
  if (status.ok()) status = check_cuda_view("v", args.v);
  if (status.ok()) status = check_cuda_view("o", args.o);
  if (status.ok() && reinterpret_cast<std::uintptr_t>(args.stats) % alignof(AttentionStats) != 0) {
    return wrong("stats", "an address aligned to 8 bytes", "one that is not");
  }
  return status;
}

/// Offsets in device memory, whose values only the kernels see.
Status check_cuda_offsets(const std::string& side, const std::int32_t* offsets,
                          std::int64_t batch) {
  const std::string name = "cu_seqlens_" + side;
  if (offsets == nullptr) {
    return wrong(name, std::to_string(batch + 1) + " offsets with packed", "a null pointer");
  }
  if (reinterpret_cast<std::uintptr_t>(offsets) % alignof(std::int32_t) != 0) {
    return wrong(name, "an address aligned to 4 bytes", "one that is not");
  }
  return {};
}

Status check_packed(const AttentionProblem& p, const AttentionArgs& args, DeviceKind kind) {
  if (!p.packed) {
    if (args.cu_seqlens_q != nullptr || args.cu_seqlens_k != nullptr) {
      return wrong("cu_seqlens", "none, since the problem is not packed", "offsets");
    }
    return {};
  }
  if (kind == DeviceKind::kCuda) {
    Status status = check_cuda_offsets("q", args.cu_seqlens_q, p.batch);
    return status.ok() ? check_cuda_offsets("k", args.cu_seqlens_k, p.batch) : status;
  }
  Status status = check_offsets("q", args.cu_seqlens_q, p.batch, p.total_q, p.seqlen_q);
  if (!status.ok()) return status;
  return check_offsets("k", args.cu_seqlens_k, p.batch, p.total_k, p.seqlen_k);
}

Status check_transform(const AttentionProblem& p, const AttentionArgs& args, DeviceKind kind) {
  if (p.sparsity.qk != QKProduct::kNm24) return {};
  if (p.has_transform != (args.transform != nullptr)) {
    return wrong(
        "transform",
        p.has_transform ? "one, since has_transform is true" : "none, since has_transform is false",
        args.transform == nullptr ? "none" : "one");
  }
  if (args.transform == nullptr) return {};
  const KeyTransform& t = *args.transform;
  if (t.heads_kv != p.heads_kv || t.head_dim != p.head_dim) {
    return wrong(
        "transform",
        "heads_kv " + std::to_string(p.heads_kv) + " and head_dim " + std::to_string(p.head_dim),
        std::to_string(t.heads_kv) + " and " + std::to_string(t.head_dim));
  }
  if (t.t_q == nullptr || t.t_k == nullptr) {
    return wrong("transform", "both t_q and t_k", "a null pointer");
  }
  if (kind == DeviceKind::kCuda) return {};
  for (std::int64_t i = 0; t.w != nullptr && i < t.heads_kv * t.head_dim; ++i) {
    if (!(t.w[i] > 0) || !std::isfinite(t.w[i])) {
      return wrong("transform.w[" + std::to_string(i) + "]", "a finite weight > 0",
                   std::to_string(t.w[i]));
    }
  }
  return {};
}

Status check_count(const std::string& what, std::int64_t got, std::int64_t expected) {
  if (got == expected) return {};
  return wrong(what, std::to_string(expected), std::to_string(got));
}

Status check_block_offsets(const AttentionProblem& p, const AttentionArgs& args) {
  const PreparedK& k = *args.prepared_k;
  std::int64_t first = 0;
  for (std::int64_t b = 0; b <= p.batch; ++b) {
    Status status =
        check_count("prepared_k.block_offset[" + std::to_string(b) + "]", k.block_offset[b], first);
    if (!status.ok()) return status;
    if (b == p.batch) break;
    const std::int64_t keys =
        p.packed ? args.cu_seqlens_k[b + 1] - args.cu_seqlens_k[b] : p.seqlen_k;
    first += (keys + k.block - 1) / k.block;
  }
  return check_count("prepared_k.blocks", k.blocks, first);
}

Status check_prepared(const AttentionProblem& p, const AttentionArgs& args) {
  if (p.sparsity.qk != QKProduct::kInt8) return {};
  if (p.has_prepared_k != (args.prepared_k != nullptr)) {
    return wrong("prepared_k",
                 p.has_prepared_k ? "one, since has_prepared_k is true"
                                  : "none, since has_prepared_k is false",
                 args.prepared_k == nullptr ? "none" : "one");
  }
  if (args.prepared_k == nullptr) return {};
  const PreparedK& k = *args.prepared_k;
  struct Count {
    const char* what;
    std::int64_t got, expected;
  };
  for (const Count& c :
       {Count{"prepared_k.heads_kv", k.heads_kv, p.heads_kv},
        Count{"prepared_k.head_dim", k.head_dim, p.head_dim},
        Count{"prepared_k.rows", k.rows, p.packed ? p.total_k : p.batch * p.seqlen_k},
        Count{"prepared_k.block", k.block, p.sparsity.block},
        Count{"prepared_k.block_offset length", std::ssize(k.block_offset), p.batch + 1}}) {
    Status status = check_count(c.what, c.got, c.expected);
    if (!status.ok()) return status;
  }
  Status status = check_block_offsets(p, args);
  if (!status.ok()) return status;
  // Only now are the counts known to be small enough to multiply.
  for (const Count& c :
       {Count{"prepared_k.codes length", std::ssize(k.codes), p.heads_kv * k.rows * p.head_dim},
        Count{"prepared_k.scale length", std::ssize(k.scale), p.heads_kv * k.blocks},
        Count{"prepared_k.mean length", std::ssize(k.mean), p.heads_kv * p.batch * p.head_dim}}) {
    status = check_count(c.what, c.got, c.expected);
    if (!status.ok()) return status;
  }
  return {};
}

Status check_decisions(const AttentionProblem& p, const AttentionArgs& args) {
  if (p.trace != (args.decisions != nullptr)) {
    return wrong("decisions",
                 p.trace ? "some, since the problem's trace is true"
                         : "none, since the problem's trace is false",
                 args.decisions == nullptr ? "none" : "some");
  }
  if (args.decisions == nullptr) return {};
  const Decisions& d = *args.decisions;
  const Decisions want = decisions_shape(p);
  const std::int64_t rows = want.heads * want.rows;
  if (d.heads != want.heads || d.rows != want.rows || d.keys != want.keys ||
      d.words != want.words || d.half_blocks != want.half_blocks ||
      std::ssize(d.kept) != rows * want.words || std::ssize(d.unit) != rows * want.half_blocks) {
    return wrong("decisions", "the sizes of make_decisions for this problem", "others");
  }
  return {};
}

/// Every array that a call reads, by name.
template <class Visit>
void visit_inputs(const AttentionProblem& p, const AttentionArgs& args, Visit visit) {
  const auto view = [&](const char* name, const ConstTensorView& tensor) {
    if (tensor) visit(name, *footprint(tensor));
  };
  view("q", args.q);
  view("k", args.k);
  view("v", args.v);
  view("mask", args.mask);
  const auto array = [&](const char* name, const void* data, std::size_t bytes) {
    if (data != nullptr) visit(name, footprint(data, bytes));
  };
  array("cu_seqlens_q", args.cu_seqlens_q, (p.batch + 1) * sizeof(std::int32_t));
  array("cu_seqlens_k", args.cu_seqlens_k, (p.batch + 1) * sizeof(std::int32_t));
  if (p.sparsity.qk == QKProduct::kNm24 && args.transform != nullptr) {
    const std::size_t vectors = p.heads_kv * p.head_dim * sizeof(float);
    array("transform.t_q", args.transform->t_q, vectors * p.head_dim);
    array("transform.t_k", args.transform->t_k, vectors * p.head_dim);
    array("transform.w", args.transform->w, vectors);
  }
  if (p.sparsity.qk == QKProduct::kInt8 && args.prepared_k != nullptr) {
    const PreparedK& k = *args.prepared_k;
    array("prepared_k.codes", k.codes.data(), k.codes.size());
    array("prepared_k.scale", k.scale.data(), k.scale.size() * sizeof(float));
    array("prepared_k.mean", k.mean.data(), k.mean.size() * sizeof(float));
  }
}

/// Every array that a call writes in the memory of its device, by name.
template <class Visit>
void visit_outputs(const AttentionArgs& args, Visit visit) {
  if (args.o) visit("o", ConstTensorView(args.o));
  if (args.lse) visit("lse", ConstTensorView(args.lse));
  constexpr std::int64_t kCounts = sizeof(AttentionStats) / sizeof(std::int64_t);
  if (args.stats != nullptr) {
    visit("stats", contiguous(static_cast<const void*>(args.stats), DType::kI64, {kCounts}));
  }
}

Status check_overlap(const AttentionProblem& p, const AttentionArgs& args) {
  Status status;
  visit_outputs(args, [&](const char* name, const ConstTensorView& output) {
    if (status.ok() && !elements_distinct(output)) {
      status =
          wrong(name, "strides that give every element its own memory", "elements that share it");
    }
    if (!status.ok()) return;
    const Footprint written = *footprint(output);
    const auto against = [&](const char* other_name, const Footprint& other) {
      if (status.ok() && may_overlap(written, other)) {
        status = wrong(name, "memory that overlaps nothing else",
                       std::string("an overlap with ") + other_name);
      }
    };
    visit_inputs(p, args, against);
    bool later = false;
    visit_outputs(args, [&](const char* other_name, const ConstTensorView& other) {
      if (later) against(other_name, *footprint(other));
      later = later || std::string_view(other_name) == name;
    });
  });
  return status;
}

}  // namespace

Status check_args(const AttentionProblem& problem, const AttentionArgs& args,
                  const Device& device) {
  AttentionProblem p = problem;
  p.sparsity = resolved(p.sparsity, p.head_dim);
  Status status = check_views(p, args);
  if (status.ok()) status = check_mask(p, args);
  if (status.ok() && device.kind == DeviceKind::kCuda) status = check_cuda_alignment(args);
  if (status.ok()) status = check_packed(p, args, device.kind);
  if (status.ok()) status = check_transform(p, args, device.kind);
  if (status.ok()) status = check_prepared(p, args);
  if (status.ok()) status = check_decisions(p, args);
  if (status.ok()) status = check_overlap(p, args);
  return status;
}

Status check_keys(const AttentionProblem& p, const AttentionArgs& args, const Device& device) {
  Status status =
      check_operand("k", args.k, p, p.packed ? p.total_k : p.seqlen_k, p.heads_kv, p.head_dim);
  if (status.ok() && device.kind == DeviceKind::kCuda) status = check_cuda_view("k", args.k);
  if (status.ok()) status = check_mask(p, args);
  if (status.ok()) status = check_packed(p, args, device.kind);
  return status;
}

Status check_workspace(const AttentionProblem& problem, const AttentionArgs& args,
                       const void* workspace, std::size_t bytes) {
  if (bytes == 0) return {};
  const Footprint scratch = footprint(workspace, bytes);
  Status status;
  const auto against = [&](const char* name, const Footprint& other) {
    if (status.ok() && may_overlap(scratch, other)) {
      status = wrong("workspace", "memory that overlaps nothing else",
                     std::string("an overlap with ") + name);
    }
  };
  visit_inputs(problem, args, against);
  visit_outputs(args, [&](const char* name, const ConstTensorView& output) {
    against(name, *footprint(output));
  });
  return status;
}

}  // namespace twofour
