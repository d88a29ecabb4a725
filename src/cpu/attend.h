// One row block of one head: the kernel proper.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/prepare.h"
#include "cpu/softmax.h"

namespace twofour::cpu {

/// Everything the row blocks of one call share, read-only while they run.
struct CallContext {
  const AttentionProblem* problem = nullptr;
  const AttentionArgs* args = nullptr;
  Ops ops;
  const SoftmaxOps* softmax = nullptr;
  KeyPanels keys;
  const Sequence* sequences = nullptr;  // [B]
  const float* t_q = nullptr;           // [Hkv, D, round16(D)]; null: identity
  std::int64_t max_key_blocks = 0;      // of a sequence
  float scale = 1;
};

/// Bytes of scratch one thread needs for attend_row_block.
std::size_t attend_scratch_bytes(const AttentionProblem& problem, std::int64_t max_key_blocks);

/// Computes O and LSE (and decisions) of the rows of sequence `b`, query head `head`, in the
/// `row_block`-th row block of the sequence (counted from its first). Returns its counts.
AttentionStats attend_row_block(const CallContext& call, std::int64_t b, std::int64_t head,
                                std::int64_t row_block, void* scratch);

}  // namespace twofour::cpu
