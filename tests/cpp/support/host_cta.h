// A CTA on the host: threads that run device code in turns and meet at warp-wide instructions,
// which the emulator of src/ref computes, at barriers, and over copies that arrive late. Included
// before the code it is for, whose wrappers of instructions it replaces: `ptx` of namespace
// cuda::sm80 is found before cuda::ptx.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/ptx/math.h"
#include "cuda/tile/pair_prune.h"
#include "random.h"
#include "ref/mma_sp.h"

namespace twofour::test {

/// One warp runs as far ahead as it can, until the seed chooses another; it also chooses the
/// moments at which copies arrive. Throws what a thread throws, and when none can go on.
class HostCta {
 public:
  static constexpr int kLanes = 32;
  static constexpr int kMaxWarps = 16;
  static inline HostCta* current = nullptr;

  /// `window` is shared memory. Threads are numbered from that of `first_warp` on.
  HostCta(int warps, std::span<std::byte> window, int first_warp = 0, std::uint64_t seed = 1)
      : window_(window), first_warp_(first_warp), random_(seed), warps_(warps) {}

  /// Runs `body` on every thread.
  void run(const std::function<void()>& body) {
    constexpr std::size_t kStack = std::size_t{1} << 20;
    current = this;
    body_ = &body;
    threads_.resize(kLanes * warps_.size());
    for (Thread& t : threads_) {
      t.stack = std::make_unique_for_overwrite<std::byte[]>(kStack);
      getcontext(&t.context);
      t.context.uc_stack.ss_sp = t.stack.get();
      t.context.uc_stack.ss_size = kStack;
      t.context.uc_link = &home_;
      makecontext(&t.context, &HostCta::enter, 0);
    }
    const auto any_warp = [this] {
      return static_cast<std::size_t>(random_.integer(0, static_cast<int>(warps_.size()) - 1));
    };
    const int in_a_row = random_.integer(0, 1) == 0 ? 50 : 500;  // turns of one warp, about
    const int late = random_.integer(0, 1) == 0 ? 2 : 200;       // turns until a copy arrives
    std::size_t favoured = any_warp();
    while (!std::ranges::all_of(threads_, &Thread::ended) && !failure_) {
      if (random_.integer(0, in_a_row) == 0) favoured = any_warp();
      bool moved = false;
      for (std::size_t i = 0; i < warps_.size() && !moved; ++i)
        moved = turn((favoured + i) % warps_.size());
      if (!copies_.empty() && (!moved || random_.integer(0, late) == 0)) {
        copies_.front()();
        copies_.pop_front();
        moved = true;
      }
      if (!moved) failure_ = std::make_exception_ptr(std::runtime_error("no thread can go on"));
    }
    current = nullptr;
    if (failure_) std::rethrow_exception(failure_);
  }

  int lane() const { return now_ % kLanes; }
  int thread() const { return kLanes * first_warp_ + now_; }
  int threads() const { return static_cast<int>(threads_.size()); }

  /// Hands `in` of this lane over; `together(in of the warp, out of the warp)` runs once when all
  /// its lanes are there.
  template <class Out, class In, class Together>
  Out meet(const In& in, Together together) {
    static std::array<std::array<In, kLanes>, kMaxWarps> all_in;
    static std::array<std::array<Out, kLanes>, kMaxWarps> all_out;
    static const char here = 0;
    const int w = now_ / kLanes, l = lane();
    Warp& warp = warps_[w];
    if (warp.meeting > 0 && warp.where != &here)
      throw std::runtime_error("lanes of a warp meet at different instructions");
    warp.where = &here;
    ++warp.meeting;
    threads_[now_].meets = true;
    all_in[w][l] = in;
    warp.together = [w, together] { together(all_in[w], all_out[w]); };
    leave();
    return all_out[w][l];
  }

  /// Goes on once the condition holds.
  void wait(std::function<bool()> condition) {
    if (condition()) return;
    threads_[now_].waits_for = std::move(condition);
    leave();
  }

