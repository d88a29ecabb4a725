// The public prepared K of keys on a device: the same launches as in a run, copied back.
#include "cuda/prepare_k.h"

#include <algorithm>

#include "cuda/device.h"
#include "cuda/memory.h"
#include "cuda/prepare/keys.h"
#include "ops/check.h"

namespace twofour::cuda {
namespace {

/// Device memory for `count` elements.
template <class T>
Status allocate(Buffer& buffer, int device, std::int64_t count, T*& pointer) {
  auto made = Buffer::allocate(device, static_cast<std::size_t>(count) * sizeof(T));
  if (!made.ok()) return made.status();
  buffer = *std::move(made);
  pointer = static_cast<T*>(buffer.data());
  return {};
}

template <class T>
Result<std::vector<T>> to_host(const T* from, std::int64_t count) {
  std::vector<T> out(static_cast<std::size_t>(count));
  const Status status = copy_to_host(out.data(), from, out.size() * sizeof(T));
  if (!status.ok()) return status;
  return out;
}

/// Copies `rows` rows of `dim` elements out of rows of `padded`.
template <class T>
Status copy_unpadded(std::vector<T>& out, const T* from, std::int64_t rows, std::int64_t padded,
                     std::int64_t dim) {
  const auto all = to_host(from, rows * padded);
  if (!all.ok()) return all.status();
  out.resize(static_cast<std::size_t>(rows * dim));
  for (std::int64_t row = 0; row < rows; ++row) {
    std::copy_n(all->begin() + row * padded, dim, out.begin() + row * dim);
  }
  return {};
}

Status count_key_blocks(const AttentionProblem& p, const AttentionArgs& args, PreparedK& out) {
  std::vector<std::int32_t> offsets;
  if (p.packed) {
    auto copied = to_host(args.cu_seqlens_k, p.batch + 1);
    if (!copied.ok()) return copied.status();
    offsets = *std::move(copied);
  }
  out.block_offset.assign(1, 0);
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const std::int64_t keys = p.packed ? offsets[b + 1] - offsets[b] : p.seqlen_k;
    out.block_offset.push_back(out.block_offset.back() + layout::ceil_div(keys, out.block));
  }
  out.blocks = out.block_offset.back();
  return {};
}

}  // namespace

Result<PreparedK> prepare_k(const AttentionProblem& problem, const AttentionArgs& args,
                            int device_index) {
  const auto device = cuda_device(device_index);
  if (!device.ok()) return device.status();
  // What no row serves is refused here in the same words.
  AttentionProblem wanted = problem;
  wanted.has_prepared_k = wanted.trace = false;
  const auto planned = plan(wanted, *device);
  if (!planned.ok()) return planned.status();
  const AttentionProblem& p = planned->problem();
  Status status = check_keys(p, args, *device);
  if (!status.ok()) return status;
  const CurrentDevice current(device_index);
  if (!current.status().ok()) return current.status();

  PreparedK out;
  out.heads_kv = p.heads_kv;
  out.head_dim = p.head_dim;
  out.block = p.sparsity.block;
  out.rows = p.packed ? p.total_k : p.batch * p.seqlen_k;
  status = count_key_blocks(p, args, out);
  if (!status.ok()) return status;

  Sequences s = sequences_of(p, args);
  QuantisedKeys keys = keys_of(p, args);
  keys.total_blocks = std::max<std::int64_t>(out.blocks, 1);

  Buffer buffers[6];
  status = allocate(buffers[0], device_index, p.batch + 1, s.row_blocks);
  if (status.ok()) status = allocate(buffers[1], device_index, p.batch + 1, s.key_blocks);
  if (status.ok()) {
    status =
        allocate(buffers[2], device_index, p.heads_kv * out.rows * keys.padded_dim, keys.codes);
  }
  if (status.ok()) {
    status = allocate(buffers[3], device_index, p.heads_kv * keys.total_blocks, keys.scale);
  }
  const std::int64_t means = p.heads_kv * p.batch;
  if (status.ok()) status = allocate(buffers[4], device_index, means * keys.padded_dim, keys.mean);
  if (status.ok()) {
    status = allocate(buffers[5], device_index,
                      means * mean_chunks(p.seqlen_k) * (keys.padded_dim + 1), keys.partial);
  }
  for (Buffer& buffer : buffers) {
    if (status.ok()) status = fill(buffer.data(), 0, buffer.size());
  }
  if (status.ok() && p.packed) status = count_blocks(s, nullptr);
  if (status.ok() && out.rows > 0) status = quantise_keys(s, keys, nullptr);
  if (status.ok()) status = synchronize(device_index);
  if (status.ok()) {
    status =
        copy_unpadded(out.codes, keys.codes, p.heads_kv * out.rows, keys.padded_dim, p.head_dim);
  }
  if (status.ok()) {
    status = copy_unpadded(out.scale, keys.scale, p.heads_kv, keys.total_blocks, out.blocks);
  }
  if (status.ok()) {
    status = copy_unpadded(out.mean, keys.mean, means, keys.padded_dim, p.head_dim);
  }
  if (!status.ok()) return status;
  return out;
}

}  // namespace twofour::cuda
