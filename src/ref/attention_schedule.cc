#include "ref/attention_schedule.h"

#include <algorithm>

namespace twofour::ref {
namespace {

/// How many of some pairs are live.
enum class Share { kNone, kSome, kAll };

Share share_of(bool any, bool all) {
  if (all) return Share::kAll;
  return any ? Share::kSome : Share::kNone;
}

/// Causality and window, over all 192 positions whether or not the call has rows there.
Share positions_share(const Inputs& inputs, std::int64_t lowest, std::int64_t begin,
                      std::int64_t end) {
  bool any = false, all = true;
  for (std::int64_t p = lowest; p < lowest + kRowBlockPositions; ++p) {
    for (std::int64_t j = begin; j < end; ++j) {
      const bool live = inputs.position_sees(p, j);
      any |= live;
      all &= live;
    }
  }
  return share_of(any, all);
}

/// The mask, over the rows that exist.
Share mask_share(const Inputs& inputs, const Sequence& s, std::int64_t head, std::int64_t lowest,
                 std::int64_t begin, std::int64_t end) {
  if (!inputs.problem().has_mask) return Share::kAll;
  bool any = false, all = true;
  for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
    const std::int64_t p = s.first_position + i;
    if (p < lowest || p >= lowest + kRowBlockPositions) continue;
    for (std::int64_t j = begin; j < end; ++j) {
      const bool live = inputs.mask(s, head, i, j);
      any |= live;
      all &= live;
    }
  }
  return share_of(any, all);
}

}  // namespace

std::vector<Block> block_schedule(const Inputs& inputs, const Sequence& s, std::int64_t head,
                                  std::int64_t row_block) {
  const AttentionProblem& problem = inputs.problem();
  const std::int64_t block = problem.sparsity.block;
  const std::int64_t lowest = row_block * kRowBlockPositions;
  const std::int64_t highest = lowest + kRowBlockPositions - 1;
  const bool has_diagonal = problem.causal || !problem.window.open();
  const std::int64_t lowest_diagonal = floor_quotient(lowest, block);
  const std::int64_t highest_diagonal = floor_quotient(highest, block);

  std::vector<Block> kinds;
  std::int64_t live_blocks = 0;
  for (std::int64_t begin = 0; begin < s.seqlen_k; begin += block) {
    const std::int64_t number = begin / block;
    const std::int64_t end = std::min(begin + block, s.seqlen_k);
    const Share positions = positions_share(inputs, lowest, begin, end);
    const Share mask = mask_share(inputs, s, head, lowest, begin, end);
    if (positions == Share::kNone || mask == Share::kNone) {
      kinds.push_back(Block::kEmpty);
      continue;
    }
    ++live_blocks;
    const bool ragged = end - begin < block;
    const bool partly_live = positions != Share::kAll || mask != Share::kAll;
    const bool diagonal = has_diagonal && number >= lowest_diagonal && number <= highest_diagonal;
    const bool sink = live_blocks <= problem.sparsity.sink_blocks;
    const bool local = has_diagonal && number < lowest_diagonal &&
                       number >= lowest_diagonal - problem.sparsity.local_blocks;
    const bool nothing_to_prune = problem.sparsity.is_dense();
    const bool plain = ragged || partly_live || diagonal || sink || local || nothing_to_prune;
    kinds.push_back(plain ? Block::kPlain : Block::kPruned);
  }
  return kinds;
}

int half_block(std::int64_t key_in_block, std::int64_t block) {
  const std::int64_t in_half = key_in_block < block / 2 ? key_in_block : key_in_block - block / 2;
  return in_half < block / 4 ? 0 : 1;
}

}  // namespace twofour::ref
