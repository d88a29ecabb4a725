// Case files: the shapes, masks and inputs that verify, bench and the tests share.
//
// One case a line of key=value words; a comma separates alternatives, and a line stands for the
// product of its alternatives. '#' starts a comment. cases/README.md lists the keys.
//
//   mode=score,int8 dtype=fp32,fp16 heads=9/3 dim=64 len=113x203 causal=bottom_right
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "twofour/attention.h"
#include "twofour/io.h"

namespace twofour::io {

/// What the numbers look like.
enum class CaseInput : std::uint8_t {
  kRandom,  // unit normal
  kPeaky,   // every query leans towards a few keys, as in a trained model
  kFlat,    // queries so small that every score is nearly the same
  kHuge,    // logits to +-1e4, values to 6e4
  kOffset,  // a large constant on every key
  kEqual,   // all keys the same: every comparison is a tie
  kPoison,  // NaN in keys and values that are dead for every row
  kSpread,  // NaN in one live key, infinity in one live value
};

enum class CaseMask : std::uint8_t {
  kNone,
  kRandom,  // pairs live with probability mask_density
  kRows,    // random, with every third row dead
  kBlocks,  // tiles of 64 x 64 dead with probability 1 - mask_density
  kKeys,    // one row for all queries and heads: a padding mask with strides 0
};

/// How the tensors lie in memory.
enum class CaseLayout : std::uint8_t {
  kBmhd,   // contiguous
  kBhmd,   // heads before positions, as PyTorch has them
  kFused,  // K and V interleaved in one buffer, Q one element off alignment
};

struct Case {
  std::string text;  // the words of this alternative: a name that can be filtered and pasted
  AttentionProblem problem;
  std::vector<std::int32_t> cu_seqlens_q, cu_seqlens_k;  // with problem.packed
  CaseInput input = CaseInput::kRandom;
  CaseMask mask = CaseMask::kNone;
  double mask_density = 0.5;
  CaseLayout layout = CaseLayout::kBmhd;
};

/// The cases of a text; `name` stands for the file. Error kInvalidArgument with file and line.
Result<std::vector<Case>> parse_cases(std::string_view text, const std::string& name);

/// The cases of a file, or of every *.cases of a directory in order of name. Errors also kNotFound,
/// kIo.
Result<std::vector<Case>> load_cases(const std::string& path);

/// The memory of a case, filled from a seed that only its text decides: the same on every machine.
struct CaseMemory {
  AttentionArgs args;  // points into the rest
  Tensor q, k, v, o, lse, mask;
  std::vector<float> t_q, t_k, w;
  KeyTransform transform;
};
std::unique_ptr<CaseMemory> make_case_memory(const Case& c);

}  // namespace twofour::io
