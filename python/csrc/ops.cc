// The torch operators, through LibTorch's stable ABI: one binary for torch 2.10 and newer.
//
// Only shapes, pointers and texts cross; every decision is the core's. Fake kernels and the checks
// that need Python (gradients, devices) are in python/twofour/ops.py.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <charconv>
#include <cstring>
#include <new>
#include <tuple>
#include <vector>

#include "problem.h"
#include "stream.h"
#include "tensors.h"
#include "twofour/attention.h"
#include "twofour/sparsity.h"

#ifndef TWOFOUR_VERSION
#error "TWOFOUR_VERSION is defined by CMake"
#endif

namespace twofour::py {
namespace {

/// Units, refined, dropped, pruned_pairs, live_pairs: AttentionStats as an int64 tensor.
constexpr int64_t kStats = sizeof(AttentionStats) / sizeof(int64_t);

struct Outputs {
  Tensor o;
  Tensor lse;
  Tensor stats;
};

/// Plans and runs a call; `decisions` non-null asks for a trace.
Outputs run(const Call& given, Decisions* decisions) {
  Call call = given;
  check_devices(call);
  const Device device = device_of(call.q);
  const bool on_cuda = device.kind == DeviceKind::kCuda;
  std::optional<torch::stable::accelerator::DeviceGuard> current;
  if (on_cuda) current.emplace(device.index);
  call.q = readable(call.q, "q");
  call.k = readable(call.k, "k");
  call.v = readable(call.v, "v");

  AttentionProblem problem = make_problem(call);
  problem.trace = decisions != nullptr;
  const Plan plan = make_plan(problem, device, call.sparsity, call.kernel);
  problem = plan.problem();
  if (decisions) *decisions = make_decisions(problem);

  const auto o_shape =
      problem.packed ? std::vector<int64_t>{problem.total_q, problem.heads_q, problem.head_dim_v}
                     : std::vector<int64_t>{problem.batch, problem.seqlen_q, problem.heads_q,
                                            problem.head_dim_v};
  const auto lse_shape =
      problem.packed ? std::vector<int64_t>{problem.heads_q, problem.total_q}
                     : std::vector<int64_t>{problem.batch, problem.heads_q, problem.seqlen_q};
  Outputs out{new_tensor(call.q, o_shape, call.q.scalar_type(), "o"),
              new_tensor(call.q, lse_shape, ScalarType::Float, "lse"),
              new_tensor(call.q, {kStats}, ScalarType::Long, "stats")};
  const auto bytes = static_cast<int64_t>(plan.workspace_bytes());
  const Tensor workspace = new_tensor(call.q, {bytes}, ScalarType::Byte, "workspace");

  AttentionArgs args;
  args.q = view(call.q, "q");
  args.k = view(call.k, "k");
  args.v = view(call.v, "v");
  args.o = mutable_view(out.o, "o");
  args.lse = mutable_view(out.lse, "lse");
  if (problem.packed) {
    args.cu_seqlens_q = call.cu_seqlens_q->const_data_ptr<int32_t>();
    args.cu_seqlens_k = call.cu_seqlens_k->const_data_ptr<int32_t>();
  }
  if (call.mask) args.mask = view(*call.mask, "mask");
  KeyTransform transform;
  if (call.t_q) {
    transform = make_transform(call, problem);
    args.transform = &transform;
  }
  args.stats = static_cast<AttentionStats*>(out.stats.mutable_data_ptr());
  args.decisions = decisions;
  // torch keeps the workspace from other streams until this one is past it.
  check(plan.run(args, workspace.mutable_data_ptr(), static_cast<std::size_t>(bytes),
                 on_cuda ? current_cuda_stream(device.index) : nullptr));
  return out;
}

std::tuple<Tensor, Tensor, Tensor> attention(const Call& call) {
  const Outputs out = run(call, nullptr);
  return {out.o, out.lse, out.stats};
}

/// kept bool [Hq, rows, N], unit uint8 [Hq, rows, half_blocks], rows as in Decisions.
std::tuple<Tensor, Tensor, Tensor, Tensor> trace(const Call& call) {
  Decisions decisions;
  const Outputs out = run(call, &decisions);
  const Decisions& d = decisions;
  const Tensor kept = new_cpu_tensor({d.heads, d.rows, d.keys}, ScalarType::Bool, "kept");
  auto* bits = static_cast<bool*>(kept.mutable_data_ptr());
  for (int64_t head = 0; head < d.heads; ++head) {
    for (int64_t row = 0; row < d.rows; ++row) {
      for (int64_t key = 0; key < d.keys; ++key) *bits++ = d.is_kept(head, row, key);
    }
  }
  const Tensor unit = new_cpu_tensor({d.heads, d.rows, d.half_blocks}, ScalarType::Byte, "unit");
  if (!d.unit.empty()) std::memcpy(unit.mutable_data_ptr(), d.unit.data(), d.unit.size());
  return {out.o, out.lse, moved_like(kept, call.q, "kept"), moved_like(unit, call.q, "unit")};
}

/// One parameter list for both operators: the schema's order, gathered into a Call.
template <auto Finish>
auto from_schema(const Tensor& q, const Tensor& k, const Tensor& v,
                 const std::optional<Tensor>& mask, const std::optional<Tensor>& cu_seqlens_q,
                 const std::optional<Tensor>& cu_seqlens_k, const std::optional<Tensor>& t_q,
                 const std::optional<Tensor>& t_k, const std::optional<Tensor>& w,
                 const std::string& sparsity, bool causal, bool top_left, int64_t window_left,
                 int64_t window_right, const std::optional<double>& scale, int64_t max_seqlen_q,
                 int64_t max_seqlen_k, const std::string& kernel) {
  try {
    return Finish(Call{q, k, v, mask, cu_seqlens_q, cu_seqlens_k, t_q, t_k, w, sparsity, causal,
                       top_left, window_left, window_right, scale, max_seqlen_q, max_seqlen_k,
                       kernel});
  } catch (const std::bad_alloc&) {
    raise(Status(Code::kOutOfMemory,
                 "out of memory beside the outputs; a trace needs heads * rows * keys bytes"));
  }
}

constexpr auto attention_op = from_schema<attention>;
constexpr auto trace_op = from_schema<trace>;

int to_int(int64_t number, const char* what) {
  if (number < 0 || number > INT32_MAX) {
    raise_invalid(std::string(what) + ": expected 0 .. 2147483647, got " + std::to_string(number));
  }
  return static_cast<int>(number);
}

/// The plan of a problem given by numbers alone: (sparsity, kernel id, the printout).
std::tuple<std::string, std::string, std::string> explain(
    const std::string& dtype, int64_t batch, int64_t heads_q, int64_t heads_kv, int64_t head_dim,
    int64_t head_dim_v, int64_t seqlen_q, int64_t seqlen_k, bool packed, int64_t total_q,
    int64_t total_k, bool causal, bool top_left, int64_t window_left, int64_t window_right,
    bool has_mask, bool has_transform, const std::string& sparsity, const std::string& kernel,
    int64_t cuda_index) {
  AttentionProblem problem;
  bool known = false;
  for (const DType candidate : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (dtype == to_string(candidate)) {
      problem.dtype = candidate;
      known = true;
    }
  }
  if (!known) raise_invalid("dtype: expected fp32, fp16 or bf16, got " + dtype);
  problem.batch = batch;
  problem.heads_q = heads_q;
  problem.heads_kv = heads_kv;
  problem.head_dim = head_dim;
  problem.head_dim_v = head_dim_v;
  problem.seqlen_q = seqlen_q;
  problem.seqlen_k = seqlen_k;
  problem.packed = packed;
  problem.total_q = total_q;
  problem.total_k = total_k;
  problem.causal = causal;
  problem.align = top_left ? Align::kTopLeft : Align::kBottomRight;
  problem.window = {window_left, window_right};
  problem.has_mask = has_mask;
  problem.has_transform = has_transform;
  const Device device =
      value(cuda_index < 0 ? host_device() : cuda_device(to_int(cuda_index, "cuda_index")));
  const Plan plan = make_plan(problem, device, sparsity, kernel);
  return {to_string(plan.problem().sparsity), plan.kernel_id(), plan.explain()};
}

/// A float as the double of its shortest decimal: 0.1f reads 0.1 in Python.
std::optional<double> shortest(const std::optional<float>& number) {
  if (!number) return std::nullopt;
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), *number).ptr;
  double out = *number;
  std::from_chars(text, end, out);
  return out;
}

