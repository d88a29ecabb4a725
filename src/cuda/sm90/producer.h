// The producer warps: one hands out items, one keeps the ring of K full, one the ring of V.
#pragma once

#include "cuda/ptx/async.h"
#include "cuda/sm90/item.h"
#include "cuda/sm90/shared.h"

namespace twofour::cuda::sm90 {

/// Walks over the steps of every item in the order of the consumers and calls
/// step(item, keys, fast) for each; whole warp.
template <Config c, class Step>
__device__ __forceinline__ void feed(unsigned char* memory, std::uint32_t shared, Step&& step) {
  using S = Shared<c>;
  constexpr int kStepsPerBlock = c.block / c.tile;
  const auto* slots = reinterpret_cast<const Item*>(memory + S::kItems);
  Ring<kItemSlots> ring;
  while (true) {
    ptx::mbarrier_wait(shared + S::item_full(ring.stage), ring.parity);
    const Item& item = slots[ring.stage];
    if (item.b < 0) return;
    const int plain = item.plain_blocks();
    for (int i = 0; i < plain; ++i) {
      const int block = item.plain_block(i);
#pragma unroll 1
      for (int half = 0; half < kStepsPerBlock; ++half) {
        const StepKeys key = plain_step(c, block, half);
        if (is_live(c, item, key)) step(item, key.first, false);
      }
    }
#pragma unroll 1
    for (int run = 0; run < 2; ++run) {
      const int end = item.pruned_end[run];
#pragma unroll 1
      for (int block = item.pruned_begin[run]; block < end; ++block)
#pragma unroll 1
        for (int half = 0; half < kStepsPerBlock; ++half)
          step(item, fast_step(c, block, half).first, true);
    }
    __syncwarp();
    if (ptx::elect_one()) ptx::mbarrier_arrive(shared + S::item_empty(ring.stage));
    ring.next();
  }
}

template <Config c>
__device__ __forceinline__ void feed_keys(const Params& p, unsigned char* memory,
                                          std::uint32_t shared) {
  using S = Shared<c>;
  if (ptx::elect_one()) {
    ptx::prefetch_tensor_map(p.k);
    if (c.score == ScorePattern::kPair) ptx::prefetch_tensor_map(p.k_pair);
  }
  Ring<c.stages> ring;
  feed<c>(memory, shared, [&](const Item& item, int first, bool fast) {
    const std::uint32_t full = shared + S::key_full(ring.stage);
    const std::uint32_t at = shared + S::kKeys + ring.stage * S::Key::kTileBytes;
    ptx::mbarrier_wait(shared + S::key_empty(ring.stage), ring.parity ^ 1);
    if (ptx::elect_one()) {
      ptx::mbarrier_arrive_expect_tx(full, S::Key::kTileBytes);
#pragma unroll
      for (int panel = 0; panel < S::kKeyPanels; ++panel) {
        const std::uint32_t to = at + panel * S::Key::kPanelBytes;
        if (fast && c.score == ScorePattern::kPair)
          ptx::tma_load(to, p.k_pair, full, 64 * panel, item.key_row + first, 0, item.kv_head,
                        item.key_batch);
        else
          ptx::tma_load(to, p.k, full, 64 * panel, item.key_row + first, item.kv_head,
                        item.key_batch);
      }
    }
    __syncwarp();
    ring.next();
  });
}

template <Config c>
__device__ __forceinline__ void feed_values(const Params& p, unsigned char* memory,
                                            std::uint32_t shared) {
  using S = Shared<c>;
  if (ptx::elect_one()) {
    ptx::prefetch_tensor_map(p.v);
    if (c.score == ScorePattern::kPair) ptx::prefetch_tensor_map(p.v_pair);
  }
  Ring<c.stages> ring;
  feed<c>(memory, shared, [&](const Item& item, int first, bool fast) {
    const std::uint32_t full = shared + S::value_full(ring.stage);
    const std::uint32_t at = shared + S::kValues + ring.stage * S::Value::kTileBytes;
    ptx::mbarrier_wait(shared + S::value_empty(ring.stage), ring.parity ^ 1);
    if (ptx::elect_one()) {
      ptx::mbarrier_arrive_expect_tx(full, S::Value::kTileBytes);
#pragma unroll
      for (int panel = 0; panel < S::kValuePanels; ++panel) {
        const std::uint32_t to = at + panel * S::Value::kPanelBytes;
        if (fast && c.score == ScorePattern::kPair)
          ptx::tma_load(to, p.v_pair, full, 64 * panel, 0, item.value_row + first, item.kv_head,
                        item.value_batch);
        else
          ptx::tma_load(to, p.v, full, 64 * panel, item.value_row + first, item.kv_head,
                        item.value_batch);
      }
    }
    __syncwarp();
    ring.next();
  });
}

/// Takes items off the work counter, one ahead of those who work on them.
template <Config c>
__device__ __forceinline__ void hand_out_items(const Params& p, unsigned char* memory,
                                               std::uint32_t shared) {
  using S = Shared<c>;
  const int row_blocks = total_row_tiles(p, static_cast<int>(layout::kRowBlock));
  const int items = work_items(p, row_blocks);
  Ring<kItemSlots> ring;
  while (true) {
    const int index = atomicAdd(p.next_item, 1);
    ptx::mbarrier_wait(shared + S::item_empty(ring.stage), ring.parity ^ 1);
    Item& item = reinterpret_cast<Item*>(memory + S::kItems)[ring.stage];
    if (index < items)
      make_item(item, p, c, index, row_blocks);
    else
      item.b = -1;
    ptx::mbarrier_arrive(shared + S::item_full(ring.stage));
    if (index >= items) return;
    ring.next();
  }
}

}  // namespace twofour::cuda::sm90
