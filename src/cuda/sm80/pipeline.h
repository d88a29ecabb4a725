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
  int last = 0;     // the stage that is released next
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

  /// Copies the next step, if there is one; `kFast`: it is a fast one, if there is one.
  template <bool kFast = false>
  __device__ __forceinline__ void fill_next() {
    if (ahead.done()) return;
    ptx::mbarrier_wait(shared + S::empty(fill.stage), fill.parity ^ 1);
    const std::uint32_t at = shared + S::kStages + fill.stage * S::kStageBytes;
    const StepKeys keys = ahead.keys();
    copy<typename S::Key, c.head_dim * S::kElement / 16, kFast>(
        at, item.keys, S::kElement * p.k.row, keys, is_int8(c) ? c.head_dim : 2 * p.head_dim);
    copy<typename S::Value, c.head_dim / 8, kFast>(at + S::Key::kBytes, item.values, 2 * p.v.row,
                                                   keys, 2 * p.head_dim_v);
    ptx::cp_async_arrive(shared + S::full(fill.stage));
    fill.next(p.stages);
    if constexpr (kFast)
      ahead.next_fast(item);
    else
      ahead.next(item);
  }

  /// The stage of the next step, once it is there.
  __device__ __forceinline__ std::uint32_t wait() {
    ptx::mbarrier_wait(shared + S::full(use.stage), use.parity);
    const std::uint32_t stage = shared + S::kStages + use.stage * S::kStageBytes;
    use.next(p.stages);
    return stage;
  }
  /// Gives back the oldest stage of those waited for.
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(shared + S::empty(last));
    if (++last == p.stages) last = 0;
  }

 private:
  /// Rows of a tile: kChunks of 16 bytes each, zero beyond `bytes` and, unless `kInside`, beyond
  /// the sequence.
  template <class Tile, int kChunks, bool kInside>
  __device__ __forceinline__ void copy(std::uint32_t to, const unsigned char* from,
                                       std::int64_t pitch, StepKeys keys, int bytes) const {
    const int end = kInside ? 0 : item.seqlen_k;
    constexpr int kHalf = c.tile / 2;
    constexpr int kRowsAtOnce = c.threads() / kChunks;
    if constexpr (c.threads() % kChunks == 0 && kRowsAtOnce % 8 == 0 && kHalf % kRowsAtOnce == 0) {
      // Rows of a thread have the same swizzle within each half.
      const int chunk = threadIdx.x % kChunks, row = threadIdx.x / kChunks;
      const bool stored = 16 * chunk < bytes;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int key = (half == 0 ? keys.first : keys.second) + row;
        const unsigned char* source = from + key * pitch + 16 * chunk;
        const std::uint32_t at = to + Tile::offset(row + half * kHalf, chunk);
#pragma unroll
        for (int i = 0; i < kHalf; i += kRowsAtOnce) {
          ptx::cp_async(at + i * Tile::kPitch, source, stored && (kInside || key < end));
          source += kRowsAtOnce * pitch;
          key += kRowsAtOnce;
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < c.tile * kChunks; i += c.threads()) {
        const int at = i + static_cast<int>(threadIdx.x);
        if ((c.tile * kChunks) % c.threads() != 0 && at >= c.tile * kChunks) break;
        const int row = at / kChunks, chunk = at % kChunks;
        const int key = row < kHalf ? keys.first + row : keys.second + row - kHalf;
        ptx::cp_async(to + Tile::offset(row, chunk), from + key * pitch + 16 * chunk,
                      16 * chunk < bytes && (kInside || key < end));
      }
    }
  }
};

}  // namespace twofour::cuda::sm80
