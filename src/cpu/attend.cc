#include "cpu/attend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/half.h"
#include "cpu/select.h"

namespace twofour::cpu {
namespace {

using layout::BlockKind;
using layout::KeyRange;
using layout::kRowBlock;
using layout::kUnitRows;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kLog2e = 1.4426950408889634;

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

// The scratch of a thread, carved from one allocation.
struct Scratch {
  float* q;              // [192, D] query times scale * log2(e); int8 without VNNI: codes
  float* raw;            // [2, round16(D)] one query row as given, and transformed
  float* coef;           // nm24: [192, D/2] kept channels of q
  std::int32_t* offset;  // nm24: [192, D/2] their rows in a quarter panel
  std::uint8_t* codes;   // int8: [192, D] codes + 128
  float* row_scale;      // int8: [192]
  float* lse_shift;      // [192] nats that the centring of K took away
  float* o;              // [192, chunks * 64]
  float* m;              // [192]
  float* l;              // [192, kSumLanes]
  float* s;              // [64, block]
  float* v;              // [chunks, block, 64]
  std::uint8_t* kinds;   // [key blocks] BlockKind
  std::size_t bytes;

  Scratch(const AttentionProblem& p, std::int64_t max_key_blocks, void* memory) {
    char* const begin = static_cast<char*>(memory);
    char* at = begin;
    auto take = [&at]<class T>(T*& pointer, std::int64_t count) {
      pointer = reinterpret_cast<T*>(at);
      at += round_up(count * static_cast<std::int64_t>(sizeof(T)), 64);
    };
    const std::int64_t d = p.head_dim;
    const std::int64_t chunks = layout::ceil_div(p.head_dim_v, kChunk);
    const bool nm24 = p.sparsity.qk == QKProduct::kNm24;
    const bool int8 = p.sparsity.qk == QKProduct::kInt8;
    take(q, kRowBlock * d);
    take(raw, 2 * round_up(d, 16));
    // Compressing stores may run a vector over.
    take(coef, nm24 ? kRowBlock * d / 2 + 16 : 0);
    take(offset, nm24 ? kRowBlock * d / 2 + 16 : 0);
    take(codes, int8 ? kRowBlock * d : 0);
    take(row_scale, kRowBlock);
    take(lse_shift, kRowBlock);
    take(o, kRowBlock * chunks * kChunk);
    take(m, kRowBlock);
    take(l, kRowBlock * kSumLanes);
    take(s, kUnitRows * p.sparsity.block);
    take(v, chunks * p.sparsity.block * kChunk);
    take(kinds, max_key_blocks);
    bytes = static_cast<std::size_t>(at - begin);
  }
};

class RowBlock {
 public:
  RowBlock(const CallContext& call, std::int64_t b, std::int64_t head, std::int64_t row_block,
           void* memory)
      : call_(call),
        p_(*call.problem),
        seq_(call.sequences[b]),
        b_(b),
        head_(head),
        kv_head_(head / (p_.heads_q / p_.heads_kv)),
        block_(p_.sparsity.block),
        width_(block_ / 4),
        dim_(p_.head_dim),
        scratch_(p_, call.max_key_blocks, memory),
        mask_(mask_rows(*call.args, b, head)) {
    const std::int64_t lowest = (seq_.lowest_row_block() + row_block) * kRowBlock;
    first_row_ = std::max<std::int64_t>(lowest - seq_.position, 0);
    last_row_ = std::min(lowest + kRowBlock - seq_.position, seq_.seqlen_q);
    schedule_ = layout::schedule_row_block(seq_.shape, seq_.lowest_row_block() + row_block);
    ldo_ = layout::ceil_div(p_.head_dim_v, kChunk) * kChunk;
  }

