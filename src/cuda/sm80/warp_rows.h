// One warp over the keys of its query rows: plain steps, then fast ones.
#pragma once

#include "cuda/sm80/pipeline.h"
#include "cuda/sm80/softmax.h"
#include "cuda/sm80/trace.h"
#include "cuda/tile/parts.h"

namespace twofour::cuda::sm80 {

// Named barriers: 0 is __syncthreads, then one for each unit of 64 rows.
inline constexpr int kBarrierUnit = 1;

template <Config c>
struct WarpRows : Softmax<c> {
  using Base = Softmax<c>;
  using Softmax<c>::Softmax;
  using Base::kChunks;
  using Base::kKept;
  using Base::kOut;
  using Base::kPairs;
  using Base::kScores;
  using Base::kTiles;
  using Base::l;
  using Base::lane;
  using Base::m;
  using Base::o;
  using Base::p;
  using Base::shared;
  using Base::warp;
  using typename Base::S;
  using typename Base::Score;

  int row;       // of the CTA's tile: row g of the first row tile
  bool exists;   // some row of this warp
  bool working;  // where units decide: some row of the unit
  const Walk* walk;
  float seen[kTiles][2];  // of units that decide: the largest score before, log2 units
  int refined, dropped;   // units of this item

  // ---- plain ------------------------------------------------------------------------------------

  /// Keys that row h of row tile r sees.
  __device__ __forceinline__ layout::KeyRange live_keys(const Item& item, int r, int h) const {
    return schedule_shape(p, c.block, item.seqlen_k)
        .live_keys(item.position_of(row + 16 * r + 8 * h));
  }

  /// Scores of c.chunk keys from `first` on in log2 units, dead ones -inf.
  __device__ __forceinline__ void masked(float (&x)[kTiles][kScores],
                                         const Score (&s)[kTiles][kScores], const PerRow<c>& f,
                                         const Item& item, int first) const {
    const int lane_first = first + layout::quad_lane(lane) * 2;
#pragma unroll
    for (int r = 0; r < kTiles; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const layout::KeyRange live = live_keys(item, r, h);
        const int begin = static_cast<int>(live.begin) - lane_first;
        const int end = static_cast<int>(live.end) - lane_first;
#pragma unroll
        for (int i = 2 * h; i < kScores; i += 4)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int j = i / 4 * 8 + e;
            const bool is_live = j >= begin && j < end;
            x[r][i + e] = is_live ? this->raw(s[r][i + e]) * f[r][h] : -INFINITY;
            if constexpr (c.trace)
              if (is_live) Trace<c>{p, item, row + 16 * r, lane}.keep(h, lane_first + j);
          }
      }
  }

  /// Bits of the fragments of V that belong to keys which some row of the row block sees; those of
  /// other keys may be NaN, and 0 * NaN would matter.
  __device__ __forceinline__ void live_values(std::uint32_t (&live)[c.chunk / 8], int first) const {
#pragma unroll
    for (int i = 0; i < c.chunk / 8; ++i) {
      const int key = first + 8 * i + 2 * layout::quad_lane(lane);
      live[i] = (key >= walk->live_begin && key < walk->live_end ? 0xFFFFu : 0) |
                (key + 1 >= walk->live_begin && key + 1 < walk->live_end ? 0xFFFF0000u : 0);
    }
  }

  /// True when no row of this warp sees a key of the chunk.
  __device__ __forceinline__ bool is_dead(const Item& item, int first) const {
    const layout::ScheduleShape shape = schedule_shape(p, c.block, item.seqlen_k);
    const int lowest = item.position_of(16 * kTiles * warp);
    return first >= shape.live_keys(lowest + 16 * kTiles - 1).end ||
           first + c.chunk <= shape.live_keys(lowest).begin;
  }

