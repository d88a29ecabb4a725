// Fused attention on wgmma and wgmma.sp: one persistent CTA per multiprocessor, one warpgroup that
// feeds shared memory by TMA, three that compute 64 query rows each.
//
// Two bodies over the same operands. `plain` steps mask element by element and find row maxima;
// `fast` steps serve fully live blocks: no mask, pairs pruned in the accumulator, and instead of a
// row maximum a test that no probability has grown beyond the reference. The reference m of a row
// is an integer in log2 units, so that rescaling is exact. docs/kernels/sm90.md has the budget.
#pragma once

#include "cuda/ptx/wgmma.h"
#include "cuda/sm90/producer.h"
#include "cuda/sm90/query.h"
#include "cuda/tile/pair_prune.h"

namespace twofour::cuda::sm90 {

inline constexpr int kConsumerRegisters = 160;
inline constexpr int kProducerRegisters = 32;
inline constexpr float kLn2 = 0.693147180559945309f;

// Named barriers: 0 is __syncthreads.
constexpr int kBarrierConsumers = 1;
constexpr int kBarrierWarpgroup = 2;  // and the two after it

template <Config c>
struct Consumer {
  using S = Shared<c>;
  using Tile = layout::PairTile<c.tile>;
  using Score = std::conditional_t<is_int8(c), std::int32_t, float>;
  static constexpr int kScores = c.tile / 2;
  static constexpr int kOut = c.head_dim / 2;
  static constexpr bool kPairs = c.score == ScorePattern::kPair;
  static constexpr int kKept = kPairs ? kScores / 2 : kScores;  // probabilities of a thread
  static constexpr int kStepsPerBlock = c.block / c.tile;

  const Params& p;
  unsigned char* memory;  // shared, generic
  std::uint32_t shared;   // shared, window address
  int warpgroup, warp, lane;

  Ring<c.stages> key_ring, value_ring;

  float o[kOut];
  float m[2], l[2];  // rows g and g + 8: reference (log2 units), sum of this thread
  float factor[2];   // from raw score to log2 units; int8: times the key block's scale
  std::uint32_t query_metadata[c.head_dim / 64];

  __device__ Consumer(const Params& params, unsigned char* smem, std::uint32_t smem_address, int wg,
                      int thread)
      : p(params),
        memory(smem),
        shared(smem_address),
        warpgroup(wg),
        warp(thread / 32),
        lane(thread % 32) {}

  // ---- products
  // ----------------------------------------------------------------------------------

  // Descriptors differ in their start address alone, so one register gives them all.
  template <class Tile_, int kStep, bool kTransposed = false>
  __device__ __forceinline__ std::uint64_t descriptor(std::uint32_t at,
                                                      layout::Swizzle swizzle) const {
    constexpr auto make = [](layout::Swizzle z) {
      if constexpr (kTransposed)
        return layout::mn_major_descriptor<Tile_, kStep>(0, 0, z).encode();
      else
        return layout::k_major_descriptor<Tile_, kStep>(0, 0, z).encode();
    };
    return make(swizzle) + ((shared + at) >> 4);
  }
  __device__ __forceinline__ std::uint64_t query_descriptor() const {
    return descriptor<typename S::Query, 256 / S::kQueryBits>(
        S::kQueries + warpgroup * S::Query::kTileBytes, S::kSwizzle);
  }
  __device__ __forceinline__ std::uint64_t pruned_descriptor() const {
    return descriptor<typename S::PrunedQuery, 16>(
        S::kPruned + warpgroup * S::PrunedQuery::kTileBytes, S::kPrunedSwizzle);
  }
  __device__ __forceinline__ std::uint64_t key_descriptor() const {
    return descriptor<typename S::Key, 256 / S::kQueryBits>(
        S::kKeys + key_ring.stage * S::Key::kTileBytes, S::kSwizzle);
  }
  __device__ __forceinline__ std::uint64_t value_descriptor() const {
    return descriptor<typename S::Value, 16, true>(
        S::kValues + value_ring.stage * S::Value::kTileBytes, layout::Swizzle::k128B);
  }

