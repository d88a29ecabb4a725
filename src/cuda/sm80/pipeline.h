// The ring of stages in shared memory: every thread copies its share of each step's K and V some
// steps ahead, with cp.async; mbarriers say when a stage is full and when all warps are through.
#pragma once

#include "cuda/ptx/barrier.h"
#include "cuda/ptx/mma.h"
#include "cuda/sm80/shared.h"

namespace twofour::cuda::sm80 {

/// A position in the ring: the parity flips at each wrap.
struct RingPosition {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ void next(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <Config c>
struct Pipeline {
  using S = Shared<c>;

  const Params& p;
  const Item& item;
  std::uint32_t shared;  // window address
  RingPosition fill, use;
  Cursor<c> ahead;  // the step to be filled next

  __device__ Pipeline(const Params& params, const Item& of, std::uint32_t smem)
      : p(params), item(of), shared(smem) {}

  static __device__ void init_barriers(std::uint32_t shared, int stages) {
    for (int stage = 0; stage < stages; ++stage) {
      ptx::mbarrier_init(shared + S::full(stage), c.threads());
      ptx::mbarrier_init(shared + S::empty(stage), c.warps);
    }
  }

  /// Steps between the copy and the use of a stage. One stage less than there are, so that a warp
  /// may be a step ahead of the slowest one.
  __device__ __forceinline__ int lead() const { return p.stages > 2 ? p.stages - 2 : 1; }

  __device__ __forceinline__ void start() {
    ahead.next(item);
    for (int i = lead(); i > 0; --i) fill_next();
  }

  /// Copies the next step, if there is one.
  __device__ __forceinline__ void fill_next() {
    if (ahead.done()) return;
    ptx::mbarrier_wait(shared + S::empty(fill.stage), fill.parity ^ 1);
    const std::uint32_t at = shared + S::kStages + fill.stage * S::kStageBytes;
    const StepKeys keys = ahead.keys();
    constexpr int kElement = S::kElement;
    const auto* k = static_cast<const unsigned char*>(p.k.data) +
                    kElement * (item.key_batch * p.k.batch + item.kv_head * p.k.head +
                                std::int64_t{item.key_row} * p.k.row);
    const auto* v = static_cast<const unsigned char*>(p.v.data) +
                    2 * (item.value_batch * p.v.batch + item.kv_head * p.v.head +
                         std::int64_t{item.value_row} * p.v.row);
    copy<typename S::Key, c.head_dim * kElement / 16>(at, k, kElement * p.k.row, keys,
                                                      is_int8(c) ? c.head_dim : 2 * p.head_dim);
    copy<typename S::Value, c.head_dim / 8>(at + S::Key::kBytes, v, 2 * p.v.row, keys,
                                            2 * p.head_dim_v);
    ptx::cp_async_arrive(shared + S::full(fill.stage));
    fill.next(p.stages);
    ahead.next(item);
  }

  /// The stage of the step at hand, once it is there.
  __device__ __forceinline__ std::uint32_t wait() const {
    ptx::mbarrier_wait(shared + S::full(use.stage), use.parity);
    return shared + S::kStages + use.stage * S::kStageBytes;
  }
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(shared + S::empty(use.stage));
    use.next(p.stages);
  }

 private:
  /// Rows of a tile: kChunks of 16 bytes each, zero beyond `bytes` and beyond the sequence.
  template <class Tile, int kChunks>
  __device__ __forceinline__ void copy(std::uint32_t to, const unsigned char* from,
                                       std::int64_t pitch, StepKeys keys, int bytes) const {
    constexpr int kCopies = c.tile * kChunks;
    const auto one = [&](int row, int chunk) {
      const int key = row < c.tile / 2 ? keys.first + row : keys.second + row - c.tile / 2;
      const bool inside = key < item.seqlen_k && 16 * chunk < bytes;
      ptx::cp_async(to + Tile::offset(row, chunk), from + key * pitch + 16 * chunk, inside);
    };
    if constexpr (c.threads() % kChunks == 0) {
      constexpr int kRowsAtOnce = c.threads() / kChunks;
      const int chunk = threadIdx.x % kChunks, first = threadIdx.x / kChunks;
#pragma unroll
      for (int row = 0; row < c.tile; row += kRowsAtOnce)
        if (c.tile % kRowsAtOnce == 0 || row + first < c.tile) one(row + first, chunk);
    } else {
#pragma unroll 2
      for (int i = threadIdx.x; i < kCopies; i += c.threads()) one(i / kChunks, i % kChunks);
    }
  }
};

}  // namespace twofour::cuda::sm80