std::tuple<std::string, std::string, int64_t, int64_t, int64_t, std::optional<double>,
           std::optional<double>>
parse_sparsity_op(const std::string& text, int64_t head_dim) {
  Sparsity s = value(parse_sparsity(text));
  check(validate(s));
  if (head_dim > 0) s = resolved(s, head_dim);
  return {to_string(s.qk), to_string(s.score), s.block,         s.sink_blocks,
          s.local_blocks,  shortest(s.refine), shortest(s.drop)};
}

/// The canonical string of the fields, validated.
std::string format_sparsity(const std::string& qk, const std::string& score, int64_t block,
                            int64_t sink_blocks, int64_t local_blocks,
                            const std::optional<double>& refine,
                            const std::optional<double>& drop) {
  Sparsity s;
  bool qk_known = false;
  for (const auto c : {QKProduct::kExact, QKProduct::kNm24, QKProduct::kInt8}) {
    if (qk == to_string(c)) s.qk = c, qk_known = true;
  }
  if (!qk_known) raise_invalid("qk: expected exact, nm24 or int8, got " + qk);
  bool score_known = false;
  for (const auto c : {ScorePattern::kNone, ScorePattern::kPair, ScorePattern::kNm24Strided,
                       ScorePattern::kNm24Adjacent}) {
    if (score == to_string(c)) s.score = c, score_known = true;
  }
  if (!score_known) {
    raise_invalid("score: expected none, pair, nm24_strided or nm24_adjacent, got " + score);
  }
  s.block = to_int(block, "block");
  s.sink_blocks = to_int(sink_blocks, "sink_blocks");
  s.local_blocks = to_int(local_blocks, "local_blocks");
  if (refine) s.refine = static_cast<float>(*refine);
  if (drop) s.drop = static_cast<float>(*drop);
  check(validate(s));
  return to_string(s);
}