  __device__ __forceinline__ void plain(const Item& item, int block, StepKeys keys,
                                        std::uint32_t stage) {
    PerRow<c> f;
    this->key_factor(f, item, block);
#pragma unroll 1
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int first = keys.first + c.chunk * chunk;
      if (is_dead(item, first)) continue;
      float x[kTiles][kScores];
      {
        Score s[kTiles][kScores];
        this->template full_scores<true>(s, stage, chunk);
        masked(x, s, f, item, first);
      }
#pragma unroll
      for (int r = 0; r < kTiles; ++r)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float largest = this->quad_max(this->largest_of(x[r], kScores, h));
          if constexpr (c.decides()) seen[r][h] = ptx::max_nan(seen[r][h], largest);
          if (!(largest < m[r][h]))
            this->move_reference(r, h, largest == -INFINITY ? m[r][h] : floorf(largest) + 1);
          const float reference = this->reference(r, h);
#pragma unroll
          for (int i = 2 * h; i < kScores; i += 4) {
            x[r][i] -= reference;
            x[r][i + 1] -= reference;
          }
        }
      std::uint32_t prob[kTiles][kScores / 2], live[c.chunk / 8];
      this->exponentials(prob, x, l);
      live_values(live, first);
      this->template dense_values<true>(prob, stage + S::Key::kBytes, c.chunk * chunk, live);
    }
  }

  // ---- fast -------------------------------------------------------------------------------------

  /// Probabilities of a chunk whose values are yet to be multiplied.
  struct Pending {
    std::uint32_t prob[kTiles][kKept / 2];
    std::uint32_t metadata[2];
    std::uint32_t stage;

    /// None: zeros, which any values of a fast step may multiply (docs/semantics.md, rule 9).
    __device__ __forceinline__ void clear() {
#pragma unroll
      for (int r = 0; r < kTiles; ++r)
#pragma unroll
        for (int i = 0; i < kKept / 2; ++i) prob[r][i] = 0;
      metadata[0] = metadata[1] = tile::kNoFlags;
    }
  };

  /// Scores of a chunk, pruned; returns the own metadata words.
  template <bool kFull>
  __device__ __forceinline__ layout::WordPair fast_scores(Score (&s)[kTiles][kScores],
                                                          std::uint32_t stage, int chunk) const {
    if constexpr (kFull)
      this->template full_scores<false>(s, stage, chunk);
    else
      this->pruned_scores(s, stage, chunk);
    return this->prune_own(s);
  }

  __device__ __forceinline__ void multiply_values(const std::uint32_t (&prob)[kTiles][kKept / 2],
                                                  const std::uint32_t (&metadata)[2],
                                                  std::uint32_t stage, int chunk) {
    if constexpr (kPairs) {
      this->pair_values(prob, metadata, stage + S::Key::kBytes, chunk);
    } else {
      const std::uint32_t all[c.chunk / 8] = {};
      this->template dense_values<false>(prob, stage + S::Key::kBytes, c.chunk * chunk, all);
    }
  }

  __device__ __forceinline__ void trace_fast(const Item& item, StepKeys keys, int chunk,
                                             layout::WordPair own) const {
    if constexpr (c.trace) {
      const int by = (prunes_scores(c) ? c.chunk / 2 : c.chunk) * chunk;
      const StepKeys of_chunk{keys.first + by, keys.second + by};
      Trace<c>{p, item, row, lane}.template keep_fast<0>(of_chunk, own);
      if constexpr (kTiles > 1)
        Trace<c>{p, item, row + 16, lane}.template keep_fast<c.chunk / 16>(of_chunk, own);
    }
  }
  __device__ __forceinline__ void trace_unit(const Item& item, int block, int half,
                                             UnitDecision decision) const {
    if constexpr (c.trace && kPairs)
      for (int r = 0; r < kTiles; ++r)
        Trace<c>{p, item, row + 16 * r, lane}.decide(block, half, decision);
  }

  /// Adds the pruned scores of a chunk to the raw row maxima of this thread.
  __device__ __forceinline__ void collect(PerRow<c>& largest,
                                          const Score (&s)[kTiles][kScores]) const {
#pragma unroll
    for (int r = 0; r < kTiles; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        largest[r][h] = ptx::max_nan(largest[r][h], this->largest_of(s[r], kKept, h));
  }

  /// A chunk from scores to O. `largest` collects raw row maxima of this thread, if asked.
  template <bool kFull, bool kMaxima>
  __device__ __forceinline__ void fast_chunk(const Item& item, StepKeys keys, const PerRow<c>& f,
                                             std::uint32_t stage, int chunk, PerRow<c>& largest) {
    std::uint32_t prob[kTiles][kKept / 2], metadata[2];
    {
      Score s[kTiles][kScores];
      const layout::WordPair own = fast_scores<kFull>(s, stage, chunk);
      trace_fast(item, keys, chunk, own);
      if constexpr (kMaxima) collect(largest, s);
      float x[kTiles][kKept];
      this->exponents(x, s, f);
      if (__any_sync(~0u, this->any_beyond(x) || this->has_no_reference()))
        this->raise_reference(x);
      this->exponentials(prob, x, l);
      this->exchange(metadata, own);
    }
    multiply_values(prob, metadata, stage, chunk);
  }

  /// Pruned scores to probabilities. The exponentials come before it is known whether a score has
  /// outgrown its reference: they overlap with the products before them.
  __device__ __forceinline__ void soften(std::uint32_t (&prob)[kTiles][kKept / 2],
                                         const Score (&s)[kTiles][kScores], const PerRow<c>& f,
                                         bool raise) {
    float x[kTiles][kKept];
    PerRow<c> sum;
    this->exponents(x, s, f);
    this->exponentials_alone(prob, x, sum);
    if (__any_sync(~0u, raise || this->outgrown(sum))) {
      this->exponents(x, s, f);
      this->raise_reference(x);
      this->exponentials_alone(prob, x, sum);
    }
#pragma unroll
    for (int r = 0; r < kTiles; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) l[r][h] += sum[r][h];
  }

  /// The scores of a chunk are issued before the values of the chunk before, whose products the
  /// pruning and the exponentials overlap with.
  __device__ __forceinline__ void fast(const Item& item, const Cursor<c>& at, std::uint32_t stage,
                                       Pending& pending, bool& has_previous,
                                       Pipeline<c>& pipeline) {
    PerRow<c> f;
    this->key_factor(f, item, at.block);
    const StepKeys keys = at.keys();
    if (!has_previous) pending.stage = stage;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      Score s[kTiles][kScores];
      this->pruned_scores(s, stage, chunk);
      if constexpr (c.ahead)
        multiply_values(pending.prob, pending.metadata, chunk == 0 ? pending.stage : stage,
                        (chunk + kChunks - 1) % kChunks);
      const layout::WordPair own = this->prune_own(s);
      trace_fast(item, keys, chunk, own);
      this->exchange(pending.metadata, own);
      soften(pending.prob, s, f, chunk == 0 && this->has_no_reference());
      if (chunk == 0) {
        if (has_previous) pipeline.release();
        pipeline.template fill_next<true>();
      }
      if constexpr (!c.ahead) multiply_values(pending.prob, pending.metadata, stage, chunk);
    }
    if constexpr (c.ahead) {
      pending.stage = stage;
      has_previous = true;
    } else {
      pipeline.release();
    }
    trace_unit(item, at.block, at.half, UnitDecision::kPruned);
  }
  __device__ __forceinline__ void finish(Pending& pending, bool& has_previous,
                                         Pipeline<c>& pipeline) {
    if (!has_previous) return;
    multiply_values(pending.prob, pending.metadata, pending.stage, kChunks - 1);
    pipeline.release();
    pending.clear();
    has_previous = false;
  }

  // ---- units that decide ------------------------------------------------------------------------

  /// True when some existing row of the unit has reached its running maximum less `log2_units`; NaN
  /// has.
  __device__ __forceinline__ bool reaches(const Item& item, const PerRow<c>& largest,
                                          float log2_units) const {
    bool any = false;
#pragma unroll
    for (int r = 0; r < kTiles; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int i = item.row_of_sequence(row + 16 * r + 8 * h);
        any |= i >= 0 && i < item.seqlen_q && !(largest[r][h] < seen[r][h] - log2_units);
      }
    return ptx::named_barrier_any(kBarrierUnit + warp / c.warps_of_unit(), 32 * c.warps_of_unit(),
                                  any);
  }

  __device__ __forceinline__ void see(PerRow<c>& largest, const PerRow<c>& f) const {
#pragma unroll
    for (int r = 0; r < kTiles; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) largest[r][h] = this->quad_max(largest[r][h]) * f[r][h];
  }

  /// A unit in one step (docs/semantics.md, rules 6 to 8): it is dropped, or refined or not and
  /// then pruned. Its probabilities are computed before that is known, relative to the reference as
  /// it is: a score that has outgrown it has the unit computed again, as refining does.
  __device__ __forceinline__ void deciding(const Item& item, const Cursor<c>& at,
                                           std::uint32_t stage) {
    PerRow<c> f, largest, sum;
    this->key_factor(f, item, at.block);
    const StepKeys keys = at.keys();
    std::uint32_t prob[kChunks][kTiles][kKept / 2], metadata[kChunks][2];
    layout::WordPair own[c.trace ? kChunks : 1];
    bool beyond = this->has_no_reference();
#pragma unroll
    for (int r = 0; r < kTiles; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        largest[r][h] = -INFINITY;
        sum[r][h] = 0;
      }
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      Score s[kTiles][kScores];
      const layout::WordPair words = fast_scores<false>(s, stage, chunk);
      if constexpr (c.trace) own[chunk] = words;
      collect(largest, s);
      float x[kTiles][kKept];
      this->exponents(x, s, f);
      beyond |= this->any_beyond(x);
      this->exponentials(prob[chunk], x, sum);
      this->exchange(metadata[chunk], words);
    }
    see(largest, f);
    if (c.drop && !reaches(item, largest, p.drop_log2)) {
      ++dropped;
      trace_unit(item, at.block, at.half, UnitDecision::kDropped);
      remember(largest);
      return;
    }
    const bool refine = c.refine && reaches(item, largest, p.refine_log2);
    if (refine || __any_sync(~0u, beyond)) {
#pragma unroll
      for (int r = 0; r < kTiles; ++r)
#pragma unroll
        for (int h = 0; h < 2; ++h) largest[r][h] = -INFINITY;
      if (refine) {
        ++refined;
#pragma unroll 1
        for (int chunk = 0; chunk < kChunks; ++chunk)
          fast_chunk<true, true>(item, keys, f, stage, chunk, largest);
      } else {
#pragma unroll 1
        for (int chunk = 0; chunk < kChunks; ++chunk)
          fast_chunk<false, true>(item, keys, f, stage, chunk, largest);
      }
      see(largest, f);
    } else {
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        if constexpr (c.trace) trace_fast(item, keys, chunk, own[chunk]);
        multiply_values(prob[chunk], metadata[chunk], stage, chunk);
      }