  /// S = Q K' with all of q, of the key stage the ring is at.
  __device__ __forceinline__ void issue_full_scores(Score (&s)[kScores]) {
    const std::uint64_t k = key_descriptor();
    const std::uint64_t query = query_descriptor();
    constexpr int kStep = 256 / S::kQueryBits;  // channels of a product: 32 bytes
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < c.head_dim / kStep; ++step) {
      const int byte = 32 * step;
      const int at_q =
          byte / S::Query::kRowBytes * S::Query::kPanelBytes + byte % S::Query::kRowBytes;
      const int at_k = byte / S::Key::kRowBytes * S::Key::kPanelBytes + byte % S::Key::kRowBytes;
      ptx::WgmmaShared<is_int8(c) ? DType::kI8 : c.dtype, c.tile>::run(s, query + at_q / 16,
                                                                       k + at_k / 16, step > 0);
    }
    ptx::wgmma_commit();
  }

  /// S = Q K' with the kept half of q.
  __device__ __forceinline__ void issue_pruned_scores(Score (&s)[kScores]) {
    if constexpr (!is_nm24(c)) {
      issue_full_scores(s);
    } else {
      const std::uint64_t k = key_descriptor();
      const std::uint64_t query = pruned_descriptor();
      ptx::wgmma_fence();
      sparse_scores(s, query, k, std::make_integer_sequence<int, c.head_dim / 32>());
      ptx::wgmma_commit();
    }
  }
  template <int... kStep>
  __device__ __forceinline__ void sparse_scores(Score (&s)[kScores], std::uint64_t query,
                                                std::uint64_t k,
                                                std::integer_sequence<int, kStep...>) {
    (ptx::WgmmaSparseShared<c.dtype, c.tile>::template run<kStep % 2>(
         s, query + 32 * kStep / 16, k + (kStep / 2 * S::Key::kPanelBytes + kStep % 2 * 64) / 16,
         query_metadata[kStep / 2], kStep > 0),
     ...);
  }

