// One consumer warpgroup over the key blocks of its 64 rows: plain steps, then fast ones.
#pragma once

#include "cuda/sm90/query.h"
#include "cuda/sm90/softmax.h"
#include "cuda/sm90/trace.h"
#include "cuda/tile/parts.h"

namespace twofour::cuda::sm90 {

template <Config c>
struct RowBlock : Softmax<c> {
  using Base = Softmax<c>;
  using Softmax<c>::Softmax;
  using Base::factor;
  using Base::kKept;
  using Base::kOut;
  using Base::kPairs;
  using Base::kScores;
  using Base::kStepsPerBlock;
  using Base::l;
  using Base::lane;
  using Base::m;
  using Base::memory;
  using Base::o;
  using Base::p;
  using Base::shared;
  using Base::warp;
  using Base::warpgroup;
  using typename Base::S;
  using typename Base::Score;

  static constexpr int kPart = c.plain_part();
  static constexpr int kPartScores = kPart / 2;
  static constexpr int kParts = c.tile / kPart;

  int row;               // of the row block: row g of this thread
  float seen[2];         // of units that decide: the largest score before, log2 units
  int refined, dropped;  // units of this item

  // ---- plain ------------------------------------------------------------------------------------

  /// Values of keys that no row of the row block sees must not matter, and 0 * NaN would.
  __device__ __forceinline__ void clear_dead_values(const Item& item, StepKeys key) {
    if (key.first >= item.live_begin && key.first + c.tile <= item.live_end) return;
    constexpr int kChunks = c.head_dim / 8;
    const std::uint32_t at = shared + S::kValues + this->value_ring.stage * S::Value::kTileBytes;
    for (int i = threadIdx.x % (128 * kWarpgroups); i < c.tile * kChunks; i += 128 * kWarpgroups) {
      const int r = i / kChunks;
      if (key.first + r >= item.live_begin && key.first + r < item.live_end) continue;
      ptx::store_shared(at + S::Value::offset({r, 8 * (i % kChunks)}), make_uint4(0, 0, 0, 0));
    }
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(kBarrierConsumers, 128 * kWarpgroups);
  }

  /// Keys that the rows g and g + 8 of this thread see.
  struct LiveKeys {
    int begin[2], end[2];
  };
  __device__ __forceinline__ layout::KeyRange live_keys(const Item& item, int h) const {
    return schedule_shape(p, c.block, item.seqlen_k).live_keys(item.position_of(row + 8 * h));
  }

  /// Scores of kPart keys from `first_key` on in log2 units, dead ones -inf; `kRelative`: less the
  /// reference of their row. Most of a sink or a local block is wholly live.
  template <bool kRelative>
  __device__ __forceinline__ void masked(float (&x)[kPartScores], const Score (&s)[kPartScores],
                                         const float (&f)[2], const Item& item,
                                         const LiveKeys& live, int first_key) {
    const float minus[2] = {-this->reference(0), -this->reference(1)};
    const auto scaled = [&](int i) {
      const int h = i / 2 % 2;
      return kRelative ? fmaf(this->raw(s[i]), f[h], minus[h]) : this->raw(s[i]) * f[h];
    };
    const bool whole = live.begin[0] <= first_key && live.begin[1] <= first_key &&
                       live.end[0] >= first_key + kPart && live.end[1] >= first_key + kPart;
    if (!c.trace && __all_sync(~0u, whole)) {
#pragma unroll
      for (int i = 0; i < kPartScores; ++i) x[i] = scaled(i);
      return;
    }
    const int first = first_key + layout::quad_lane(lane) * 2;
    const int begin[2] = {live.begin[0] - first, live.begin[1] - first};
    const int end[2] = {live.end[0] - first, live.end[1] - first};
#pragma unroll
    for (int i = 0; i < kPartScores; ++i) {
      const int h = i / 2 % 2, j = i / 4 * 8 + i % 2;
      x[i] = j >= begin[h] && j < end[h] ? scaled(i) : -INFINITY;
      if constexpr (c.trace)
        if (j >= begin[h] && j < end[h]) Trace<c>{p, item, row, lane}.keep_plain(i, first_key);
    }
  }