#pragma unroll
      for (int r = 0; r < kTiles; ++r)
#pragma unroll
        for (int h = 0; h < 2; ++h) l[r][h] += sum[r][h];
    }
    trace_unit(item, at.block, at.half, refine ? UnitDecision::kRefined : UnitDecision::kPruned);
    remember(largest);
  }
  __device__ __forceinline__ void remember(const PerRow<c>& largest) {
#pragma unroll
    for (int r = 0; r < kTiles; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) seen[r][h] = ptx::max_nan(seen[r][h], largest[r][h]);
  }

  // ---- one item ---------------------------------------------------------------------------------

  __device__ __forceinline__ bool any_exists(const Item& item, int first, int rows) const {
    const int i = item.row_of_sequence(first);
    return i + rows > 0 && i < item.seqlen_q;
  }

  __device__ __forceinline__ void begin(const Item& item) {
    row = 16 * kTiles * warp + layout::group_of(lane);
    exists = any_exists(item, 16 * kTiles * warp, 16 * kTiles);
    const int unit = warp / c.warps_of_unit();
    working = c.decides() ? any_exists(item, 64 * unit, 64) : exists;
    walk = item.walk + (layout::floor_div(item.position_of(64 * unit), layout::kRowBlock) ==
                                item.walk[0].row_block
                            ? 0
                            : 1);
    load_query<c>(p, item, shared, warp, lane);
    __syncwarp();
    this->keep_query();
    if constexpr (is_nm24(c)) this->pruned.prune(p, item, shared, warp, lane);
    refined = dropped = 0;
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        m[r][h] = seen[r][h] = -INFINITY;
        l[r][h] = 0;
        if constexpr (is_int8(c))
          this->row_scale[r][h] = p.scale_log2 * ptx::load_shared_float(shared + S::kRowScale +
                                                                        4 * (row + 16 * r + 8 * h));
      }