  AttentionStats run() {
    const std::int64_t rows = last_row_ - first_row_;
    load_queries();
    std::fill(scratch_.o, scratch_.o + rows * ldo_, 0.0f);
    std::fill(scratch_.l, scratch_.l + rows * kSumLanes, 0.0f);
    std::fill(scratch_.m, scratch_.m + rows, -kInfinity);
    for (std::int64_t i = first_row_; i < last_row_; ++i) {
      const KeyRange range = live_keys(i);
      stats_.live_pairs += range.end - range.begin;
    }
    classify_blocks();
    for (const BlockKind pass : {BlockKind::kPlain, BlockKind::kPruned}) {
      for (std::int64_t kb = schedule_.first; kb < schedule_.last; ++kb) {
        if (static_cast<BlockKind>(scratch_.kinds[kb]) != pass) continue;
        values_loaded_ = false;
        for_each_tile([&](std::int64_t begin, std::int64_t end) {
          if (pass == BlockKind::kPlain)
            plain_tile(kb, begin, end);
          else
            pruned_tile(kb, begin, end);
        });
      }
    }
    store_rows();
    return stats_;
  }

 private:
  // Rows [begin, end) of each run of 64 positions.
  template <class F>
  void for_each_tile(F&& body) {
    for (std::int64_t begin = first_row_; begin < last_row_;) {
      const std::int64_t position = seq_.position + begin;
      const std::int64_t next = (layout::floor_div(position, kUnitRows) + 1) * kUnitRows;
      const std::int64_t end = std::min(last_row_, next - seq_.position);
      body(begin, end);
      begin = end;
    }
  }

  KeyRange live_keys(std::int64_t row) const { return seq_.shape.live_keys(seq_.position + row); }

  // Keys of block kb that row sees by causality and window, relative to the block.
  KeyRange live_in_block(std::int64_t kb, std::int64_t row) const {
    const KeyRange range = live_keys(row);
    const std::int64_t first = kb * block_;
    const std::int64_t end = std::min<std::int64_t>(range.end - first, block_);
    return {std::clamp<std::int64_t>(range.begin - first, 0, std::max<std::int64_t>(end, 0)), end};
  }

  // ---- queries -------------------------------------------------------------------------------

  void load_queries() {
    const RowSource source = sequence_rows(call_.args->q, p_.packed, b_, seq_.first_row_q);
    const auto factor = static_cast<float>(call_.scale * kLog2e);
    const std::int64_t padded = round_up(dim_, 16);
    for (std::int64_t i = first_row_; i < last_row_; ++i) {
      const std::int64_t r = i - first_row_;
      float* row = scratch_.raw;
      call_.ops.convert->load_row(row, source.row(i, head_), source.dtype, dim_);
      scratch_.lse_shift[r] = 0;
      if (p_.sparsity.qk == QKProduct::kInt8) {
        quantise_query(r, row, factor);
        continue;
      }
      if (call_.t_q != nullptr) {
        float* product = row + padded;
        call_.ops.matmul->gemm(product, padded, row, dim_, call_.t_q + kv_head_ * dim_ * padded,
                               padded, 1, dim_, padded, false);
        for (std::int64_t d = 0; d < dim_; ++d) product[d] = round_to(p_.dtype, product[d]);
        row = product;
      }
      for (std::int64_t d = 0; d < dim_; ++d) scratch_.q[r * dim_ + d] = row[d] * factor;
      if (p_.sparsity.qk == QKProduct::kNm24)
        call_.ops.convert->select_channels(scratch_.coef + r * dim_ / 2,
                                           scratch_.offset + r * dim_ / 2, row, channel_weights(),
                                           factor, width_, dim_);
    }
  }

  const float* channel_weights() const {
    const KeyTransform* transform = call_.args->transform;
    if (transform == nullptr || transform->w == nullptr) return nullptr;
    return transform->w + kv_head_ * dim_;
  }