  /// O += P V, P dense over the keys of the step in their order.
  __device__ __forceinline__ void issue_dense_values(const std::uint32_t (&prob)[kScores / 2]) {
    const std::uint64_t v = value_descriptor();
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < c.tile / 16; ++step)
      ptx::WgmmaRegisters<c.dtype, c.head_dim>::run(o, prob + 4 * step,
                                                    v + step * 16 * S::Value::kRowBytes / 16, true);
    ptx::wgmma_commit();
  }

  /// O += P V, P the kept half, V in pair order.
  __device__ __forceinline__ void issue_sparse_values(const std::uint32_t (&prob)[kScores / 4],
                                                      const layout::WordPair& metadata) {
    const std::uint64_t v = value_descriptor();
    ptx::wgmma_fence();
    sparse_values(prob, metadata, v, std::make_integer_sequence<int, Tile::kSteps>());
    ptx::wgmma_commit();
  }
  template <int... kStep>
  __device__ __forceinline__ void sparse_values(const std::uint32_t (&prob)[kScores / 4],
                                                const layout::WordPair& metadata, std::uint64_t v,
                                                std::integer_sequence<int, kStep...>) {
    (ptx::WgmmaSparseRegisters<c.dtype, c.head_dim>::template run<Tile::selector_of_step(kStep)>(
         o, prob + 4 * kStep, v + kStep * 32 * S::Value::kRowBytes / 16,
         Tile::word_of_step(kStep) == 0 ? metadata.lo : metadata.hi),
     ...);
  }

  // ---- stages
  // ------------------------------------------------------------------------------------

  __device__ __forceinline__ void wait_key() {
    ptx::mbarrier_wait(shared + S::key_full(key_ring.stage), key_ring.parity);
  }
  __device__ __forceinline__ void release_key() {
    if (warp == 0 && lane == 0) ptx::mbarrier_arrive(shared + S::key_empty(key_ring.stage));
    key_ring.next();
  }
  __device__ __forceinline__ void wait_value() {
    ptx::mbarrier_wait(shared + S::value_full(value_ring.stage), value_ring.parity);
  }
  __device__ __forceinline__ void release_value() {
    if (warp == 0 && lane == 0) ptx::mbarrier_arrive(shared + S::value_empty(value_ring.stage));
    value_ring.next();
  }

  // ---- softmax
  // -----------------------------------------------------------------------------------

  __device__ __forceinline__ float raw(Score score) const {
    if constexpr (is_int8(c))
      // Exact for |score| < 2^22; 127 * 127 * 128 is less than that.
      return __int_as_float(0x4B400000 + score) - 12582912.0f;
    else
      return score;
  }

  /// Multiplies the row by 2^(old m - new m).
  __device__ __forceinline__ void move_reference(int row, float reference) {
    const float shift = reference == -INFINITY ? 0.0f : ptx::ex2(m[row] - reference);
    m[row] = reference;
    l[row] *= shift;
#pragma unroll
    for (int i = 0; i < kOut; i += 4) {
      o[i + 2 * row] *= shift;
      o[i + 2 * row + 1] *= shift;
    }
  }

  static __device__ __forceinline__ float quad_max(float x) {
    x = ptx::max_nan(x, __shfl_xor_sync(~0u, x, 1));
    return ptx::max_nan(x, __shfl_xor_sync(~0u, x, 2));
  }

  /// 2^(score * factor - m) of kCount scores, packed for the next product and summed.
  /// Scores beyond the reference give probabilities of 2 and more, up to infinity.
  template <int kCount>
  __device__ __forceinline__ void exponentials(std::uint32_t (&prob)[kCount / 2], float (&sum)[2],
                                               const Score (&s)[kScores], const float (&f)[2]) {
    sum[0] = sum[1] = 0;
    const float reference[2] = {m[0] == -INFINITY ? 0.0f : m[0], m[1] == -INFINITY ? 0.0f : m[1]};
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const int row = i / 2 % 2;
      const float low = ptx::ex2(fmaf(raw(s[i]), f[row], -reference[row]));
      const float high = ptx::ex2(fmaf(raw(s[i + 1]), f[row], -reference[row]));
      sum[row] += low + high;
      prob[i / 2] = ptx::pack<c.dtype>(low, high);
    }
  }

  /// True when some packed probability is 2 or more, or NaN: bit 14 is the top exponent bit of
  /// fp16 and bf16 alike.
  template <int kCount>
  static __device__ __forceinline__ bool any_beyond(const std::uint32_t (&prob)[kCount]) {
    std::uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) bits |= prob[i];
    return (bits & 0x40004000u) != 0;
  }

  /// The largest of the first kCount scores of each row, over the quad, in log2 units.
  template <int kCount>
  __device__ __forceinline__ void row_maxima(float (&largest)[2], const Score (&s)[kScores],
                                             const float (&f)[2]) {
    largest[0] = largest[1] = -INFINITY;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      largest[i / 2 % 2] = ptx::max_nan(largest[i / 2 % 2], raw(s[i]));
    for (int row = 0; row < 2; ++row) largest[row] = quad_max(largest[row]) * f[row];
  }

  /// A new reference above every score of the rows that have outgrown theirs.
  template <int kCount>
  __device__ __forceinline__ void raise_reference(const Score (&s)[kScores], const float (&f)[2]) {
    float largest[2];
    row_maxima<kCount>(largest, s, f);
    for (int row = 0; row < 2; ++row)
      if (!(largest[row] < m[row])) move_reference(row, floorf(largest[row]) + 1);
  }

  // ---- bodies
  // ------------------------------------------------------------------------------------

  __device__ __forceinline__ void key_factor(float (&f)[2], const Item& item, int block) const {
    f[0] = factor[0];
    f[1] = factor[1];
    if constexpr (is_int8(c)) {
      const float scale =
          __ldg(p.key_scale + item.kv_head * p.total_key_blocks + item.first_key_block + block);
      f[0] *= scale;
      f[1] *= scale;
    }
  }

  /// Values of keys that no row of the row block sees must not matter, and 0 * NaN would.
  __device__ __forceinline__ void clear_dead_values(const Item& item, StepKeys key) {
    if (key.first >= item.live_begin && key.first + c.tile <= item.live_end) return;
    constexpr int kChunks = c.head_dim / 8;
    const std::uint32_t at = shared + S::kValues + value_ring.stage * S::Value::kTileBytes;
    for (int i = threadIdx.x % (128 * kWarpgroups); i < c.tile * kChunks; i += 128 * kWarpgroups) {
      const int row = i / kChunks;
      if (key.first + row >= item.live_begin && key.first + row < item.live_end) continue;
      store_shared(at + S::Value::offset({row, 8 * (i % kChunks)}), make_uint4(0, 0, 0, 0));
    }
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(kBarrierConsumers, 128 * kWarpgroups);
  }

  /// `query_row` of the row block is row g of this thread.
  __device__ __forceinline__ void plain_step(const Item& item, int block, StepKeys key,
                                             int query_row) {
    wait_key();
    Score s[kScores];
    issue_full_scores(s);
    float f[2];
    key_factor(f, item, block);
    ptx::wgmma_wait<0>();
    release_key();

    int live_begin[2], live_end[2];
    const layout::ScheduleShape shape = schedule_shape(p, c, item.seqlen_k);
    for (int h = 0; h < 2; ++h) {
      const layout::KeyRange live = shape.live_keys(item.position_of(query_row + 8 * h));
      live_begin[h] = static_cast<int>(live.begin);
      live_end[h] = static_cast<int>(live.end);
    }
    float x[kScores];
    float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int row = i / 2 % 2;
      const int j = key.first + i / 4 * 8 + layout::quad_lane(lane) * 2 + i % 2;
      x[i] = j >= live_begin[row] && j < live_end[row] ? raw(s[i]) * f[row] : -INFINITY;
      largest[row] = ptx::max_nan(largest[row], x[i]);
    }
    for (int row = 0; row < 2; ++row) {
      const float top = quad_max(largest[row]);
      if (!(top < m[row])) move_reference(row, top == -INFINITY ? m[row] : floorf(top) + 1);
    }
    const float reference[2] = {m[0] == -INFINITY ? 0.0f : m[0], m[1] == -INFINITY ? 0.0f : m[1]};
    std::uint32_t prob[kScores / 2];