  /// True when no row of this warpgroup sees a key of the step.
  __device__ __forceinline__ bool is_dead(const Item& item, StepKeys key) const {
    const layout::ScheduleShape shape = schedule_shape(p, c.block, item.seqlen_k);
    const int lowest = item.position_of(64 * warpgroup);
    return key.first >= shape.live_keys(lowest + 63).end ||
           key.first + c.tile <= shape.live_keys(lowest).begin;
  }

  /// Where a warpgroup is in the plain steps of an item: those with a live key for some row of the
  /// row block, a part of kPart keys at a time.
  struct PlainPart {
    StepKeys key;
    int first = 0;  // row of the stage
    int block, i = 0, half = -1;

    __device__ bool is_last() const { return first == c.tile - kPart; }
  };
  /// Moves to the next step; false when there is none.
  __device__ __forceinline__ bool next_plain(PlainPart& at, const Item& item) const {
    at.first = 0;
    do {
      if (++at.half == kStepsPerBlock) {
        at.half = 0;
        ++at.i;
      }
      if (at.i == item.plain_blocks()) return false;
      at.block = item.plain_block(at.i);
      at.key = plain_step(c, at.block, at.half);
    } while (!is_live(c, item, at.key));
    return true;
  }
  /// To the next part; false when this warpgroup sees no more keys. Its live keys are one range.
  __device__ __forceinline__ bool next_part(PlainPart& at, const Item& item, bool& left) const {
    at.first += kPart;
    if (at.first < c.tile) return true;
    left = next_plain(at, item);
    return left && !is_dead(item, at.key);
  }

  /// A step that no row of this warpgroup sees; it takes its turns.
  __device__ __forceinline__ void skip_plain(const Item& item, StepKeys key) {
    for (int first = 0; first < c.tile; first += kPart) {
      this->await_turn();
      this->pass_turn();
    }
    this->wait_key();
    // A stage that nobody reads: without products, nothing else keeps the warps together.
    ptx::named_barrier_sync(kBarrierWarpgroup + warpgroup, 128);
    this->release_key();
    this->wait_value();
    clear_dead_values(item, key);
    ptx::named_barrier_sync(kBarrierWarpgroup + warpgroup, 128);
    this->release_value();
  }

  /// Scores of a part to probabilities. As in fast(), they are computed before it is known whether
  /// a row has outgrown its reference; what is in flight is waited for before O moves.
  __device__ __forceinline__ void soften(float (&x)[kPartScores], const Score (&s)[kPartScores],
                                         const Item& item, const LiveKeys& live,
                                         const PlainPart& at, float (&sum)[2]) {
    float f[2];
    this->key_factor(f, item, at.block);
    const int first_key = at.key.first + at.first;
    if constexpr (!c.decides()) {
      this->template masked<true>(x, s, f, item, live, first_key);
      this->exponentials(x, sum);
      if (!__any_sync(~0u, m[0] == -INFINITY || m[1] == -INFINITY || this->outgrown(sum))) return;
    }
    float largest[2] = {-INFINITY, -INFINITY};
    this->template masked<false>(x, s, f, item, live, first_key);
#pragma unroll
    for (int i = 0; i < kPartScores; ++i)
      largest[i / 2 % 2] = ptx::max_nan(largest[i / 2 % 2], x[i]);
    for (int h = 0; h < 2; ++h) {
      largest[h] = this->quad_max(largest[h]);
      if constexpr (c.decides()) seen[h] = ptx::max_nan(seen[h], largest[h]);
    }
    if (__any_sync(~0u, !(largest[0] < m[0]) || !(largest[1] < m[1]))) {
      ptx::wgmma_wait<0>();
      for (int h = 0; h < 2; ++h)
        if (!(largest[h] < m[h]))
          this->move_reference(h, largest[h] == -INFINITY ? m[h] : floorf(largest[h]) + 1);
    }
#pragma unroll
    for (int i = 0; i < kPartScores; ++i) x[i] -= this->reference(i / 2 % 2);
    this->exponentials(x, sum);
  }