  void quantise_query(std::int64_t r, const float* row, float factor) {
    float scale = call_.ops.convert->amax_row(row, nullptr, dim_) / 127.0f;
    if (scale == 0) scale = 1;
    if (!std::isfinite(scale)) scale = std::numeric_limits<float>::quiet_NaN();
    scratch_.row_scale[r] = scale * factor;
    std::uint8_t* codes = scratch_.codes + r * dim_;
    auto* signed_codes = reinterpret_cast<std::int8_t*>(codes);
    call_.ops.convert->quantise_row(signed_codes, row, nullptr, scale, dim_);
    if (call_.keys.vnni) {
      for (std::int64_t d = 0; d < dim_; ++d)
        codes[d] = static_cast<std::uint8_t>(signed_codes[d] + 128);
    } else {
      for (std::int64_t d = 0; d < dim_; ++d) scratch_.q[r * dim_ + d] = signed_codes[d];
    }
    const float* mean =
        call_.args->prepared_k != nullptr ? call_.args->prepared_k->mean.data() : call_.keys.mean;
    mean += (kv_head_ * p_.batch + b_) * dim_;
    double dot = 0;
    for (std::int64_t d = 0; d < dim_; ++d) dot += static_cast<double>(row[d]) * mean[d];
    scratch_.lse_shift[r] = static_cast<float>(dot * call_.scale);
  }

  // ---- schedule ------------------------------------------------------------------------------

  void classify_blocks() {
    if (mask_.data == nullptr) {
      for (std::int64_t kb = schedule_.first; kb < schedule_.last; ++kb)
        scratch_.kinds[kb] = static_cast<std::uint8_t>(schedule_.kind(kb));
      return;
    }
    // With a mask sinks are counted over the blocks that stay live, and a block is pruned only when
    // the mask leaves every pair of it.
    stats_.live_pairs = 0;
    std::int64_t live_blocks = 0;
    for (std::int64_t kb = schedule_.first; kb < schedule_.last; ++kb) {
      // The mask is judged by itself, over the rows that exist: a mask of true is no mask.
      bool any = false, all = true;
      std::int64_t live = 0;
      const std::int64_t keys = std::min<std::int64_t>(block_, seq_.seqlen_k - kb * block_);
      for (std::int64_t i = first_row_; i < last_row_; ++i) {
        const KeyRange range = live_in_block(kb, i);
        for (std::int64_t j = 0; j < keys; ++j) {
          const bool pair = mask_.live(i, kb * block_ + j);
          any |= pair;
          all &= pair;
          live += pair && j >= range.begin && j < range.end;
        }
      }
      stats_.live_pairs += live;
      const bool full = kb >= schedule_.full_begin && kb < schedule_.full_end && all;
      const bool diagonal = kb >= schedule_.diag_begin && kb < schedule_.diag_end;
      BlockKind kind = BlockKind::kPlain;
      if (!any)
        kind = BlockKind::kEmpty;
      else if (++live_blocks > p_.sparsity.sink_blocks && full && !diagonal)
        kind = BlockKind::kPruned;
      scratch_.kinds[kb] = static_cast<std::uint8_t>(kind);
    }
  }

  // ---- blocks --------------------------------------------------------------------------------

  std::int64_t cell(std::int64_t kb) const { return seq_.first_block + kb; }

  RowState state(std::int64_t begin) const {
    const std::int64_t r = begin - first_row_;
    return {scratch_.o + r * ldo_, scratch_.m + r, scratch_.l + r * kSumLanes, ldo_};
  }

  // V of a block as fp32, with zeros for keys that no row of this row block sees: their values must
  // not matter, and 0 * NaN would.
  void load_values(std::int64_t kb) {
    if (values_loaded_) return;
    values_loaded_ = true;
    const RowSource source = sequence_rows(call_.args->v, p_.packed, b_, seq_.first_row_k);
    const std::int64_t first = kb * block_;
    const KeyRange live{live_keys(first_row_).begin, live_keys(last_row_ - 1).end};
    const bool pruned = static_cast<BlockKind>(scratch_.kinds[kb]) == BlockKind::kPruned;
    for (std::int64_t j = 0; j < block_; ++j) {
      const std::int64_t key = first + j;
      bool seen = key >= live.begin && key < live.end;
      if (seen && mask_.data != nullptr && !pruned) seen = seen_through_mask(key);
      for (std::int64_t c = 0; c * kChunk < p_.head_dim_v; ++c) {
        float* out = scratch_.v + (c * block_ + j) * kChunk;
        const std::int64_t n = std::min<std::int64_t>(kChunk, p_.head_dim_v - c * kChunk);
        if (seen) {
          const auto* row = static_cast<const char*>(source.row(key, kv_head_));
          call_.ops.convert->load_row(
              out, row + c * kChunk * static_cast<std::int64_t>(size_of(source.dtype)),
              source.dtype, n);
          std::fill(out + n, out + kChunk, 0.0f);
        } else {
          std::fill(out, out + kChunk, 0.0f);
        }
      }
    }
  }