#pragma unroll
      for (int i = 0; i < kOut; ++i) o[r][i] = 0;
    }
  }

  __device__ __forceinline__ void fast_steps(const Item& item, Cursor<c>& at,
                                             Pipeline<c>& pipeline) {
    Pending pending;
    pending.clear();
    bool has_previous = false, mine = false;
    int run_end = -1;
#pragma unroll 1
    for (; !at.done(); at.next_fast(item)) {
      const std::uint32_t stage = pipeline.wait();
      if (at.run_end != run_end) {
        run_end = at.run_end;
        mine = working && walk->is_fast(at.block);
      }
      if (mine) {
        fast(item, at, stage, pending, has_previous, pipeline);
      } else {
        finish(pending, has_previous, pipeline);
        pipeline.release();
        pipeline.template fill_next<true>();
      }
    }
    finish(pending, has_previous, pipeline);
  }

  __device__ __forceinline__ void fast_steps_deciding(const Item& item, Cursor<c>& at,
                                                      Pipeline<c>& pipeline) {
#pragma unroll 1
    for (; !at.done(); at.next_fast(item)) {
      pipeline.template fill_next<true>();
      const std::uint32_t stage = pipeline.wait();
      if (working && walk->is_fast(at.block)) deciding(item, at, stage);
      pipeline.release();
    }
  }

  __device__ __forceinline__ void run(const Item& item, Pipeline<c>& pipeline) {
    begin(item);
    // O leaves through the memory of q, where a row of it may lie over codes of another warp.
    if constexpr (S::Query::kBytes < S::Out::kBytes) __syncthreads();
    // Where units decide, at the end; elsewhere now, when few registers are in use.
    if constexpr (!c.decides())
      if (p.stats != nullptr) count(item);
    Cursor<c> at;
    at.next(item);
#pragma unroll 1
    for (; !at.done() && !at.fast; at.next(item)) {
      pipeline.fill_next();
      const std::uint32_t stage = pipeline.wait();
      if (exists && is_live(c, *walk, at.block, at.half)) plain(item, at.block, at.keys(), stage);
      pipeline.release();
    }
    if constexpr (c.decides())
      fast_steps_deciding(item, at, pipeline);
    else
      fast_steps(item, at, pipeline);
    store(item);
    if constexpr (c.decides())
      if (p.stats != nullptr) count(item);
  }

  /// What these rows know after a part of the keys.
  __device__ __forceinline__ void store_part(const Item& item) const {
#pragma unroll
    for (int r = 0; r < kTiles; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int in_tile = row + 16 * r + 8 * h, i = item.row_of_sequence(in_tile);
        float shift = 0;
        if constexpr (is_int8(c))
          shift = ptx::load_shared_float(shared + S::kRowShift + 4 * in_tile);
        if (i >= 0 && i < item.seqlen_q)
          tile::store_part_row(p, item, i, {m[r][h], l[r][h], shift}, o[r], h,
                               layout::quad_lane(lane));
      }
  }

  __device__ __forceinline__ void store(const Item& item) {
#pragma unroll
    for (int r = 0; r < kTiles; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        l[r][h] += __shfl_xor_sync(~0u, l[r][h], 1);
        l[r][h] += __shfl_xor_sync(~0u, l[r][h], 2);
      }
    if constexpr (may_split(c))
      if (p.parts > 1) return store_part(item);
    const std::uint32_t out = shared + S::kQueries;
    __syncwarp();
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
      float inverse[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float sum = l[r][h];
        inverse[h] = sum == 0 ? 0.0f : 1.0f / sum;
        const int in_tile = row + 16 * r + 8 * h;
        const int i = item.row_of_sequence(in_tile);
        if (p.lse != nullptr && layout::quad_lane(lane) == 0 && i >= 0 && i < item.seqlen_q) {
          float shift = 0;
          if constexpr (is_int8(c))
            shift = ptx::load_shared_float(shared + S::kRowShift + 4 * in_tile);
          p.lse[item.b * p.lse_batch + item.head * p.lse_head +
                (item.first_row_q + i) * p.lse_row] =
              sum == 0 ? -INFINITY : (m[r][h] + log2f(sum)) * kLn2 + shift;
        }
      }
#pragma unroll
      for (int i = 0; i < kOut; i += 2) {
        const int h = i / 2 % 2;
        ptx::store_shared(
            out + S::Out::offset(row + 16 * r + 8 * h, i / 4) + 4 * layout::quad_lane(lane),
            ptx::pack<c.dtype>(o[r][i] * inverse[h], o[r][i + 1] * inverse[h]));
      }
    }
    __syncwarp();
    constexpr int kRowChunks = c.head_dim / 8;
    auto* base = static_cast<unsigned short*>(p.o.data) + item.b * p.o.batch +
                 item.head * p.o.head + std::int64_t{item.first_row_q} * p.o.row;