  /// bar.red.or: all of `count` threads come to barrier `id` before one goes on.
  bool barrier(int id, int count, bool predicate) {
    Barrier& b = barriers_[id];
    const int round = b.round;
    b.any |= predicate;
    if (++b.arrived == count) {
      b.arrived = 0;
      b.result[round % 2] = b.any;
      b.any = false;
      ++b.round;
    }
    wait([&b, round] { return b.round != round; });
    return b.result[round % 2];
  }

  /// Copies of this thread that have not been handed over to a barrier.
  void copy(std::uint32_t to, const void* from, bool inside) {
    at(to, 16);
    threads_[now_].copies.push_back({to, inside ? from : nullptr});
  }
  /// `then` runs after the copies, some time later.
  void after_copies(std::function<void()> then) {
    copies_.push_back([this, copies = std::move(threads_[now_].copies), then = std::move(then)] {
      for (const auto& [to, from] : copies)
        from == nullptr ? std::memset(at(to, 16), 0, 16) : std::memcpy(at(to, 16), from, 16);
      then();
    });
    threads_[now_].copies.clear();
  }

  std::byte* at(std::uint32_t address, std::size_t bytes) {
    if (address + bytes > window_.size() || address % bytes != 0)
      throw std::out_of_range("shared memory at " + std::to_string(address));
    return window_.data() + address;
  }
  std::uint32_t address_of(const void* pointer) const {
    return static_cast<std::uint32_t>(static_cast<const std::byte*>(pointer) - window_.data());
  }

 private:
  struct Thread {
    ucontext_t context;
    std::unique_ptr<std::byte[]> stack;
    bool ended = false;
    bool meets = false;               // others of its warp
    std::function<bool()> waits_for;  // or empty
    std::vector<std::pair<std::uint32_t, const void*>> copies;
  };
  struct Warp {
    int meeting = 0;  // lanes
    const void* where = nullptr;
    std::function<void()> together;
  };
  struct Barrier {
    int arrived = 0, round = 0;
    bool any = false;
    bool result[2] = {};
  };

  static void enter() {
    HostCta& cta = *current;
    try {
      (*cta.body_)();
    } catch (...) {
      cta.failure_ = std::current_exception();
    }
    cta.threads_[cta.now_].ended = true;
  }

  /// Runs every thread of the warp that can; true when one could.
  bool turn(std::size_t w) {
    bool moved = false;
    int running = 0;
    for (int l = 0; l < kLanes; ++l) {
      now_ = static_cast<int>(kLanes * w) + l;
      Thread& t = threads_[now_];
      if (!t.ended && !t.meets && (!t.waits_for || t.waits_for())) {
        t.waits_for = nullptr;
        swapcontext(&home_, &t.context);
        moved = true;
      }
      running += !t.ended;
    }
    Warp& warp = warps_[w];
    if (warp.meeting > 0 && warp.meeting == running) {
      warp.meeting = 0;
      for (int l = 0; l < kLanes; ++l) threads_[kLanes * w + l].meets = false;
      try {
        warp.together();
      } catch (...) {
        failure_ = std::current_exception();
      }
      moved = true;
    }
    return moved;
  }
  void leave() { swapcontext(&threads_[now_].context, &home_); }

  std::span<std::byte> window_;
  int first_warp_;
  Random random_;
  int now_ = 0;  // the thread whose turn it is
  const std::function<void()>* body_ = nullptr;
  std::exception_ptr failure_;
  ucontext_t home_;
  std::vector<Warp> warps_;
  std::vector<Thread> threads_;
  std::map<int, Barrier> barriers_;
  std::deque<std::function<void()>> copies_;
};

/// As much of an mbarrier as fits its eight bytes.
struct HostBarrier {
  std::uint16_t expected, missing;
  std::uint32_t phase;

  void arrive() {
    if (missing == 0) throw std::runtime_error("an arrival too many");
    if (--missing > 0) return;
    missing = expected;
    ++phase;
  }
};
static_assert(sizeof(HostBarrier) == 8);

struct HostThreadIndex {
  struct X {
    operator int() const { return HostCta::current->thread(); }
  } x;
};
struct HostBlockIndex {
  unsigned x = 0;
};

}  // namespace twofour::test

