#include "cpu/prepare.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "core/half.h"

namespace twofour::cpu {
namespace {

using layout::KeyRange;

// Scratch: one block of fp32 rows, its codes, the double sums of a mean, one product panel.
struct Scratch {
  float* rows;         // [block, D]
  float* product;      // [D, block / 4]
  double* sums;        // [D]
  std::int8_t* codes;  // [block, D]

  Scratch(const KeyPanels& keys, void* memory) {
    char* at = static_cast<char*>(memory);
    rows = reinterpret_cast<float*>(at);
    at += sizeof(float) * keys.block * keys.head_dim;
    product = reinterpret_cast<float*>(at);
    at += sizeof(float) * (keys.block / 4) * keys.head_dim;
    sums = reinterpret_cast<double*>(at);
    at += sizeof(double) * keys.head_dim;
    codes = reinterpret_cast<std::int8_t*>(at);
  }
};

bool is_finite_row(const Ops& ops, const float* row, std::int64_t n) {
  return std::isfinite(ops.convert->amax_row(row, nullptr, n));
}

bool is_live(const KeyPanels& keys, const Sequence& sequence, std::int64_t head, std::int64_t key,
             const KeyRange& range) {
  if (key < range.begin || key >= range.end) return false;
  if (keys.live == nullptr) return true;
  return keys.live[(head * keys.blocks + sequence.first_block) * keys.block + key] != 0;
}

// Which keys some row of the sequence and some query head of the group sees through the mask.
void mark_live_keys(const KeyPanels& keys, const AttentionProblem& problem,
                    const AttentionArgs& args, const Sequence& sequence, std::int64_t b,
                    std::int64_t head) {
  std::uint8_t* live = keys.live + (head * keys.blocks + sequence.first_block) * keys.block;
  std::memset(live, 0, static_cast<std::size_t>(sequence.seqlen_k));
  const std::int64_t group = problem.heads_q / problem.heads_kv;
  // A mask that is the same for all heads needs to be read once.
  const std::int64_t heads = args.mask.stride[1] == 0 ? 1 : group;
  for (std::int64_t h = 0; h < heads; ++h) {
    const MaskRows mask = mask_rows(args, b, head * group + h);
    for (std::int64_t i = 0; i < sequence.seqlen_q; ++i) {
      const KeyRange range = sequence.shape.live_keys(sequence.position + i);
      for (std::int64_t j = range.begin; j < range.end; ++j)
        live[j] = static_cast<std::uint8_t>(live[j] | mask.live(i, j));
    }
  }
}

// Keys of one block.
struct BlockRange {
  std::int64_t first;  // key
  std::int64_t count;
};

BlockRange block_range(const KeyPanels& keys, const Sequence& sequence, std::int64_t index) {
  const std::int64_t first = index * keys.block;
  return {first, std::min<std::int64_t>(keys.block, sequence.seqlen_k - first)};
}

void load_block(const Scratch& scratch, const KeyPanels& keys, const Ops& ops,
                const AttentionProblem& problem, const AttentionArgs& args,
                const Sequence& sequence, std::int64_t b, std::int64_t head,
                const BlockRange& range) {
  const RowSource source = sequence_rows(args.k, problem.packed, b, sequence.first_row_k);
  for (std::int64_t j = 0; j < range.count; ++j)
    ops.convert->load_row(scratch.rows + j * keys.head_dim, source.row(range.first + j, head),
                          source.dtype, keys.head_dim);
}

// codes [count, D] into the panels of one block.
void pack_codes(const KeyPanels& keys, char* panel, const std::int8_t* codes, std::int64_t count) {
  const std::int64_t dim = keys.head_dim;
  const std::int64_t width = keys.block / 4;
  if (!keys.vnni) {
    auto* out = reinterpret_cast<float*>(panel);
    for (std::int64_t j = 0; j < count; ++j)
      for (std::int64_t d = 0; d < dim; ++d)
        out[(j / width * dim + d) * width + j % width] = codes[j * dim + d];
    return;
  }
  auto* out = reinterpret_cast<std::int8_t*>(panel);
  auto* bias = reinterpret_cast<std::int32_t*>(panel + dim * keys.block);
  for (std::int64_t j = 0; j < count; ++j) {
    std::int8_t* column = out + (j / width * dim * width) + j % width * 4;
    std::int32_t sum = 0;
    for (std::int64_t d = 0; d < dim; d += 4) {
      std::memcpy(column + d * width, codes + j * dim + d, 4);
      for (int c = 0; c < 4; ++c) sum += codes[j * dim + d + c];
    }
    bias[j] = -128 * sum;
  }
}

// k' = k T^-T for one quarter, in place: its columns are keys, so k'^T = (T^-T)^T k^T.
void transform_quarter(float* quarter, const Scratch& scratch, const KeyPanels& keys,
                       const Ops& ops, const float* t_k, DType dtype) {
  const std::int64_t dim = keys.head_dim;
  const std::int64_t width = keys.block / 4;
  ops.matmul->gemm(scratch.product, width, t_k, dim, quarter, width, dim, dim, width, false);
  for (std::int64_t i = 0; i < dim * width; ++i) quarter[i] = round_to(dtype, scratch.product[i]);
}

}  // namespace

std::size_t prepare_scratch_bytes(const KeyPanels& keys) {
  const std::size_t cells = static_cast<std::size_t>(keys.block * keys.head_dim);
  return cells * sizeof(float) + cells / 4 * sizeof(float) +
         static_cast<std::size_t>(keys.head_dim) * sizeof(double) + cells;
}

void prepare_mean(const KeyPanels& keys, const Ops& ops, const AttentionProblem& problem,
                  const AttentionArgs& args, const Sequence& sequence, std::int64_t b,
                  std::int64_t head, void* memory) {
  const Scratch scratch(keys, memory);
  const std::int64_t dim = keys.head_dim;
  float* mean = keys.mean + (head * keys.batch + b) * dim;
  if (sequence.seqlen_k == 0) {  // its rows may lie nowhere
    std::fill(mean, mean + dim, 0.0f);
    return;
  }
  if (keys.live != nullptr) mark_live_keys(keys, problem, args, sequence, b, head);
  const RowSource source = sequence_rows(args.k, problem.packed, b, sequence.first_row_k);
  const KeyRange range = sequence.live_keys();
  std::fill(scratch.sums, scratch.sums + dim, 0.0);
  std::int64_t count = 0;
  for (std::int64_t j = range.begin; j < range.end; ++j) {
    if (!is_live(keys, sequence, head, j, range)) continue;
    ops.convert->load_row(scratch.rows, source.row(j, head), source.dtype, dim);
    if (!is_finite_row(ops, scratch.rows, dim)) continue;
    for (std::int64_t d = 0; d < dim; ++d) scratch.sums[d] += scratch.rows[d];
    ++count;
  }
  for (std::int64_t d = 0; d < dim; ++d)
    mean[d] = count ? static_cast<float>(scratch.sums[d] / static_cast<double>(count)) : 0.0f;
}

const std::int8_t* quantise_block(const KeyPanels& keys, const Ops& ops,
                                  const AttentionProblem& problem, const AttentionArgs& args,
                                  const Sequence& sequence, std::int64_t b, std::int64_t head,
                                  std::int64_t index, void* memory) {
  const Scratch scratch(keys, memory);
  const BlockRange block = block_range(keys, sequence, index);
  load_block(scratch, keys, ops, problem, args, sequence, b, head, block);
  const std::int64_t dim = keys.head_dim;
  const float* mean = keys.mean + (head * keys.batch + b) * dim;
  const KeyRange range = sequence.live_keys();
  float amax = 0;
  bool finite = true;
  for (std::int64_t j = 0; j < block.count; ++j) {
    if (!is_live(keys, sequence, head, block.first + j, range)) continue;
    // A finite key minus a finite mean may still overflow: that is as unusable as a NaN.
    const float row = ops.convert->amax_row(scratch.rows + j * dim, mean, dim);
    finite &= std::isfinite(row);
    amax = std::max(amax, row);
  }
  float scale = amax / 127.0f;
  if (scale == 0) scale = 1;
  for (std::int64_t j = 0; j < block.count; ++j) {
    std::int8_t* codes = scratch.codes + j * dim;
    if (finite && is_live(keys, sequence, head, block.first + j, range))
      ops.convert->quantise_row(codes, scratch.rows + j * dim, mean, scale, dim);
    else
      std::memset(codes, 0, static_cast<std::size_t>(dim));
  }
  keys.scale[head * keys.blocks + sequence.first_block + index] =
      finite ? scale : std::numeric_limits<float>::quiet_NaN();
  return scratch.codes;
}

void prepare_block(const KeyPanels& keys, const Ops& ops, const AttentionProblem& problem,
                   const AttentionArgs& args, const Sequence& sequence, std::int64_t b,
                   std::int64_t head, std::int64_t index, const float* t_k, void* memory) {
  const std::int64_t dim = keys.head_dim;
  const std::int64_t width = keys.block / 4;
  const BlockRange range = block_range(keys, sequence, index);
  const std::int64_t cell = sequence.first_block + index;
  char* panel = keys.panel(head, cell);
  if (range.count < keys.block) std::memset(panel, 0, keys.panel_bytes());

  if (keys.int8) {
    const std::int8_t* codes = nullptr;
    if (const PreparedK* given = args.prepared_k) {
      keys.scale[head * keys.blocks + cell] =
          given->scale[head * given->blocks + given->block_offset[b] + index];
      codes = given->codes.data() + (head * given->rows + sequence.first_row_k + range.first) * dim;
    } else {
      codes = quantise_block(keys, ops, problem, args, sequence, b, head, index, memory);
    }
    pack_codes(keys, panel, codes, range.count);
    return;
  }
  const Scratch scratch(keys, memory);
  load_block(scratch, keys, ops, problem, args, sequence, b, head, range);
  auto* out = reinterpret_cast<float*>(panel);
  for (std::int64_t j = 0; j < range.count; ++j)
    for (std::int64_t d = 0; d < dim; ++d)
      out[(j / width * dim + d) * width + j % width] = scratch.rows[j * dim + d];
  if (t_k != nullptr)
    for (int q = 0; q < 4; ++q)
      transform_quarter(out + q * dim * width, scratch, keys, ops, t_k, problem.dtype);
}

}  // namespace twofour::cpu
