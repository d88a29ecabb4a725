#include "cpu/geometry.h"

#include <new>

namespace twofour::cpu {
namespace {

Sequence make_sequence(const AttentionProblem& problem, const AttentionArgs& args, std::int64_t b) {
  Sequence s;
  if (problem.packed) {
    s.first_row_q = args.cu_seqlens_q[b];
    s.first_row_k = args.cu_seqlens_k[b];
    s.seqlen_q = args.cu_seqlens_q[b + 1] - s.first_row_q;
    s.seqlen_k = args.cu_seqlens_k[b + 1] - s.first_row_k;
  } else {
    s.seqlen_q = problem.seqlen_q;
    s.seqlen_k = problem.seqlen_k;
    s.first_row_q = b * s.seqlen_q;
    s.first_row_k = b * s.seqlen_k;
  }
  const Sparsity& sparsity = problem.sparsity;
  s.position = layout::first_position(problem.causal, problem.align, s.seqlen_q, s.seqlen_k);
  s.shape = {s.seqlen_k,           sparsity.block,        problem.causal,      problem.window,
             sparsity.sink_blocks, sparsity.local_blocks, !sparsity.is_dense()};
  if (s.seqlen_q > 0) {
    const std::int64_t last = layout::floor_div(s.position + s.seqlen_q - 1, layout::kRowBlock);
    s.row_blocks = last - s.lowest_row_block() + 1;
  }
  return s;
}

}  // namespace

SequenceTotals lay_out_sequences(Sequence* sequences, const AttentionProblem& problem,
                                 const AttentionArgs& args) {
  SequenceTotals totals;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    Sequence& s = *new (&sequences[b]) Sequence(make_sequence(problem, args, b));
    s.first_block = totals.blocks;
    s.first_row_block = totals.row_blocks;
    totals.blocks += s.shape.key_blocks();
    totals.row_blocks += s.row_blocks;
  }
  return totals;
}

}  // namespace twofour::cpu
