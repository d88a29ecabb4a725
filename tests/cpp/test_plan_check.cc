// Every fault of the arguments is named in one line, and nothing has been written then.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include "plan/registry.h"
#include "twofour/attention.h"

namespace twofour {
namespace {

/// A small problem with all the memory that it may need, in one place so that it can overlap.
struct Call {
  AttentionProblem problem;
  AttentionArgs args;
  std::vector<float> memory = std::vector<float>(1 << 16);
  std::vector<char> mask = std::vector<char>(2 * 4 * 20 * 70, 1);
  std::vector<std::int32_t> offsets_q{0, 12, 20}, offsets_k{0, 30, 70};
  std::vector<float> basis = std::vector<float>(2 * 2 * 16 * 16),
                     weights = std::vector<float>(32, 1);
  KeyTransform transform;
  PreparedK prepared;
  Decisions decisions;
  std::size_t used = 0;

  float* take(std::size_t count) {
    used += count;
    return memory.data() + used - count;
  }

  TensorView view(std::initializer_list<std::int64_t> shape) {
    std::int64_t count = 1;
    for (std::int64_t extent : shape) count *= extent;
    return contiguous(take(count), DType::kF32, shape);
  }
};

constexpr std::int64_t B = 2, M = 20, N = 70, Hq = 4, Hkv = 2, D = 16, Dv = 8;

std::unique_ptr<Call> make_call(bool packed = false) {
  auto call = std::make_unique<Call>();
  AttentionProblem& p = call->problem;
  p.batch = B;
  p.heads_q = Hq;
  p.heads_kv = Hkv;
  p.head_dim = D;
  p.head_dim_v = Dv;
  p.seqlen_q = M;
  p.seqlen_k = N;
  AttentionArgs& a = call->args;
  if (packed) {
    p.packed = true;
    p.total_q = 20;
    p.total_k = 70;
    a.q = call->view({20, Hq, D});
    a.k = call->view({70, Hkv, D});
    a.v = call->view({70, Hkv, Dv});
    a.o = call->view({20, Hq, Dv});
    a.lse = call->view({Hq, 20});
    a.cu_seqlens_q = call->offsets_q.data();
    a.cu_seqlens_k = call->offsets_k.data();
  } else {
    a.q = call->view({B, M, Hq, D});
    a.k = call->view({B, N, Hkv, D});
    a.v = call->view({B, N, Hkv, Dv});
    a.o = call->view({B, M, Hq, Dv});
    a.lse = call->view({B, Hq, M});
  }
  return call;
}

void with_mask(Call& c) {
  c.problem.has_mask = true;
  c.args.mask = contiguous(static_cast<const void*>(c.mask.data()), DType::kBool, {B, Hq, M, N});
}

void with_transform(Call& c) {
  c.problem.sparsity = preset(Mode::kDual);
  c.problem.has_transform = true;
  c.transform = {Hkv, D, c.basis.data(), c.basis.data() + 512, c.weights.data()};
  c.args.transform = &c.transform;
}

void with_prepared(Call& c) {
  c.problem.sparsity = preset(Mode::kInt8);
  c.problem.has_prepared_k = true;
  PreparedK& k = c.prepared;
  k.heads_kv = Hkv;
  k.head_dim = D;
  k.block = 128;
  k.rows = c.problem.packed ? 70 : B * N;
  k.blocks = 2;  // one block for each sequence
  k.block_offset = {0, 1, 2};
  k.codes.resize(Hkv * k.rows * D);
  k.scale.resize(Hkv * k.blocks);
  k.mean.resize(Hkv * B * D);
  c.args.prepared_k = &k;
}

void with_trace(Call& c) {
  c.problem.trace = true;
  c.decisions = make_decisions(c.problem);
  c.args.decisions = &c.decisions;
}

using Change = std::function<void(Call&)>;

struct Fault {
  const char* message;
  Change make;
};

void expect_faults(bool packed, const Change& base, std::initializer_list<Fault> faults) {
  {
    const auto call = make_call(packed);
    if (base) base(*call);
    const Status status = check_args(call->problem, call->args);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  for (const Fault& fault : faults) {
    const auto call = make_call(packed);
    if (base) base(*call);
    fault.make(*call);
    const Status status = check_args(call->problem, call->args);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << fault.message;
    EXPECT_EQ(status.message(), fault.message);
  }
}

TEST(CheckArgs, Views) {
  expect_faults(
      false, {},
      {{"q: expected shape [2, 20, 4, 16], got [2, 21, 4, 16]",
        [](Call& c) { c.args.q.shape[1] = 21; }},
       {"q: expected shape [2, 20, 4, 16], got [2, 20, 4]", [](Call& c) { c.args.q.rank = 3; }},
       {"k: expected rank 4, got rank 6", [](Call& c) { c.args.k.rank = 6; }},
       {"k: expected rank 4, got rank -1", [](Call& c) { c.args.k.rank = -1; }},
       {"k: expected shape [2, 70, 2, 16], got [2, 70, 4, 16]",
        [](Call& c) { c.args.k.shape[2] = 4; }},
       {"v: expected shape [2, 70, 2, 8], got [2, 70, 2, 16]",
        [](Call& c) { c.args.v.shape[3] = 16; }},
       {"v: expected fp32, got fp16", [](Call& c) { c.args.v.dtype = DType::kF16; }},
       {"o: expected fp32, got bf16", [](Call& c) { c.args.o.dtype = DType::kBF16; }},
       {"o: expected memory of shape [2, 20, 4, 8], got a null pointer",
        [](Call& c) { c.args.o.data = nullptr; }},
       {"q: expected strides >= 0, got stride -64 of axis 1",
        [](Call& c) { c.args.q.stride[1] = -64; }},
       {"q: expected a last axis of stride 1, got stride 2",
        [](Call& c) { c.args.q.stride[3] = 2; }},
       {"k: expected strides that stay within 63 bits, got larger ones",
        [](Call& c) { c.args.k.stride[0] = INT64_MAX / 2; }},
       {"k: expected an address aligned to 4 bytes, got one that is not",
        [](Call& c) { c.args.k.data = static_cast<const char*>(c.args.k.data) + 2; }},
       {"lse: expected fp32, got fp64", [](Call& c) { c.args.lse.dtype = DType::kF64; }},
       {"lse: expected shape [2, 4, 20], got [2, 20, 4]",
        [](Call& c) { c.args.lse = transposed(c.args.lse, 1, 2); }},
       {"mask: expected none, since the problem's has_mask is false, got a mask",
        [](Call& c) {
          c.args.mask = contiguous(&c.mask[0], DType::kBool, {B, Hq, M, N});
        }},
       {"cu_seqlens: expected none, since the problem is not packed, got offsets",
        [](Call& c) { c.args.cu_seqlens_k = c.offsets_k.data(); }}});
}

TEST(CheckArgs, FreeStridesAreFine) {
  const auto call = make_call();
  call->args.lse.data = nullptr;  // not wanted
  // Heads outermost, and K broadcast over the batch.
  call->args.q.stride = {Hq * M * D, D, M * D, 1, 0};
  call->args.k.stride[0] = 0;
  EXPECT_TRUE(check_args(call->problem, call->args).ok());
}

TEST(CheckArgs, EmptyTensorsNeedNoMemory) {
  const auto call = make_call();
  call->problem.seqlen_k = 0;
  call->args.k = contiguous(static_cast<const void*>(nullptr), DType::kF32, {B, 0, Hkv, D});
  call->args.v = contiguous(static_cast<const void*>(nullptr), DType::kF32, {B, 0, Hkv, Dv});
  EXPECT_TRUE(check_args(call->problem, call->args).ok());
}

TEST(CheckArgs, Mask) {
  expect_faults(
      false, with_mask,
      {{"mask: expected memory of shape [2, 4, 20, 70], got a null pointer",
        [](Call& c) { c.args.mask.data = nullptr; }},
       {"mask: expected shape [2, 4, 20, 70], got [2, 1, 20, 70]",
        [](Call& c) { c.args.mask.shape[1] = 1; }},
       {"mask: expected bool, got uint8", [](Call& c) { c.args.mask.dtype = DType::kU8; }},
       {"o: expected memory that overlaps nothing else, got an overlap with mask",
        [](Call& c) { c.args.mask.data = static_cast<char*>(c.args.o.data) + 9; }}});
  const auto call = make_call();
  with_mask(*call);
  call->args.mask.stride = {N, 0, 0, 1, 0};  // a key padding mask
  EXPECT_TRUE(check_args(call->problem, call->args).ok());
}

TEST(CheckArgs, Overlap) {
  expect_faults(
      false, {},
      {{"o: expected memory that overlaps nothing else, got an overlap with q",
        [](Call& c) { c.args.o.data = c.memory.data() + 8; }},
       {"o: expected memory that overlaps nothing else, got an overlap with k",
        [](Call& c) { c.args.k.data = static_cast<float*>(c.args.o.data) + 1279; }},
       {"o: expected memory that overlaps nothing else, got an overlap with v",
        [](Call& c) { c.args.v.data = c.args.o.data; }},
       {"lse: expected memory that overlaps nothing else, got an overlap with q",
        [](Call& c) { c.args.lse.data = c.memory.data(); }},
       {"o: expected memory that overlaps nothing else, got an overlap with lse",
        [](Call& c) { c.args.lse.data = static_cast<float*>(c.args.o.data) + 20; }},
       {"o: expected strides that give every element its own memory, got elements that share it",
        [](Call& c) { c.args.o.stride[0] = 0; }},
       {"lse: expected strides that give every element its own memory, got elements that share it",
        [](Call& c) { c.args.lse.stride[1] = 19; }}});
  expect_faults(true, {},
                {{"lse: expected memory that overlaps nothing else, got an overlap with "
                  "cu_seqlens_q",
                  [](Call& c) {
                    auto* first = reinterpret_cast<std::int32_t*>(c.args.lse.data) + 3;
                    std::copy_n(c.offsets_q.data(), 3, first);
                    c.args.cu_seqlens_q = first;
                  }}});
}

TEST(CheckArgs, Packed) {
  expect_faults(
      true, {},
      {{"cu_seqlens_q: expected 3 offsets with packed, got a null pointer",
        [](Call& c) { c.args.cu_seqlens_q = nullptr; }},
       {"cu_seqlens_k: expected 3 offsets with packed, got a null pointer",
        [](Call& c) { c.args.cu_seqlens_k = nullptr; }},
       {"cu_seqlens_q[0]: expected 0, got 1", [](Call& c) { c.offsets_q[0] = 1; }},
       {"cu_seqlens_k[2]: expected at least 30, got 29", [](Call& c) { c.offsets_k[2] = 29; }},
       {"cu_seqlens_q[1]: expected at least 0, got -2147483648",
        [](Call& c) { c.offsets_q[1] = INT32_MIN; }},
       {"cu_seqlens_q[2]: expected total_q = 20, got 19", [](Call& c) { c.offsets_q[2] = 19; }},
       {"cu_seqlens_k[2]: expected a sequence of at most seqlen_k = 39 rows, got 40",
        [](Call& c) { c.problem.seqlen_k = 39; }},
       {"q: expected shape [20, 4, 16], got [2, 20, 4, 16]",
        [](Call& c) { c.args.q = make_call()->args.q; }}});
}

TEST(CheckArgs, Transform) {
  expect_faults(
      false, with_transform,
      {{"transform: expected one, since has_transform is true, got none",
        [](Call& c) { c.args.transform = nullptr; }},
       {"transform: expected none, since has_transform is false, got one",
        [](Call& c) { c.problem.has_transform = false; }},
       {"transform: expected heads_kv 2 and head_dim 16, got 2 and 32",
        [](Call& c) { c.transform.head_dim = 32; }},
       {"transform: expected heads_kv 2 and head_dim 16, got 4 and 16",
        [](Call& c) { c.transform.heads_kv = 4; }},
       {"transform: expected both t_q and t_k, got a null pointer",
        [](Call& c) { c.transform.t_k = nullptr; }},
       {"transform.w[5]: expected a finite weight > 0, got 0.000000",
        [](Call& c) { c.weights[5] = 0; }},
       {"transform.w[31]: expected a finite weight > 0, got nan",
        [](Call& c) { c.weights[31] = NAN; }},
       {"o: expected memory that overlaps nothing else, got an overlap with transform.t_k",
        [](Call& c) { c.transform.t_k = static_cast<float*>(c.args.o.data) + 1; }}});
  const auto call = make_call();
  with_transform(*call);
  call->problem.sparsity = preset(Mode::kScore);  // which does not look at it
  call->args.transform = nullptr;
  EXPECT_TRUE(check_args(call->problem, call->args).ok());
}

TEST(CheckArgs, PreparedK) {
  for (const bool packed : {false, true}) {
    expect_faults(
        packed, with_prepared,
        {{"prepared_k: expected one, since has_prepared_k is true, got none",
          [](Call& c) { c.args.prepared_k = nullptr; }},
         {"prepared_k: expected none, since has_prepared_k is false, got one",
          [](Call& c) { c.problem.has_prepared_k = false; }},
         {"prepared_k.heads_kv: expected 2, got 1", [](Call& c) { c.prepared.heads_kv = 1; }},
         {"prepared_k.head_dim: expected 16, got 8", [](Call& c) { c.prepared.head_dim = 8; }},
         {"prepared_k.block: expected 128, got 192", [](Call& c) { c.prepared.block = 192; }},
         {"prepared_k.blocks: expected 2, got 3", [](Call& c) { c.prepared.blocks = 3; }},
         {"prepared_k.block_offset length: expected 3, got 2",
          [](Call& c) { c.prepared.block_offset.pop_back(); }},
         {"prepared_k.block_offset[1]: expected 1, got 0",
          [](Call& c) { c.prepared.block_offset[1] = 0; }},
         {"prepared_k.scale length: expected 4, got 5",
          [](Call& c) { c.prepared.scale.push_back(1); }},
         {"prepared_k.mean length: expected 64, got 63",
          [](Call& c) { c.prepared.mean.pop_back(); }}});
  }
  expect_faults(false, with_prepared,
                {{"prepared_k.rows: expected 140, got 139", [](Call& c) { --c.prepared.rows; }},
                 {"prepared_k.codes length: expected 4480, got 4479",
                  [](Call& c) { c.prepared.codes.pop_back(); }}});
}

TEST(CheckArgs, DecisionsHaveTheSizesOfTheProblem) {
  expect_faults(false, with_trace,
                {{"decisions: expected some, since the problem's trace is true, got none",
                  [](Call& c) { c.args.decisions = nullptr; }},
                 {"decisions: expected none, since the problem's trace is false, got some",
                  [](Call& c) { c.problem.trace = false; }},
                 {"decisions: expected the sizes of make_decisions for this problem, got others",
                  [](Call& c) { c.decisions.kept.pop_back(); }},
                 {"decisions: expected the sizes of make_decisions for this problem, got others",
                  [](Call& c) { --c.decisions.rows; }}});
  const auto call = make_call();
  with_trace(*call);
  EXPECT_EQ(call->decisions.kept.size(), static_cast<std::size_t>(Hq * B * M * 2));
  EXPECT_EQ(call->decisions.unit.size(), static_cast<std::size_t>(Hq * B * M * 2));
  call->decisions.keep(3, 39, 69);
  EXPECT_TRUE(call->decisions.is_kept(3, 39, 69));
  EXPECT_EQ(call->decisions.kept.back(), std::uint64_t{1} << 5);
}

}  // namespace
}  // namespace twofour
