// The public prepared K: the same codes, scales and mean that a run computes in its workspace.
#include <algorithm>
#include <string>
#include <vector>

#include "cpu/prepare.h"
#include "cpu/targets.h"
#include "cuda/device.h"
#include "cuda/prepare_k.h"
#include "ops/check.h"
#include "twofour/device.h"
#include "twofour/prepare.h"

namespace twofour {
Result<PreparedK> prepare_k(const AttentionProblem& given, const AttentionArgs& args) {
  AttentionProblem p = given;
  p.sparsity = resolved(p.sparsity, p.head_dim);
  if (p.sparsity.qk != QKProduct::kInt8)
    return {Code::kInvalidArgument,
            std::string("prepare_k: expected a problem with the int8 product, got ") +
                to_string(p.sparsity.qk)};
  if (Status status = validate(p); !status.ok()) return status;
  if (const auto index = cuda::device_of(args.k, args.cu_seqlens_k))
    return cuda::prepare_k(p, args, *index);
  if (Status status = check_keys(p, args); !status.ok()) return status;
  const Result<Device> device = cpu_device();
  if (!device.ok()) return device.status();
  const cpu::Ops ops = cpu::ops_of(cpu::find_target(device->arch));

  PreparedK out;
  out.heads_kv = p.heads_kv;
  out.head_dim = p.head_dim;
  out.block = p.sparsity.block;
  out.rows = p.packed ? p.total_k : p.batch * p.seqlen_k;
  std::vector<cpu::Sequence> sequences(static_cast<std::size_t>(p.batch));
  out.blocks = cpu::lay_out_sequences(sequences.data(), p, args).blocks;
  for (const cpu::Sequence& s : sequences) out.block_offset.push_back(s.first_block);
  out.block_offset.push_back(out.blocks);
  const auto dim = static_cast<std::size_t>(p.head_dim);
  out.codes.resize(static_cast<std::size_t>(p.heads_kv * out.rows) * dim);
  out.scale.resize(static_cast<std::size_t>(p.heads_kv * out.blocks));
  out.mean.resize(static_cast<std::size_t>(p.heads_kv * p.batch) * dim);
  std::vector<std::uint8_t> live(
      p.has_mask ? static_cast<std::size_t>(p.heads_kv * out.blocks * out.block) : 0);

  cpu::KeyPanels keys;
  keys.int8 = true;
  keys.block = out.block;
  keys.head_dim = p.head_dim;
  keys.blocks = out.blocks;
  keys.batch = p.batch;
  keys.scale = out.scale.data();
  keys.mean = out.mean.data();
  keys.live = p.has_mask ? live.data() : nullptr;
  std::vector<std::max_align_t> scratch(
      cpu::prepare_scratch_bytes(keys) / sizeof(std::max_align_t) + 1);
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const cpu::Sequence& s = sequences[static_cast<std::size_t>(b)];
    for (std::int64_t head = 0; head < p.heads_kv; ++head) {
      cpu::prepare_mean(keys, ops, p, args, s, b, head, scratch.data());
      for (std::int64_t index = 0; index < s.shape.key_blocks(); ++index) {
        const std::int8_t* codes =
            cpu::quantise_block(keys, ops, p, args, s, b, head, index, scratch.data());
        const std::int64_t first = index * out.block;
        const std::int64_t count = std::min<std::int64_t>(out.block, s.seqlen_k - first);
        std::copy_n(codes, count * p.head_dim,
                    out.codes.begin() + (head * out.rows + s.first_row_k + first) * p.head_dim);
      }
    }
  }
  return out;
}

}  // namespace twofour