#pragma unroll
    for (int i = 0; i < kScores; i += 2) {
      const int row = i / 2 % 2;
      const float low = ptx::ex2(x[i] - reference[row]);
      const float high = ptx::ex2(x[i + 1] - reference[row]);
      l[row] += low + high;
      prob[i / 2] = ptx::pack<c.dtype>(low, high);
    }
    wait_value();
    clear_dead_values(item, key);
    issue_dense_values(prob);
    ptx::wgmma_wait<0>();
    release_value();
  }

  /// What a fast step hands to the next: probabilities and where they go.
  struct Probabilities {
    std::uint32_t packed[kKept / 2];
    layout::WordPair metadata;
  };

  /// S of the finished product to probabilities; nothing of this warpgroup may be in flight.
  __device__ __forceinline__ void finish_step(Probabilities& out, const Score (&s)[kScores],
                                              const float (&f)[2]) {
    float sum[2];
    exponentials<kKept>(out.packed, sum, s, f);
    if (__any_sync(~0u, any_beyond(out.packed))) {
      raise_reference<kKept>(s, f);
      exponentials<kKept>(out.packed, sum, s, f);
    }
    l[0] += sum[0];
    l[1] += sum[1];
  }

  __device__ __forceinline__ void issue_values(const Probabilities& prob) {
    if constexpr (kPairs)
      issue_sparse_values(prob.packed, prob.metadata);
    else
      issue_dense_values(prob.packed);
  }

  /// Prunes S; what remains of the metadata exchange is one step, for after the products that read
  /// the last metadata have retired.
  __device__ __forceinline__ layout::WordPair prune(Score (&s)[kScores], std::uint32_t& received) {
    layout::WordPair words{};
    if constexpr (kPairs) {
      const tile::ExchangeLane to(lane);
      words = tile::exchange_nibbles(to, tile::prune_pairs<c.tile>(s));
      received = __shfl_xor_sync(~0u, tile::send_bytes(to, words), 2);
    }
    return words;
  }
  __device__ __forceinline__ void finish_metadata(layout::WordPair& out, layout::WordPair words,
                                                  std::uint32_t received) const {
    if constexpr (kPairs) {
      // Pins the last step behind the wait before it.
      asm volatile("" : "+r"(words.lo), "+r"(words.hi), "+r"(received));
      out = tile::receive_bytes(tile::ExchangeLane(lane), words, received);
    }
  }

  __device__ __forceinline__ void fast_steps(const Item& item) {
    const int steps = item.fast_blocks() * kStepsPerBlock;
    if (steps == 0) return;
    Score s[kScores];
    Probabilities prob;
    float f[2];
    std::uint32_t received = 0;
    wait_key();
    issue_pruned_scores(s);
    key_factor(f, item, item.fast_block(0));
    ptx::wgmma_wait<0>();
    release_key();
    layout::WordPair words = prune(s, received);
    finish_metadata(prob.metadata, words, received);
    finish_step(prob, s, f);
#pragma unroll 1
    for (int step = 1; step < steps; ++step) {
      wait_key();
      issue_pruned_scores(s);
      wait_value();
      issue_values(prob);
      if constexpr (is_int8(c)) key_factor(f, item, item.fast_block(step / kStepsPerBlock));
      ptx::wgmma_wait<1>();
      release_key();
      words = prune(s, received);
      ptx::wgmma_wait<0>();
      release_value();
      finish_metadata(prob.metadata, words, received);
      finish_step(prob, s, f);
    }
    wait_value();
    issue_values(prob);
    ptx::wgmma_wait<0>();
    release_value();
  }

  // ---- one item
  // ----------------------------------------------------------------------------------

  __device__ __forceinline__ void run(const Item& item) {
    QueryLoader<c>{p, item, memory, shared, warpgroup, warp, lane}.run();
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(kBarrierWarpgroup + warpgroup, 128);
    const int row = 64 * warpgroup + 16 * warp + layout::group_of(lane);
    if constexpr (is_nm24(c)) load_query_metadata<c>(query_metadata, memory, warpgroup, warp, lane);
    for (int h = 0; h < 2; ++h) {
      m[h] = -INFINITY;
      l[h] = 0;
      factor[h] = p.scale_log2;
      if constexpr (is_int8(c))
        factor[h] *= reinterpret_cast<const float*>(memory + S::kRowScale)[row + 8 * h];
    }
#pragma unroll
    for (int i = 0; i < kOut; ++i) o[i] = 0;

    const int plain = item.plain_blocks();
#pragma unroll 1
    for (int i = 0; i < plain; ++i) {
      const int block = item.plain_block(i);
#pragma unroll 1
      for (int half = 0; half < kStepsPerBlock; ++half) {
        const StepKeys key = sm90::plain_step(c, block, half);
        if (is_live(c, item, key)) plain_step(item, block, key, row);
      }
    }
    fast_steps(item);
    store(item, row);
  }

  __device__ __forceinline__ void store(const Item& item, int row) {
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
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(out + S::Out::offset(at)), "r"(packed)
                   : "memory");
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
            load_shared(out + S::Out::offset({16 * warp + r, 8 * chunk}));
    }
    __syncwarp();
  }
};

