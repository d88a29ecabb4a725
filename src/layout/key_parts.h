// Into how many parts the keys of a row block are split (docs/semantics.md, rule 10): a few rows of
// a few heads are too few row blocks to keep a GPU busy.
#pragma once

#include <algorithm>
#include <cstdint>

#include "layout/schedule.h"

namespace twofour::layout {

/// Row blocks times parts that splitting aims at, of one head and never more: 128 work items of
/// eight heads. From 9 row blocks on (M > 1536) nothing is split.
inline constexpr std::int64_t kSplitTarget = 16;
/// A part has at least so many keys. It writes its O in fp32, which a second kernel reads: per row
/// that takes about as long as 400 keys do.
inline constexpr std::int64_t kMinPartKeys = 2048;

/// Keys that some row of a row block sees, at most.
constexpr std::int64_t most_live_keys(const AttentionProblem& p) {
  std::int64_t right = p.window.right;
  if (p.causal) right = 0;
  if (p.window.left < 0 || right < 0) return p.seqlen_k;
  if (p.window.left >= p.seqlen_k || right >= p.seqlen_k) return p.seqlen_k;
  return std::min(p.seqlen_k, p.window.left + right + kRowBlock);
}

/// Depends on the sequence alone, not on the batch, the heads or the device, so that it gives the
/// same bits in every call. head_dim is not asked: work and partial results both grow with it.
constexpr int key_parts_by_rule(std::int64_t seqlen_q, std::int64_t live_keys) {
  if (seqlen_q <= 0) return 1;
  const std::int64_t by_rows = kSplitTarget / ceil_div(seqlen_q, kRowBlock);
  return static_cast<int>(std::max<std::int64_t>(std::min(by_rows, live_keys / kMinPartKeys), 1));
}

/// Units that decide look back at every key before them; of packed sequences the lengths are known
/// to the device alone.
constexpr bool may_split_keys(const AttentionProblem& p) {
  return !p.packed && !p.sparsity.refine && !p.sparsity.drop;
}

/// Parts of a call. Debugging rows keep one: what they write is what a row decides however it is
/// split.
constexpr int key_parts(const AttentionProblem& p) {
  if (p.trace || !may_split_keys(p)) return 1;
  return p.key_splits > 0 ? p.key_splits : key_parts_by_rule(p.seqlen_q, most_live_keys(p));
}

}  // namespace twofour::layout