  __device__ __forceinline__ void wait_plain_values(const Item& item, const PlainPart& at) {
    if (kParts > 1 && at.first > 0) return;  // they were there for the part before
    this->wait_value();
    clear_dead_values(item, at.key);
  }

  static __device__ __forceinline__ const Score (&part_of(const Score (&s)[kScores],
                                                          int part))[kPartScores] {
    return reinterpret_cast<const Score(&)[kPartScores]>(s[kPartScores * part]);
  }
  /// A part becomes the next operand.
  __device__ __forceinline__ void take(std::uint32_t (&prob)[kPartScores / 2],
                                       const float (&x)[kPartScores], const float (&sum)[2]) {
    this->pack(prob, x);
    for (int h = 0; h < 2; ++h) l[h] += sum[h];
  }

  /// In flight together, as in fast(): the scores of a part and the values of the one before.
  __device__ __forceinline__ void plain(const Item& item) {
    LiveKeys live;
    for (int h = 0; h < 2; ++h) {
      const layout::KeyRange keys = live_keys(item, h);
      live.begin[h] = static_cast<int>(keys.begin);
      live.end[h] = static_cast<int>(keys.end);
    }
    PlainPart at;
    bool left = next_plain(at, item);
    for (; left && is_dead(item, at.key); left = next_plain(at, item)) skip_plain(item, at.key);
    while (left && !is_dead(item, at.key)) {
      float x[kPartScores], sum[2];
      std::uint32_t prob[kPartScores / 2];
      PlainPart before = at;
      Score s[kPartScores];
      this->wait_key();
      this->await_turn();
      if constexpr (kParts == 1) {
        this->issue_full_scores(s);
        this->pass_turn();
        ptx::wgmma_wait<0>();
        this->release_key();
        soften(x, s, item, live, at, sum);
      } else {
        // The first step at once: ptxas serialises the products of fast(), "insufficient register
        // resources", unless an earlier one has as many columns.
        Score all[kScores];
        this->issue_full_scores(all);
        this->pass_turn();
        ptx::wgmma_wait<0>();
        this->release_key();
        soften(x, part_of(all, 0), item, live, at, sum);
#pragma unroll
        for (int part = 1; part < kParts; ++part) {
          take(prob, x, sum);
          wait_plain_values(item, before);
          this->await_turn();
          this->template issue_dense_values<kPart>(prob, before.first);
          ptx::wgmma_commit();
          this->pass_turn();
          at.first += kPart;
          soften(x, part_of(all, part), item, live, at, sum);
          ptx::wgmma_wait<0>();
          before = at;
        }
      }
      if constexpr (c.plain_ahead()) {
#pragma unroll 1
        while (next_part(at, item, left)) {
          take(prob, x, sum);
          if (at.first == 0) this->wait_key();
          wait_plain_values(item, before);
          this->await_turn();
          this->template issue_full_scores<kPart>(s, at.first);
          this->template issue_dense_values<kPart>(prob, before.first);
          ptx::wgmma_commit();
          this->pass_turn();
          ptx::wgmma_wait<1>();
          if (at.is_last()) this->release_key();
          soften(x, s, item, live, at, sum);
          ptx::wgmma_wait<0>();
          if (before.is_last()) this->release_value();
          before = at;
        }
      } else {
        left = next_plain(at, item);
      }
      take(prob, x, sum);
      wait_plain_values(item, before);
      this->template issue_dense_values<kPart>(prob, before.first);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      this->release_value();
    }
    for (; left; left = next_plain(at, item)) skip_plain(item, at.key);
  }

  // ---- fast -------------------------------------------------------------------------------------

  __device__ __forceinline__ void trace_fast(const Item& item, int step, layout::WordPair own,
                                             UnitDecision decision) const {
    if constexpr (c.trace) {
      const int block = item.fast_block(step / kStepsPerBlock), half = step % kStepsPerBlock;
      const Trace<c> trace{p, item, row, lane};
      if (decision != UnitDecision::kDropped) trace.keep_fast(fast_step(c, block, half), own);
      if constexpr (kPairs) trace.decide(block, half, decision);
    }
  }