#pragma unroll 4
    for (int at = lane; at < 16 * kTiles * kRowChunks; at += 32) {
      const int in_tile = 16 * kTiles * warp + at / kRowChunks, chunk = at % kRowChunks;
      const int i = item.row_of_sequence(in_tile);
      if (8 * chunk < p.head_dim_v && i >= 0 && i < item.seqlen_q)
        *reinterpret_cast<uint4*>(base + i * p.o.row + 8 * chunk) =
            ptx::load_shared_uint4(out + S::Out::offset(in_tile, chunk));
    }
  }

  /// Adds this item to the counts of AttentionStats, which start out zero.
  __device__ void count(const Item& item) const {
    unsigned long long pairs = 0;
    unsigned rows = 0;
    if (layout::quad_lane(lane) == 0)
      for (int i = 0; i < 2 * kTiles; ++i) {
        const int of = item.row_of_sequence(row + 8 * i);
        if (of < 0 || of >= item.seqlen_q) continue;
        const layout::KeyRange keys = live_keys(item, i / 2, i % 2);
        if (item.part == 0) pairs += static_cast<unsigned long long>(keys.end - keys.begin);
        ++rows;
      }
    for (int distance = 16; distance > 0; distance /= 2) {
      pairs += __shfl_xor_sync(~0u, pairs, distance);
      rows += __shfl_xor_sync(~0u, rows, distance);
    }
    if (lane != 0) return;
    const bool prunes = kPairs || is_nm24(c) || c.drop;
    const unsigned long long blocks = prunes ? walk->fast_blocks() : 0;
    atomicAdd(p.stats + 4, pairs);
    atomicAdd(p.stats + 3, blocks * c.block * rows);
    // A unit counts once, and not at all when none of its rows exists.
    const int unit = warp / c.warps_of_unit();
    if (warp % c.warps_of_unit() != 0 || !any_exists(item, 64 * unit, 64)) return;
    atomicAdd(p.stats + 0, 2 * blocks);
    if (c.refine) atomicAdd(p.stats + 1, static_cast<unsigned long long>(refined));
    if (c.drop) atomicAdd(p.stats + 2, static_cast<unsigned long long>(dropped));
  }
};

}  // namespace twofour::cuda::sm80