template <int kRow>
__global__ void __launch_bounds__(kThreads, 1) attention_kernel(const __grid_constant__ Params p) {
  constexpr Config c = kRows[kRow];
  using S = Shared<c>;
  extern __shared__ unsigned char allocated[];
  const std::uint32_t start = ptx::shared_address(allocated);
  const std::uint32_t shared = (start + 1023) & ~1023u;
  unsigned char* memory = allocated + (shared - start);
  // Warp-uniform by construction, and known to be by the compiler.
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < c.stages; ++stage) {
      ptx::mbarrier_init(shared + S::key_full(stage), 1);
      ptx::mbarrier_init(shared + S::value_full(stage), 1);
      ptx::mbarrier_init(shared + S::key_empty(stage), kWarpgroups);
      ptx::mbarrier_init(shared + S::value_empty(stage), kWarpgroups);
    }
    for (int slot = 0; slot < kItemSlots; ++slot) {
      ptx::mbarrier_init(shared + S::item_full(slot), 1);
      ptx::mbarrier_init(shared + S::item_empty(slot), 4 * kWarpgroups);
    }
    ptx::fence_barrier_init();
  }
  __syncthreads();

  if (warpgroup == kWarpgroups) {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x == 128 * kWarpgroups) produce<c>(p, memory, shared);
    return;
  }
  ptx::setmaxnreg_inc<kConsumerRegisters>();
  const int thread = static_cast<int>(threadIdx.x) % 128;
  Consumer<c> consumer(p, memory, shared, warpgroup, thread);
  const auto* slots = reinterpret_cast<const Item*>(memory + S::kItems);
  Ring<kItemSlots> ring;
  while (true) {
    ptx::mbarrier_wait(shared + S::item_full(ring.stage), ring.parity);
    const Item& item = slots[ring.stage];
    if (item.b < 0) break;
    consumer.run(item);
    __syncwarp();
    if (thread % 32 == 0) ptx::mbarrier_arrive(shared + S::item_empty(ring.stage));
    ring.next();
  }
}

}  // namespace twofour::cuda::sm90