  /// A pruned step becomes the next operand. The values before it have been multiplied.
  __device__ __forceinline__ void take(Probabilities<c>& prob, layout::WordPair words,
                                       std::uint32_t received, const float (&x)[kKept],
                                       const float (&sum)[2]) {
    this->finish_metadata(prob.metadata, words, received);
    this->pack(prob.packed, x);
    for (int h = 0; h < 2; ++h) l[h] += sum[h];
  }

  /// Scores in S to probabilities in x with a new reference. Nothing may be in flight.
  __device__ __forceinline__ void restart(float (&x)[kKept], const Score (&s)[kScores],
                                          const float (&f)[2], float (&sum)[2]) {
    this->exponents(x, s, f);
    this->raise_reference(x);
    this->exponentials(x, sum);
  }

  /// In flight together: the scores of a step and the values of the one before, whose pruning and
  /// exponentials overlap with other warpgroups' products.
  __device__ __forceinline__ void fast(const Item& item) {
    const int steps = item.fast_blocks() * kStepsPerBlock;
    if (steps == 0) return;
    Score s[kScores];
    float x[kKept], f[2], sum[2];
    Probabilities<c> prob;
    std::uint32_t received = 0;
    layout::WordPair own{};
    this->wait_key();
    this->issue_pruned_scores(s);
    this->key_factor(f, item, item.fast_block(0));
    ptx::wgmma_wait<0>();
    this->release_key();
    layout::WordPair words = this->prune(s, received, own);
    trace_fast(item, 0, own, UnitDecision::kPruned);
    restart(x, s, f, sum);
#pragma unroll 1
    for (int step = 1; step < steps; ++step) {
      take(prob, words, received, x, sum);
      this->wait_key();
      this->await_turn();
      this->issue_pruned_scores(s);
      this->wait_value();
      this->issue_values(prob);
      this->pass_turn();
      if constexpr (is_int8(c)) this->key_factor(f, item, item.fast_block(step / kStepsPerBlock));
      ptx::wgmma_wait<1>();
      this->release_key();
      words = this->prune(s, received, own);
      trace_fast(item, step, own, UnitDecision::kPruned);
      this->exponents(x, s, f);
      this->exponentials(x, sum);
      // The branch also keeps all this before the wait: the compiler would move it behind.
      if (__any_sync(~0u, this->outgrown(sum))) {
        ptx::wgmma_wait<0>();
        restart(x, s, f, sum);
      }
      ptx::wgmma_wait<0>();
      this->release_value();
    }
    take(prob, words, received, x, sum);
    this->wait_value();
    this->issue_values(prob);
    ptx::wgmma_wait<0>();
    this->release_value();
  }

  // ---- units that decide ------------------------------------------------------------------------

  /// True when some existing row of the unit has reached its running maximum less `nats`; NaN has.
  __device__ __forceinline__ bool reaches(const bool (&exists)[2], const float (&largest)[2],
                                          float log2_units) const {
    bool any = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) any |= exists[h] && !(largest[h] < seen[h] - log2_units);
    return ptx::named_barrier_any(kBarrierWarpgroup + warpgroup, 128, any);
  }

  /// Prunes S: the largest kept score of each row, and probabilities by the reference there is.
  __device__ __forceinline__ layout::WordPair estimate(float (&x)[kKept], Score (&s)[kScores],
                                                       const float (&f)[2], float (&largest)[2],
                                                       float (&sum)[2], std::uint32_t& received,
                                                       layout::WordPair& own) {
    const layout::WordPair words = this->prune(s, received, own);
    this->row_maxima(largest, s, f);
    this->exponents(x, s, f);
    this->exponentials(x, sum);
    return words;
  }

