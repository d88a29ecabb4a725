// The block schedule by definition: every pair of 192 positions and a key block is looked at.
#pragma once

#include <vector>

#include "ref/attention_inputs.h"

namespace twofour::ref {

enum class Block : std::uint8_t { kEmpty, kPlain, kPruned };

/// Rule 3 for every key block of the row block that holds positions 192 * row_block ...
std::vector<Block> block_schedule(const Inputs& inputs, const Sequence& s, std::int64_t head,
                                  std::int64_t row_block);

/// Rule 2: half-block of a key, from its place in a block of length `block`.
int half_block(std::int64_t key_in_block, std::int64_t block);

}  // namespace twofour::ref