// Words of nvcc that its headers leave out for other compilers.
#ifndef __noinline__
#define __noinline__
#endif
#ifndef __grid_constant__
#define __grid_constant__
#endif
#ifndef __launch_bounds__
#define __launch_bounds__(...)
#endif

namespace twofour::cuda {

inline std::size_t __cvta_generic_to_shared(const void* pointer) {
  return test::HostCta::current->address_of(pointer);
}
inline constexpr test::HostThreadIndex threadIdx;
inline test::HostBlockIndex blockIdx;

template <class T>
T __shfl_xor_sync(unsigned, T value, int distance) {
  return test::HostCta::current->meet<T>(value, [distance](const auto& in, auto& out) {
    for (int i = 0; i < 32; ++i) out[i] = in[i ^ distance];
  });
}
template <class T>
T __shfl_sync(unsigned, T value, int from) {
  return test::HostCta::current->meet<T>(value,
                                         [from](const auto& in, auto& out) { out.fill(in[from]); });
}
inline bool __any_sync(unsigned, bool predicate) {
  return test::HostCta::current->meet<bool>(predicate, [](const auto& in, auto& out) {
    out.fill(std::ranges::any_of(in, [](bool p) { return p; }));
  });
}
inline void __syncwarp() {
  test::HostCta::current->meet<int>(0, [](const auto&, auto& out) { out.fill(0); });
}
inline void __syncthreads() {
  test::HostCta::current->barrier(0, test::HostCta::current->threads(), false);
}
template <class T>
T __ldg(const T* at) {
  return *at;
}
template <class T>
T atomicAdd(T* at, T value) {
  return std::exchange(*at, *at + value);
}
template <class T>
T atomicOr(T* at, T value) {
  return std::exchange(*at, *at | value);
}
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __int2float_rn(std::int32_t x) { return static_cast<float>(x); }
inline std::uint32_t __float_as_uint(float x) { return std::bit_cast<std::uint32_t>(x); }

namespace tile {
inline layout::WordPair exchange(const ExchangeLane& lane, layout::WordPair w) {
  w = receive_nibbles(lane, w, __shfl_xor_sync(~0u, send_nibbles(lane, w), 1));
  return receive_bytes(lane, w, __shfl_xor_sync(~0u, send_bytes(lane, w), 2));
}
inline std::uint32_t exchange(const WordExchange& lane, std::uint32_t w) {
  w = lane.nibbles(w, __shfl_xor_sync(~0u, w, 1));
  return lane.bytes(w, __shfl_xor_sync(~0u, w, 2));
}
}  // namespace tile

namespace sm80::ptx {

using namespace twofour::cuda::ptx;
using test::HostCta;

template <class T>
T load(std::uint32_t address) {
  T value;
  std::memcpy(&value, HostCta::current->at(address, sizeof value), sizeof value);
  return value;
}
template <class T>
void store_shared(std::uint32_t address, T value) {
  std::memcpy(HostCta::current->at(address, sizeof value), &value, sizeof value);
}
inline uint2 load_shared_uint2(std::uint32_t address) { return load<uint2>(address); }
inline uint4 load_shared_uint4(std::uint32_t address) { return load<uint4>(address); }
inline float load_shared_float(std::uint32_t address) { return load<float>(address); }

// ---- barriers and copies

inline test::HostBarrier& barrier_at(std::uint32_t address) {
  return *reinterpret_cast<test::HostBarrier*>(HostCta::current->at(address, 8));
}
inline void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  const auto count = static_cast<std::uint16_t>(arrivals);
  barrier_at(barrier) = {count, count, 0};
}
inline void mbarrier_arrive(std::uint32_t barrier) { barrier_at(barrier).arrive(); }
inline void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  HostCta::current->wait([&b = barrier_at(barrier), parity] { return b.phase % 2 != parity % 2; });
}
inline void cp_async(std::uint32_t destination, const void* source, bool inside) {
  HostCta::current->copy(destination, source, inside);
}
inline void cp_async_arrive(std::uint32_t barrier) {
  HostCta::current->after_copies([&b = barrier_at(barrier)] { b.arrive(); });
}
inline bool named_barrier_any(int id, int threads, bool predicate) {
  return HostCta::current->barrier(id, threads, predicate);
}

