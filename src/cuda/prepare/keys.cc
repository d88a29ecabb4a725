#include "cuda/prepare/keys.h"

namespace twofour::cuda {

Sequences sequences_of(const AttentionProblem& p, const AttentionArgs& args) {
  Sequences s;
  s.packed = p.packed;
  s.batch = static_cast<int>(p.batch);
  s.seqlen_q = static_cast<int>(p.seqlen_q);
  s.seqlen_k = static_cast<int>(p.seqlen_k);
  s.cu_seqlens_q = args.cu_seqlens_q;
  s.cu_seqlens_k = args.cu_seqlens_k;
  s.causal = p.causal;
  s.align = p.align;
  s.window = p.window;
  s.block = p.sparsity.block;
  return s;
}

QuantisedKeys keys_of(const AttentionProblem& p, const AttentionArgs& args) {
  const int row_axis = p.packed ? 0 : 1;
  QuantisedKeys keys;
  keys.k = args.k.data;
  keys.dtype = p.dtype;
  keys.batch_stride = p.packed ? 0 : args.k.stride[0];
  keys.row_stride = args.k.stride[row_axis];
  keys.head_stride = args.k.stride[row_axis + 1];
  keys.heads = static_cast<int>(p.heads_kv);
  keys.head_dim = static_cast<int>(p.head_dim);
  keys.padded_dim = padded_head_dim(p);
  keys.rows = p.packed ? p.total_k : p.batch * p.seqlen_k;
  return keys;
}

}  // namespace twofour::cuda
