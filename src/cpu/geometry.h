// Where the rows of one attention call lie, and how its key blocks are cut: shared by the
// preparation of K and by the row-block kernel.
#pragma once

#include <algorithm>
#include <cstdint>

#include "layout/schedule.h"
#include "twofour/attention.h"

namespace twofour::cpu {

/// Rows of a [rows, heads, channels] operand in the caller's memory.
struct RowSource {
  const char* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t row_stride = 0;   // elements
  std::int64_t head_stride = 0;  // elements

  const void* row(std::int64_t index, std::int64_t head) const {
    return data +
           (index * row_stride + head * head_stride) * static_cast<std::int64_t>(size_of(dtype));
  }
};

/// The rows of sequence b, which starts at row `first` when packed.
inline RowSource sequence_rows(const ConstTensorView& view, bool packed, std::int64_t b,
                               std::int64_t first) {
  const int row_axis = packed ? 0 : 1;
  RowSource source;
  source.dtype = view.dtype;
  source.row_stride = view.stride[row_axis];
  source.head_stride = view.stride[row_axis + 1];
  const std::int64_t offset = packed ? first * view.stride[0] : b * view.stride[0];
  source.data =
      static_cast<const char*>(view.data) + offset * static_cast<std::int64_t>(size_of(view.dtype));
  return source;
}

/// One sequence of the call.
struct Sequence {
  std::int64_t seqlen_q = 0;
  std::int64_t seqlen_k = 0;
  std::int64_t first_row_q = 0;      // in memory: b * M, or cu_seqlens_q[b]
  std::int64_t first_row_k = 0;      // in memory: b * N, or cu_seqlens_k[b]
  std::int64_t position = 0;         // of row 0
  std::int64_t first_block = 0;      // key blocks of the sequences before
  std::int64_t first_row_block = 0;  // row blocks of the sequences before
  std::int64_t row_blocks = 0;
  layout::ScheduleShape shape;

  std::int64_t lowest_row_block() const { return layout::floor_div(position, layout::kRowBlock); }
  /// Keys that some row sees by causality and window.
  layout::KeyRange live_keys() const {
    if (seqlen_q == 0) return {};
    return {shape.live_keys(position).begin, shape.live_keys(position + seqlen_q - 1).end};
  }
};

struct SequenceTotals {
  std::int64_t blocks = 0;      // key blocks
  std::int64_t row_blocks = 0;  // of one head
};

/// Fills sequences[0 .. batch).
SequenceTotals lay_out_sequences(Sequence* sequences, const AttentionProblem& problem,
                                 const AttentionArgs& args);

/// The boolean mask of one (sequence, head): true means live.
struct MaskRows {
  const std::uint8_t* data = nullptr;  // null: no mask
  std::int64_t row_stride = 0;
  std::int64_t key_stride = 0;

  bool live(std::int64_t row, std::int64_t key) const {
    return data[row * row_stride + key * key_stride] != 0;
  }
};

inline MaskRows mask_rows(const AttentionArgs& args, std::int64_t b, std::int64_t head) {
  if (args.mask.data == nullptr) return {};
  return {static_cast<const std::uint8_t*>(args.mask.data) + b * args.mask.stride[0] +
              head * args.mask.stride[1],
          args.mask.stride[2], args.mask.stride[3]};
}

}  // namespace twofour::cpu