// ---- ldmatrix and products

/// Register m of lane l: row l / 4 of matrix m, elements 2 (l % 4) and the next; transposed, they
/// are of column l / 4.
inline void load_matrices(std::uint32_t (&r)[4], std::uint32_t address, bool transposed) {
  const auto got = HostCta::current->meet<std::array<std::uint32_t, 4>>(
      address, [transposed](const auto& in, auto& out) {
        for (int l = 0; l < 32; ++l)
          for (int m = 0; m < 4; ++m) {
            std::uint16_t part[2];
            for (int e = 0; e < 2; ++e) {
              const int row = transposed ? 2 * (l % 4) + e : l / 4;
              const int column = transposed ? l / 4 : 2 * (l % 4) + e;
              std::memcpy(&part[e], HostCta::current->at(in[8 * m + row], 16) + 2 * column, 2);
            }
            out[l][m] = part[0] | std::uint32_t{part[1]} << 16;
          }
      });
  std::ranges::copy(got, r);
}
inline void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t address) {
  load_matrices(r, address, false);
}
inline void ldmatrix_x4_trans(std::uint32_t (&r)[4], std::uint32_t address) {
  load_matrices(r, address, true);
}

/// What a lane gives to a product; a dense one has two registers of B and no metadata.
template <class T, std::size_t kB>
struct Operands {
  std::array<T, 4> d;
  std::array<std::uint32_t, 4> a;
  std::array<std::uint32_t, kB> b;
  std::uint32_t metadata;
};
template <class T, std::size_t kB, class Product>
void multiply(T (&d)[4], const std::uint32_t (&a)[4], const std::array<std::uint32_t, kB>& b,
              std::uint32_t metadata, Product product) {
  Operands<T, kB> own{{}, {}, b, metadata};
  std::ranges::copy(d, own.d.begin());
  std::ranges::copy(a, own.a.begin());
  const auto got =
      HostCta::current->meet<std::array<T, 4>>(own, [product](const auto& in, auto& out) {
        ref::Lanes<T, 4> sum;
        ref::Lanes<std::uint32_t, 4> all_a;
        ref::Lanes<std::uint32_t, kB> all_b;
        ref::Metadata words;
        for (int l = 0; l < 32; ++l) {
          sum[l] = in[l].d;
          all_a[l] = in[l].a;
          all_b[l] = in[l].b;
          words[l] = in[l].metadata;
        }
        const Status status = product(out, all_a, all_b, sum, words);
        if (!status.ok()) throw std::runtime_error(status.message());
      });
  std::ranges::copy(got, d);
}
template <DType kType>
void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  multiply(d, a, std::array{b0, b1}, 0,
           [](auto& out, const auto& x, const auto& y, const auto& sum, const auto&) {
             return ref::mma_m16n8k16(out, x, y, sum, kType);
           });
}
inline void mma_m16n8k32_s8(std::int32_t (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                            std::uint32_t b1) {
  multiply(d, a, std::array{b0, b1}, 0,
           [](auto& out, const auto& x, const auto& y, const auto& sum, const auto&) {
             return ref::mma_m16n8k32_s8(out, x, y, sum);
           });
}
template <DType kType, int kSelector>
void mma_sp_m16n8k32(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[4],
                     std::uint32_t metadata) {
  multiply(d, a, std::to_array(b), metadata,
           [](auto& out, const auto& x, const auto& y, const auto& sum, const auto& words) {
             return ref::mma_sp_m16n8k32(out, x, y, sum, words, kSelector, kType);
           });
}

}  // namespace sm80::ptx
}  // namespace twofour::cuda
