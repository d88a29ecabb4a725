// For comparison only: 2:4 over adjacent keys in every block, with nothing kept plain.
#pragma once

#include "ref/attention.h"

namespace twofour::ref {

/// What NVIDIA's Model-Optimizer emulates with its "sparse softmax" 2:4 and no dense window
/// (modelopt/torch/kernels, merged in its pull request 1078): of keys 4j .. 4j+3 of a row the two
/// with the largest exact score are kept, after masking, so that a dead key never takes the place
/// of a live one; the diagonal, the first and the last keys are pruned like all others. Ties keep
/// the lower key. `problem.sparsity` is not read. The output's stats count no units.
/// Errors: those of validate(problem).
Result<Output> everything_pruned(const AttentionProblem& problem, const AttentionArgs& args);

}  // namespace twofour::ref