  bool seen_through_mask(std::int64_t key) const {
    for (std::int64_t i = first_row_; i < last_row_; ++i) {
      const KeyRange range = live_keys(i);
      if (key >= range.begin && key < range.end && mask_.live(i, key)) return true;
    }
    return false;
  }

  // Scores of rows [begin, end) for quarter `quarter` with the full query, at their natural place.
  void full_scores(std::int64_t kb, int quarter, std::int64_t begin, std::int64_t end) const {
    const std::int64_t r = begin - first_row_;
    float* out = scratch_.s + quarter * width_;
    if (call_.keys.vnni) {
      call_.ops.matmul->gemm_int8(
          out, block_, scratch_.codes + r * dim_, dim_, scratch_.row_scale + r, key_scale(kb),
          call_.keys.codes(kv_head_, cell(kb), quarter),
          call_.keys.bias(kv_head_, cell(kb), quarter), end - begin, dim_ / 4, width_);
      return;
    }
    call_.ops.matmul->gemm(out, block_, scratch_.q + r * dim_, dim_,
                           call_.keys.quarter(kv_head_, cell(kb), quarter), width_, end - begin,
                           dim_, width_, false);
    if (!call_.keys.int8) return;
    for (std::int64_t i = 0; i < end - begin; ++i) {
      const float factor = scratch_.row_scale[r + i] * key_scale(kb);
      for (std::int64_t j = 0; j < width_; ++j) out[i * block_ + j] *= factor;
    }
  }

  float key_scale(std::int64_t kb) const {
    return call_.keys.scale[kv_head_ * call_.keys.blocks + cell(kb)];
  }

  // O += P V over keys [first, last) of the block.
  void add_dense_values(std::int64_t begin, std::int64_t end, std::int64_t first,
                        std::int64_t last) const {
    for (std::int64_t c = 0; c * kChunk < p_.head_dim_v; ++c) {
      const std::int64_t n =
          round_up(std::min<std::int64_t>(kChunk, p_.head_dim_v - c * kChunk), 16);
      call_.ops.matmul->gemm(state(begin).o + c * kChunk, ldo_, scratch_.s + first, block_,
                             scratch_.v + (c * block_ + first) * kChunk, kChunk, end - begin,
                             last - first, n, true);
    }
  }

  void plain_tile(std::int64_t kb, std::int64_t begin, std::int64_t end) {
    // The union of the rows' ranges: both ends grow with the row.
    const KeyRange live{live_in_block(kb, begin).begin, live_in_block(kb, end - 1).end};
    if (live.empty()) return;
    const std::int64_t first = live.begin / width_ * width_;
    const std::int64_t last = round_up(live.end, width_);
    for (std::int64_t at = first; at < last; at += width_)
      full_scores(kb, static_cast<int>(at / width_), begin, end);
    for (std::int64_t i = begin; i < end; ++i) {
      const KeyRange range = live_in_block(kb, i);
      float* s = scratch_.s + (i - begin) * block_;
      const std::int64_t from = range.empty() ? last : std::max(range.begin, first);
      std::fill(s + first, s + from, -kInfinity);
      if (!range.empty()) std::fill(s + range.end, s + last, -kInfinity);
      if (mask_.data != nullptr)
        for (std::int64_t j = range.begin; j < range.end; ++j)
          if (!mask_.live(i, kb * block_ + j)) s[j] = -kInfinity;
    }
    if (p_.trace) trace_plain(kb, begin, end);
    load_values(kb);
    call_.softmax->dense_rows(state(begin), scratch_.s + first, block_, end - begin, last - first);
    add_dense_values(begin, end, first, last);
  }