/// Name, instruction set and threads of the CPU device, or why there is none.
std::tuple<std::string, std::string, int64_t, std::string> cpu_info() {
  const auto device = host_device();
  if (!device.ok()) return {"", "", 0, device.status().message()};
  return {device->name, device->arch, device->threads, ""};
}

/// Name, architecture and multiprocessors of a CUDA device, or why it cannot be used.
std::tuple<std::string, std::string, int64_t, std::string> cuda_info(int64_t index) {
  const auto device = cuda_device(to_int(index, "index"));
  if (!device.ok()) return {"", "", 0, device.status().message()};
  return {device->name, device->arch, device->multiprocessors, ""};
}

/// Ids of all kernels, one a line, in the registry's order.
std::string kernels() {
  // Any problem that some row serves: a plan lists every row, also the refused ones.
  AttentionProblem problem;
  problem.seqlen_q = problem.seqlen_k = 1;
  const Plan plan = make_plan(problem, value(host_device()), "dense", "attention.ref");
  std::string out;
  for (const Candidate& candidate : plan.candidates()) {
    if (!out.empty()) out += '\n';
    out += candidate.kernel_id;
  }
  return out;
}

std::string version() { return TWOFOUR_VERSION; }

}  // namespace
}  // namespace twofour::py

#define TWOFOUR_ATTENTION_ARGS                                                                \
  "(Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, " \
  "Tensor? t_q, Tensor? t_k, Tensor? w, str sparsity, bool causal, bool top_left, "           \
  "SymInt window_left, SymInt window_right, float? scale, SymInt max_seqlen_q, "              \
  "SymInt max_seqlen_k, str kernel)"

STABLE_TORCH_LIBRARY(twofour, m) {
  m.def("attention" TWOFOUR_ATTENTION_ARGS " -> (Tensor o, Tensor lse, Tensor stats)");
  m.def("trace" TWOFOUR_ATTENTION_ARGS " -> (Tensor o, Tensor lse, Tensor kept, Tensor unit)");
  m.def(
      "explain(str dtype, int batch, int heads_q, int heads_kv, int head_dim, int head_dim_v, "
      "int seqlen_q, int seqlen_k, bool packed, int total_q, int total_k, bool causal, "
      "bool top_left, int window_left, int window_right, bool has_mask, bool has_transform, "
      "str sparsity, str kernel, int cuda_index) -> (str sparsity, str kernel, str text)");
  m.def(
      "parse_sparsity(str text, int head_dim) -> (str qk, str score, int block, int sink_blocks, "
      "int local_blocks, float? refine, float? drop)");
  m.def(
      "format_sparsity(str qk, str score, int block, int sink_blocks, int local_blocks, "
      "float? refine, float? drop) -> str");
  m.def("cpu_info() -> (str name, str arch, int threads, str why_not)");
  m.def("cuda_info(int index) -> (str name, str arch, int multiprocessors, str why_not)");
  m.def("kernels() -> str");
  m.def("version() -> str");
}

STABLE_TORCH_LIBRARY_IMPL(twofour, CPU, m) {
  m.impl("attention", TORCH_BOX(twofour::py::attention_op));
  m.impl("trace", TORCH_BOX(twofour::py::trace_op));
}

STABLE_TORCH_LIBRARY_IMPL(twofour, CUDA, m) {
  m.impl("attention", TORCH_BOX(twofour::py::attention_op));
  m.impl("trace", TORCH_BOX(twofour::py::trace_op));
}

STABLE_TORCH_LIBRARY_IMPL(twofour, CompositeExplicitAutograd, m) {
  m.impl("explain", TORCH_BOX(&twofour::py::explain));
  m.impl("parse_sparsity", TORCH_BOX(&twofour::py::parse_sparsity_op));
  m.impl("format_sparsity", TORCH_BOX(&twofour::py::format_sparsity));
  m.impl("cpu_info", TORCH_BOX(&twofour::py::cpu_info));
  m.impl("cuda_info", TORCH_BOX(&twofour::py::cuda_info));
  m.impl("kernels", TORCH_BOX(&twofour::py::kernels));
  m.impl("version", TORCH_BOX(&twofour::py::version));
}
