// The variants of attention that there are kernels for, on every architecture.
#pragma once

#include "twofour/sparsity.h"

namespace twofour::cuda {

struct Variant {
  QKProduct qk;
  ScorePattern score;
  bool refine = false;
  bool drop = false;
};
inline constexpr Variant kVariants[] = {
    {QKProduct::kExact, ScorePattern::kNone},
    {QKProduct::kExact, ScorePattern::kPair},
    {QKProduct::kInt8, ScorePattern::kPair},
    {QKProduct::kNm24, ScorePattern::kPair},
    {QKProduct::kNm24, ScorePattern::kPair, true},
    {QKProduct::kExact, ScorePattern::kPair, false, true},
    {QKProduct::kInt8, ScorePattern::kPair, false, true},
    {QKProduct::kNm24, ScorePattern::kPair, true, true},
};
inline constexpr int kVariantCount = sizeof(kVariants) / sizeof(kVariants[0]);

}  // namespace twofour::cuda