  void pruned_tile(std::int64_t kb, std::int64_t begin, std::int64_t end) {
    stats_.units += 2;
    stats_.pruned_pairs += (end - begin) * block_;
    if (p_.sparsity.score == ScorePattern::kNm24Strided) {
      strided_tile(kb, begin, end);
      return;
    }
    for (int half = 0; half < 2; ++half) unit(kb, half, begin, end);
  }

  // Half-block `half` (quarters half and half + 2) for one run of 64 positions.
  void unit(std::int64_t kb, int half, std::int64_t begin, std::int64_t end) {
    const Sparsity& sparsity = p_.sparsity;
    const std::int64_t r = begin - first_row_;
    const std::int64_t partner = block_ / 2;
    float* s = scratch_.s + half * width_;
    pruned_scores(kb, half, begin, end);
    auto reaches = [&](float nats) {
      return call_.softmax->any_reaches(scratch_.m + r, static_cast<float>(nats * kLog2e), s,
                                        block_, partner, end - begin, width_);
    };
    UnitDecision decision = UnitDecision::kPruned;
    if (sparsity.drop && !reaches(*sparsity.drop)) {
      ++stats_.dropped;
      if (p_.trace) trace_unit(kb, half, begin, end, UnitDecision::kDropped);
      return;
    }
    if (sparsity.refine && reaches(*sparsity.refine)) {
      ++stats_.refined;
      decision = UnitDecision::kRefined;
      full_scores(kb, half, begin, end);
      full_scores(kb, half + 2, begin, end);
    }
    if (sparsity.score == ScorePattern::kNm24Adjacent)
      for (std::int64_t i = 0; i < end - begin; ++i)
        for (std::int64_t at : {std::int64_t{0}, partner})
          for (std::int64_t j = 0; j < width_; j += 4) keep_two_of_four(s + i * block_ + at + j, 1);
    if (p_.trace) trace_unit(kb, half, begin, end, decision);
    load_values(kb);
    if (sparsity.score == ScorePattern::kPair) {
      const ValueBlock value{scratch_.v + half * width_ * kChunk, block_ * kChunk,
                             round_up(p_.head_dim_v, 16)};
      call_.softmax->pair_rows(state(begin), s, block_, value, partner, end - begin, width_);
      return;
    }
    for (std::int64_t at : {half * width_, half * width_ + partner}) {
      call_.softmax->dense_rows(state(begin), scratch_.s + at, block_, end - begin, width_);
      add_dense_values(begin, end, at, at + width_);
    }
  }

  void pruned_scores(std::int64_t kb, int half, std::int64_t begin, std::int64_t end) const {
    if (p_.sparsity.qk != QKProduct::kNm24) {
      full_scores(kb, half, begin, end);
      full_scores(kb, half + 2, begin, end);
      return;
    }
    const std::int64_t r = begin - first_row_;
    const std::int64_t kept = dim_ / 2;
    call_.ops.matmul->sparse_rows(scratch_.s + half * width_, block_, block_ / 2,
                                  scratch_.coef + r * kept, scratch_.offset + r * kept, kept,
                                  call_.keys.quarter(kv_head_, cell(kb), half), 2 * dim_ * width_,
                                  end - begin, width_);
  }

  // The strided pattern spans both half-blocks, so the whole block is one step.
  void strided_tile(std::int64_t kb, std::int64_t begin, std::int64_t end) {
    for (int half = 0; half < 2; ++half) pruned_scores(kb, half, begin, end);
    for (std::int64_t i = 0; i < end - begin; ++i)
      for (std::int64_t j = 0; j < width_; ++j)
        keep_two_of_four(scratch_.s + i * block_ + j, width_);
    if (p_.trace)
      for (int half = 0; half < 2; ++half) trace_unit(kb, half, begin, end, UnitDecision::kPruned);
    load_values(kb);
    call_.softmax->dense_rows(state(begin), scratch_.s, block_, end - begin, block_);
    add_dense_values(begin, end, 0, block_);
  }

  // ---- debugging rows ------------------------------------------------------------------------

