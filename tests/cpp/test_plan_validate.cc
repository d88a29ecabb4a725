// Every fault of a problem is named in one line.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "twofour/attention.h"

namespace twofour {
namespace {

AttentionProblem good() {
  AttentionProblem p;
  p.batch = 2;
  p.heads_q = 6;
  p.heads_kv = 3;
  p.head_dim = 64;
  p.head_dim_v = 32;
  p.seqlen_q = 100;
  p.seqlen_k = 300;
  p.causal = true;
  p.sparsity = preset(Mode::kRefined);
  return p;
}

AttentionProblem good_packed() {
  AttentionProblem p = good();
  p.packed = true;
  p.total_q = 150;
  p.total_k = 400;
  return p;
}

struct Fault {
  const char* message;
  std::function<void(AttentionProblem&)> make;
};

void expect_fault(const AttentionProblem& base, const Fault& fault) {
  AttentionProblem p = base;
  fault.make(p);
  const Status status = validate(p);
  EXPECT_EQ(status.code(), Code::kInvalidArgument) << fault.message;
  EXPECT_EQ(status.message(), fault.message);
}

TEST(Validate, AcceptsGoodProblems) {
  EXPECT_TRUE(validate(good()).ok());
  EXPECT_TRUE(validate(good_packed()).ok());
  EXPECT_TRUE(validate(AttentionProblem()).ok());
  // Nothing to do, the extremes, and values that look odd but mean something.
  const std::function<void(AttentionProblem&)> odd[] = {
      [](auto& p) { p.batch = 0; },
      [](auto& p) { p.seqlen_q = 0; },
      [](auto& p) { p.seqlen_k = 0; },
      [](auto& p) { p.seqlen_q = 2147483647; },
      [](auto& p) { p.head_dim = p.head_dim_v = 512; },
      [](auto& p) { p.scale = 0.0f; },
      [](auto& p) { p.scale = -1.5f; },
      [](auto& p) {
        p.window = {INT64_MAX, 0};
      },
      [](auto& p) { p.dtype = DType::kBF16; },
      [](auto& p) { p.has_mask = true; },
  };
  for (const auto& change : odd) {
    AttentionProblem p = good();
    change(p);
    EXPECT_TRUE(validate(p).ok()) << validate(p).message();
  }
}

TEST(Validate, NamesEveryFault) {
  const Fault faults[] = {
      {"dtype: expected fp32, fp16 or bf16, got int8", [](auto& p) { p.dtype = DType::kI8; }},
      {"dtype: expected fp32, fp16 or bf16, got fp64", [](auto& p) { p.dtype = DType::kF64; }},
      {"batch: expected 0..2147483647, got -1", [](auto& p) { p.batch = -1; }},
      {"heads_q: expected 1..2147483647, got 0", [](auto& p) { p.heads_q = 0; }},
      {"heads_kv: expected 1..2147483647, got 0", [](auto& p) { p.heads_kv = 0; }},
      {"heads_kv: expected 1..2147483647, got -3", [](auto& p) { p.heads_kv = -3; }},
      {"heads_q: expected a multiple of heads_kv = 4, got 6", [](auto& p) { p.heads_kv = 4; }},
      {"head_dim: expected 1..512, got 0", [](auto& p) { p.head_dim = 0; }},
      {"head_dim: expected 1..512, got 520", [](auto& p) { p.head_dim = 520; }},
      {"head_dim: expected a multiple of 4 with qk nm24, got 66", [](auto& p) { p.head_dim = 66; }},
      {"head_dim_v: expected 1..512, got 0", [](auto& p) { p.head_dim_v = 0; }},
      {"seqlen_q: expected 0..2147483647, got -5", [](auto& p) { p.seqlen_q = -5; }},
      {"seqlen_k: expected 0..2147483647, got 2147483648",
       [](auto& p) { p.seqlen_k = 2147483648; }},
      {"window.left: expected >= -1, got -2", [](auto& p) { p.window.left = -2; }},
      {"window.right: expected >= -1, got -9", [](auto& p) { p.window.right = -9; }},
      {"scale: expected a finite number, got nan", [](auto& p) { p.scale = NAN; }},
      {"scale: expected a finite number, got inf", [](auto& p) { p.scale = INFINITY; }},
      {"key_splits: expected 0..64, got 65", [](auto& p) { p.key_splits = 65; }},
      {"key_splits: expected 0..64, got -1", [](auto& p) { p.key_splits = -1; }},
      {"align: expected bottom-right or top-left, got 2",
       [](auto& p) { p.align = static_cast<Align>(2); }},
      {"block: expected 0 or a multiple of 64 in 64..512, got 100",
       [](auto& p) { p.sparsity.block = 100; }},
      {"refine: expected qk nm24, got qk int8", [](auto& p) { p.sparsity.qk = QKProduct::kInt8; }},
      {"q: expected less than 2^63 bytes, got a larger product of extents",
       [](auto& p) { p.batch = p.heads_q = p.heads_kv = 2000000001; }},
      {"k: expected less than 2^63 bytes, got a larger product of extents",
       [](auto& p) {
         p.batch = p.heads_q = p.heads_kv = p.seqlen_k = 100000000;
         p.seqlen_q = 1;
       }},
      {"q: expected less than 2^63 bytes, got a larger product of extents",
       [](auto& p) {  // no elements, but strides
         p.batch = 0;
         p.seqlen_q = p.heads_q = p.heads_kv = 2147483647;
       }},
      {"mask: expected less than 2^63 bytes, got a larger product of extents",
       [](auto& p) {
         p.has_mask = true;
         p.seqlen_q = p.seqlen_k = 2147483647;
       }},
      {"decisions: expected less than 2^63 bytes, got a larger product of extents",
       [](auto& p) {
         p.trace = true;
         p.seqlen_q = p.seqlen_k = 2147483647;
       }},
  };
  for (const Fault& fault : faults) expect_fault(good(), fault);
}

TEST(Validate, NamesEveryFaultOfPacked) {
  const Fault faults[] = {
      {"has_mask: expected no mask with packed, got true", [](auto& p) { p.has_mask = true; }},
      {"total_q: expected 0..2147483647, got -1", [](auto& p) { p.total_q = -1; }},
      {"total_k: expected 0..2147483647, got 2147483648", [](auto& p) { p.total_k = 2147483648; }},
      {"total_q: expected at most batch * seqlen_q = 200, got 201",
       [](auto& p) { p.total_q = 201; }},
      {"total_k: expected at most batch * seqlen_k = 600, got 601",
       [](auto& p) { p.total_k = 601; }},
  };
  for (const Fault& fault : faults) expect_fault(good_packed(), fault);
  AttentionProblem full = good_packed();
  full.total_q = 200;
  full.total_k = 600;
  EXPECT_TRUE(validate(full).ok());
  AttentionProblem unpacked = good();
  unpacked.total_q = -1;  // ignored without packed
  EXPECT_TRUE(validate(unpacked).ok());
}

}  // namespace
}  // namespace twofour
