// The producer: one thread that hands out items and keeps the K and V rings full.
#pragma once

#include "cuda/ptx/async.h"
#include "cuda/sm90/item.h"
#include "cuda/sm90/shared.h"

namespace twofour::cuda::sm90 {

template <Config c>
struct Producer {
  using S = Shared<c>;
  const Params& p;
  std::uint32_t shared;
  Ring<c.stages> keys, values;

  __device__ __forceinline__ void load_keys(const Item& item, StepKeys key) {
    const std::uint32_t full = shared + S::key_full(keys.stage);
    ptx::mbarrier_wait(shared + S::key_empty(keys.stage), keys.parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(full, S::Key::kTileBytes);
    constexpr int kBox = c.tile / 2 * S::Key::kRowBytes;
    const std::uint32_t at = shared + S::kKeys + keys.stage * S::Key::kTileBytes;
    // int8 codes are numbered through the whole call: {D, rows, Hkv, 1}.
    const int row = is_int8(c) && !p.packed ? item.b * p.seqlen_k : item.first_row_k;
    const int b = is_int8(c) || p.packed ? 0 : item.b;
#pragma unroll
    for (int panel = 0; panel < S::kKeyPanels; ++panel) {
      const std::uint32_t to = at + panel * S::Key::kPanelBytes;
      ptx::tma_load(to, p.k, full, 64 * panel, row + key.first, item.kv_head, b);
      ptx::tma_load(to + kBox, p.k, full, 64 * panel, row + key.second, item.kv_head, b);
    }
    keys.next();
  }

  __device__ __forceinline__ void load_values(const Item& item, StepKeys key, bool pairs) {
    const std::uint32_t full = shared + S::value_full(values.stage);
    ptx::mbarrier_wait(shared + S::value_empty(values.stage), values.parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(full, S::Value::kTileBytes);
    constexpr int kBox = c.tile / 2 * S::Value::kRowBytes;
    const std::uint32_t at = shared + S::kValues + values.stage * S::Value::kTileBytes;
    const int b = p.packed ? 0 : item.b;
#pragma unroll
    for (int panel = 0; panel < S::kValuePanels; ++panel) {
      const std::uint32_t to = at + panel * S::Value::kPanelBytes;
      if (pairs) {
        ptx::tma_load(to, p.v_pair, full, 64 * panel, 0, item.first_row_k + key.first, item.kv_head,
                      b);
      } else {
        ptx::tma_load(to, p.v, full, 64 * panel, item.first_row_k + key.first, item.kv_head, b);
        ptx::tma_load(to + kBox, p.v, full, 64 * panel, item.first_row_k + key.second, item.kv_head,
                      b);
      }
    }
    values.next();
  }

  __device__ void feed(const Item& item) {
    constexpr int kStepsPerBlock = c.block / c.tile;
    const int plain = item.plain_blocks() * kStepsPerBlock;
    for (int i = 0; i < plain; ++i) {
      const StepKeys key =
          sm90::plain_step(c, item.plain_block(i / kStepsPerBlock), i % kStepsPerBlock);
      if (!is_live(c, item, key)) continue;
      load_keys(item, key);
      load_values(item, key, false);
    }
    const int fast = item.fast_blocks() * kStepsPerBlock;
    for (int i = 0; i < fast; ++i) {
      const StepKeys key = fast_step(c, item.fast_block(i / kStepsPerBlock), i % kStepsPerBlock);
      load_keys(item, key);
      load_values(item, key, c.score == ScorePattern::kPair);
    }
  }
};

/// Runs until the work counter has passed the last item.
template <Config c>
__device__ void produce(const Params& p, unsigned char* memory, std::uint32_t shared) {
  using S = Shared<c>;
  ptx::prefetch_tensor_map(p.k);
  ptx::prefetch_tensor_map(p.v);
  if (c.score == ScorePattern::kPair) ptx::prefetch_tensor_map(p.v_pair);
  Producer<c> producer{p, shared, {}, {}};
  const int row_blocks = total_row_blocks(p);
  const int items = row_blocks * p.heads_q;
  Ring<kItemSlots> slots;
  int index = atomicAdd(p.next_item, 1);
  while (true) {
    const bool done = index >= items;
    ptx::mbarrier_wait(shared + S::item_empty(slots.stage), slots.parity ^ 1);
    Item& item = reinterpret_cast<Item*>(memory + S::kItems)[slots.stage];
    if (done)
      item.b = -1;
    else
      item = make_item(p, c, index, row_blocks);
    ptx::mbarrier_arrive(shared + S::item_full(slots.stage));
    if (done) return;
    index = atomicAdd(p.next_item, 1);
    producer.feed(item);
    slots.next();
  }
}

}  // namespace twofour::cuda::sm90