  void trace_plain(std::int64_t kb, std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const KeyRange range = live_in_block(kb, i);
      for (std::int64_t j = range.begin; j < range.end; ++j)
        if (mask_.data == nullptr || mask_.live(i, kb * block_ + j)) keep(i, kb * block_ + j);
    }
  }

  // Reads the selection off the scores, before the exponential.
  void trace_unit(std::int64_t kb, int half, std::int64_t begin, std::int64_t end,
                  UnitDecision decision) {
    const std::int64_t partner = block_ / 2;
    for (std::int64_t i = begin; i < end; ++i) {
      call_.args->decisions->unit_at(head_, seq_.first_row_q + i, 2 * kb + half) = decision;
      if (decision == UnitDecision::kDropped) continue;
      const float* s = scratch_.s + (i - begin) * block_ + half * width_;
      for (std::int64_t j = 0; j < width_; ++j) {
        const std::int64_t key = kb * block_ + half * width_ + j;
        if (p_.sparsity.score == ScorePattern::kPair) {
          keep(i, higher_index_wins(s[j], s[j + partner]) ? key + partner : key);
          continue;
        }
        const bool all = p_.sparsity.score == ScorePattern::kNone;
        if (all || s[j] != -kInfinity) keep(i, key);
        if (all || s[j + partner] != -kInfinity) keep(i, key + partner);
      }
    }
  }

  void keep(std::int64_t row, std::int64_t key) {
    call_.args->decisions->keep(head_, seq_.first_row_q + row, key);
  }

  // ---- result --------------------------------------------------------------------------------

  void store_rows() const {
    const TensorView& o = call_.args->o;
    const TensorView& lse = call_.args->lse;
    const int row_axis = p_.packed ? 0 : 1;
    const std::int64_t base = p_.packed ? seq_.first_row_q * o.stride[0] : b_ * o.stride[0];
    for (std::int64_t i = first_row_; i < last_row_; ++i) {
      const std::int64_t r = i - first_row_;
      double sum = 0;
      for (std::int64_t j = 0; j < kSumLanes; ++j) sum += scratch_.l[r * kSumLanes + j];
      const bool empty = scratch_.m[r] == -kInfinity && sum == 0;
      const std::int64_t at = base + i * o.stride[row_axis] + head_ * o.stride[row_axis + 1];
      char* out = static_cast<char*>(o.data) + at * static_cast<std::int64_t>(size_of(o.dtype));
      const float factor = empty ? 0.0f : static_cast<float>(1.0 / sum);
      call_.ops.convert->store_row(out, o.dtype, scratch_.o + r * ldo_, factor, p_.head_dim_v);
      if (lse.data == nullptr) continue;
      const double value =
          empty ? -kInfinity : (scratch_.m[r] + std::log2(sum)) / kLog2e + scratch_.lse_shift[r];
      const std::int64_t lse_at =
          p_.packed ? head_ * lse.stride[0] + (seq_.first_row_q + i) * lse.stride[1]
                    : b_ * lse.stride[0] + head_ * lse.stride[1] + i * lse.stride[2];
      static_cast<float*>(lse.data)[lse_at] = static_cast<float>(value);
    }
  }

  const CallContext& call_;
  const AttentionProblem& p_;
  const Sequence& seq_;
  const std::int64_t b_, head_, kv_head_;
  const std::int64_t block_, width_, dim_;
  const Scratch scratch_;
  const MaskRows mask_;
  layout::RowBlockSchedule schedule_;
  std::int64_t first_row_ = 0, last_row_ = 0;  // of the sequence
  std::int64_t ldo_ = 0;
  bool values_loaded_ = false;
  AttentionStats stats_;
};

}  // namespace

std::size_t attend_scratch_bytes(const AttentionProblem& problem, std::int64_t max_key_blocks) {
  return Scratch(problem, max_key_blocks, nullptr).bytes;
}

AttentionStats attend_row_block(const CallContext& call, std::int64_t b, std::int64_t head,
                                std::int64_t row_block, void* scratch) {
  return RowBlock(call, b, head, row_block, scratch).run();
}

}  // namespace twofour::cpu
