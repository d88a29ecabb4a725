#include "capi/convert.h"

#include <algorithm>

namespace twofour::capi {
namespace {

thread_local std::string last_message;

static_assert(TWOFOUR_OK == int(Code::kOk) && TWOFOUR_INTERNAL == int(Code::kInternal) &&
              TWOFOUR_INVALID_ARGUMENT == int(Code::kInvalidArgument) &&
              TWOFOUR_UNSUPPORTED == int(Code::kUnsupported) &&
              TWOFOUR_NOT_FOUND == int(Code::kNotFound) && TWOFOUR_IO == int(Code::kIo) &&
              TWOFOUR_CORRUPT == int(Code::kCorrupt) &&
              TWOFOUR_OUT_OF_MEMORY == int(Code::kOutOfMemory));
static_assert(TWOFOUR_FP32 == int(DType::kF32) && TWOFOUR_FP16 == int(DType::kF16) &&
              TWOFOUR_BF16 == int(DType::kBF16) && TWOFOUR_FP64 == int(DType::kF64) &&
              TWOFOUR_INT8 == int(DType::kI8) && TWOFOUR_UINT8 == int(DType::kU8) &&
              TWOFOUR_BOOL == int(DType::kBool) && TWOFOUR_INT32 == int(DType::kI32) &&
              TWOFOUR_INT64 == int(DType::kI64));
static_assert(TWOFOUR_BOTTOM_RIGHT == int(Align::kBottomRight) &&
              TWOFOUR_TOP_LEFT == int(Align::kTopLeft));
static_assert(TWOFOUR_CPU == int(DeviceKind::kCpu) && TWOFOUR_CUDA == int(DeviceKind::kCuda));
static_assert(int(TWOFOUR_MAX_RANK) == kMaxRank);

// The sizes of version 0.1.0: constants of the ABI, never to be changed. Structs only grow.
constexpr std::size_t kProblemV1 = 144;
constexpr std::size_t kTransformV1 = 48;
constexpr std::size_t kArgsV1 = 624;
constexpr std::size_t kStatsV1 = 48;
static_assert(sizeof(twofour_attention_problem) >= kProblemV1 &&
              sizeof(twofour_key_transform) >= kTransformV1 &&
              sizeof(twofour_attention_args) >= kArgsV1 &&
              sizeof(twofour_attention_stats) >= kStatsV1);
static_assert(sizeof(twofour_tensor) == 96, "embedded in other structs, so it never grows");

Result<DType> to_dtype(const std::string& name, std::int32_t dtype) {
  if (dtype >= TWOFOUR_FP32 && dtype <= TWOFOUR_INT64) return static_cast<DType>(dtype);
  return {Code::kInvalidArgument, name + ": expected a dtype in " + std::to_string(TWOFOUR_FP32) +
                                      ".." + std::to_string(TWOFOUR_INT64) + ", got " +
                                      std::to_string(dtype)};
}

template <class View>
Status to_view(const std::string& name, const twofour_tensor& in, View& out) {
  const auto dtype = to_dtype(name, in.dtype);
  if (!dtype.ok()) return dtype.status();
  if (in.rank < 0 || in.rank > TWOFOUR_MAX_RANK) {
    return {Code::kInvalidArgument, name + ": expected a rank in 0.." +
                                        std::to_string(TWOFOUR_MAX_RANK) + ", got " +
                                        std::to_string(in.rank)};
  }
  out.data = in.data;
  out.dtype = *dtype;
  out.rank = in.rank;
  // Entries beyond the rank may hold anything; here they are zero, so that views compare.
  std::copy_n(in.shape, in.rank, out.shape.begin());
  std::copy_n(in.stride, in.rank, out.stride.begin());
  return {};
}

}  // namespace

twofour_code report(Code code, const char* message) noexcept {
  try {
    last_message = message;
  } catch (...) {
    last_message.clear();
  }
  return static_cast<twofour_code>(code);
}

twofour_code report(const Status& status) noexcept {
  return report(status.code(), status.message().c_str());
}

const char* last_error() noexcept { return last_message.c_str(); }

Result<AttentionProblem> to_problem(const twofour_attention_problem* in) {
  twofour_attention_problem from;
  twofour_attention_problem_init(&from);
  Status status = read_struct("problem", in, kProblemV1, from);
  if (!status.ok()) return status;
  const auto dtype = to_dtype("problem.dtype", from.dtype);
  if (!dtype.ok()) return dtype.status();
  const auto sparsity = parse_sparsity(from.sparsity == nullptr ? "dense" : from.sparsity);
  if (!sparsity.ok()) return sparsity.status();
  if (from.align != TWOFOUR_BOTTOM_RIGHT && from.align != TWOFOUR_TOP_LEFT) {
    return {Code::kInvalidArgument,
            "problem.align: expected 0 (bottom-right) or 1 (top-left), got " +
                std::to_string(from.align)};
  }
  if (from.reserved != 0) {
    return {Code::kInvalidArgument,
            "problem.reserved: expected 0, got " + std::to_string(from.reserved)};
  }
  AttentionProblem to;
  to.dtype = *dtype;
  to.batch = from.batch;
  to.heads_q = from.heads_q;
  to.heads_kv = from.heads_kv;
  to.head_dim = from.head_dim;
  to.head_dim_v = from.head_dim_v;
  to.seqlen_q = from.seqlen_q;
  to.seqlen_k = from.seqlen_k;
  to.packed = from.packed != 0;
  to.total_q = from.total_q;
  to.total_k = from.total_k;
  to.causal = from.causal != 0;
  to.align = static_cast<Align>(from.align);
  to.window = {from.window_left, from.window_right};
  to.has_mask = from.has_mask != 0;
  to.has_transform = from.has_transform != 0;
  to.has_prepared_k = from.has_prepared_k != 0;
  if (from.has_scale != 0) to.scale = from.scale;
  to.sparsity = *sparsity;
  return to;
}

Status to_arguments(const twofour_attention_args* in, DeviceKind device, Arguments& out) {
  twofour_attention_args from;
  twofour_attention_args_init(&from);
  Status status = read_struct("args", in, kArgsV1, from);
  if (status.ok()) status = to_view("q", from.q, out.args.q);
  if (status.ok()) status = to_view("k", from.k, out.args.k);
  if (status.ok()) status = to_view("v", from.v, out.args.v);
  if (status.ok()) status = to_view("o", from.o, out.args.o);
  if (status.ok()) status = to_view("lse", from.lse, out.args.lse);
  if (status.ok()) status = to_view("mask", from.mask, out.args.mask);
  if (!status.ok()) return status;
  out.args.cu_seqlens_q = from.cu_seqlens_q;
  out.args.cu_seqlens_k = from.cu_seqlens_k;
  if (from.transform != nullptr) {
    twofour_key_transform transform{};
    status = read_struct("transform", from.transform, kTransformV1, transform);
    if (!status.ok()) return status;
    out.transform = {transform.heads_kv, transform.head_dim, transform.t_q, transform.t_k,
                     transform.w};
    out.args.transform = &out.transform;
  }
  if (from.prepared_k != nullptr) out.args.prepared_k = &from.prepared_k->value;
  const bool on_cuda = device == DeviceKind::kCuda;
  if (on_cuda && from.stats != nullptr) {
    return {Code::kInvalidArgument,
            "stats: expected NULL on CUDA, whose counts go to device_stats, got a pointer"};
  }
  if (!on_cuda && from.device_stats != nullptr) {
    return {Code::kInvalidArgument,
            "device_stats: expected NULL on the CPU, whose counts go to stats, got a pointer"};
  }
  // The same five counts in the same order, in memory that only the device touches.
  static_assert(sizeof(AttentionStats) == 5 * sizeof(std::int64_t));
  out.args.stats = reinterpret_cast<AttentionStats*>(from.device_stats);
  if (from.stats != nullptr) {
    twofour_attention_stats checked{};
    status = read_struct("stats", from.stats, kStatsV1, checked);
    if (!status.ok()) return status;
    out.stats_out = from.stats;
    out.args.stats = &out.stats;
  }
  return {};
}

void write_stats(const Arguments& arguments) {
  if (arguments.stats_out == nullptr) return;
  twofour_attention_stats& out = *arguments.stats_out;
  out.units = arguments.stats.units;
  out.refined = arguments.stats.refined;
  out.dropped = arguments.stats.dropped;
  out.pruned_pairs = arguments.stats.pruned_pairs;
  out.live_pairs = arguments.stats.live_pairs;
}

}  // namespace twofour::capi