  /// Units in order (docs/semantics.md, rules 6 to 8): each is dropped, or refined or not and then
  /// pruned. In flight together as in fast(); a dropped unit leaves no values to multiply.
  __device__ __forceinline__ void deciding(const Item& item) {
    const int steps = item.fast_blocks() * kStepsPerBlock;
    bool exists[2];
    for (int h = 0; h < 2; ++h) {
      const int i = item.position_of(row + 8 * h) - item.position;
      exists[h] = i >= 0 && i < item.seqlen_q;
    }
    Score s[kScores];
    float x[kKept], f[2], largest[2], sum[2];
    Probabilities<c> prob;
    std::uint32_t received = 0;
    layout::WordPair own{};
    bool pending = false;  // values of the unit before
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      this->wait_key();
      this->await_turn();
      this->issue_pruned_scores(s);
      if (pending) {
        this->wait_value();
        this->issue_values(prob, false);
      }
      ptx::wgmma_commit();  // an empty group when nothing was pending
      this->pass_turn();
      this->key_factor(f, item, item.fast_block(step / kStepsPerBlock));
      ptx::wgmma_wait<1>();
      layout::WordPair words = estimate(x, s, f, largest, sum, received, own);
      // Probabilities come before the decision, which waits for other warps.
      const bool drop = c.drop && !reaches(exists, largest, p.drop_log2);
      UnitDecision decision = drop ? UnitDecision::kDropped : UnitDecision::kPruned;
      if (c.refine && !drop && reaches(exists, largest, p.refine_log2)) {
        decision = UnitDecision::kRefined;
        ++refined;
        this->issue_full_scores(s);
        ptx::wgmma_wait<0>();
        words = estimate(x, s, f, largest, sum, received, own);
      }
      this->release_key();
      trace_fast(item, step, own, decision);
      for (int h = 0; h < 2; ++h) seen[h] = ptx::max_nan(seen[h], largest[h]);
      if (!drop && __any_sync(~0u, m[0] == -INFINITY || m[1] == -INFINITY || this->outgrown(sum))) {
        ptx::wgmma_wait<0>();
        restart(x, s, f, sum);
      }
      ptx::wgmma_wait<0>();
      if (pending) this->release_value();
      pending = !drop;
      if (drop) {
        ++dropped;
        this->wait_value();
        ptx::named_barrier_sync(kBarrierWarpgroup + warpgroup, 128);
        this->release_value();
        continue;
      }
      take(prob, words, received, x, sum);
    }
    if (pending) {
      this->wait_value();
      this->issue_values(prob);
      ptx::wgmma_wait<0>();
      this->release_value();
    }
  }

  // ---- one item ---------------------------------------------------------------------------------

  __device__ __forceinline__ void run(const Item& item) {
    QueryLoader<c>{p, item, memory, shared, warpgroup, warp, lane}.run();
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(kBarrierWarpgroup + warpgroup, 128);
    row = 64 * warpgroup + 16 * warp + layout::group_of(lane);
    if constexpr (is_nm24(c))
      load_query_metadata<c>(this->query_metadata, memory, warpgroup, warp, lane);
    refined = dropped = 0;
    for (int h = 0; h < 2; ++h) {
      m[h] = seen[h] = -INFINITY;
      l[h] = 0;
      factor[h] = p.scale_log2;
      if constexpr (is_int8(c))
        factor[h] *= reinterpret_cast<const float*>(memory + S::kRowScale)[row + 8 * h];
    }
#pragma unroll
    for (int i = 0; i < kOut; ++i) o[i] = 0;

    plain(item);
    if constexpr (c.decides())
      deciding(item);
    else
      fast(item);
    store(item);
    if (p.stats != nullptr) count(item);
  }

  /// What these rows know after a part of the keys.
  __device__ __forceinline__ void store_part(const Item& item) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = l[h];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      float shift = 0;
      if constexpr (is_int8(c))
        shift = reinterpret_cast<const float*>(memory + S::kRowShift)[row + 8 * h];
      const int i = item.position_of(row + 8 * h) - item.position;
      if (i >= 0 && i < item.seqlen_q)
        tile::store_part_row(p, item, i, {m[h], sum, shift}, o, h, layout::quad_lane(lane));
    }
  }

  __device__ __forceinline__ void store(const Item& item) {
    if constexpr (may_split(c))
      if (p.parts > 1) return store_part(item);
    const std::uint32_t out = shared + S::out_at(warpgroup);
    float inverse[2];
    for (int h = 0; h < 2; ++h) {
      l[h] += __shfl_xor_sync(~0u, l[h], 1);
      l[h] += __shfl_xor_sync(~0u, l[h], 2);
      inverse[h] = l[h] == 0 ? 0.0f : 1.0f / l[h];
      const int i = item.position_of(row + 8 * h) - item.position;
      if (p.lse != nullptr && layout::quad_lane(lane) == 0 && i >= 0 && i < item.seqlen_q) {
        float shift = 0;
        if constexpr (is_int8(c))
          shift = reinterpret_cast<const float*>(memory + S::kRowShift)[row + 8 * h];
        p.lse[item.b * p.lse_batch + item.head * p.lse_head + (item.first_row_q + i) * p.lse_row] =
            l[h] == 0 ? -INFINITY : (m[h] + log2f(l[h])) * kLn2 + shift;
      }
    }
#pragma unroll
    for (int i = 0; i < kOut; i += 2) {
      const int h = i / 2 % 2;
      const std::uint32_t packed = ptx::pack<c.dtype>(o[i] * inverse[h], o[i + 1] * inverse[h]);
      const layout::Coord at{16 * warp + layout::group_of(lane) + 8 * h,
                             i / 4 * 8 + 2 * layout::quad_lane(lane)};
      ptx::store_shared(out + S::Out::offset(at), packed);
    }
    __syncwarp();
    constexpr int kChunks = c.head_dim / 8;
    const int chunk = lane % kChunks;
    const int first = item.position_of(64 * warpgroup + 16 * warp) - item.position;
    auto* base = static_cast<unsigned short*>(p.o.data) + item.b * p.o.batch +
                 item.head * p.o.head + std::int64_t{item.first_row_q} * p.o.row + 8 * chunk;
#pragma unroll
    for (int pass = 0; pass < kChunks / 2; ++pass) {
      const int r = pass * (32 / kChunks) + lane / kChunks;
      const int i = first + r;
      if (8 * chunk < p.head_dim_v && i >= 0 && i < item.seqlen_q)
        *reinterpret_cast<uint4*>(base + i * p.o.row) =
            ptx::load_shared_uint4(out + S::Out::offset({16 * warp + r, 8 * chunk}));
    }
    __syncwarp();
  }

  /// Adds this item to the counts of AttentionStats, which start out zero.
  __device__ void count(const Item& item) const {
    unsigned live = 0, rows = 0;
    if (layout::quad_lane(lane) == 0)
      for (int h = 0; h < 2; ++h) {
        const int i = item.position_of(row + 8 * h) - item.position;
        if (i < 0 || i >= item.seqlen_q) continue;
        const layout::KeyRange keys = live_keys(item, h);
        if (item.part == 0) live += static_cast<unsigned>(keys.end - keys.begin);
        ++rows;
      }
    unsigned long long pairs = live;
    for (int distance = 16; distance > 0; distance /= 2) {
      pairs += __shfl_xor_sync(~0u, pairs, distance);
      rows += __shfl_xor_sync(~0u, rows, distance);
    }
    if (lane != 0) return;
    const bool prunes = kPairs || is_nm24(c) || c.drop;
    const unsigned long long blocks = prunes ? item.fast_blocks() : 0;
    atomicAdd(p.stats + 4, pairs);
    atomicAdd(p.stats + 3, blocks * c.block * rows);
    // A unit counts once, and not at all when none of its rows exists.
    const int first = item.position_of(64 * warpgroup) - item.position;
    if (warp != 0 || first + 63 < 0 || first >= item.seqlen_q) return;
    atomicAdd(p.stats + 0, 2 * blocks);
    if (c.refine) atomicAdd(p.stats + 1, static_cast<unsigned long long>(refined));
    if (c.drop) atomicAdd(p.stats + 2, static_cast<unsigned long long>(dropped));
  }
};

}  // namespace twofour::cuda::sm90
