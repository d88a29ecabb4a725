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
      : window_(window),
        first_warp_(first_warp),
        random_(seed),
        warps_(warps),
        warpgroups_((warps + 3) / 4) {}

  /// Runs `body` on every thread.
  void run(const std::function<void()>& body) {
    current = this;
    body_ = &body;
    threads_.resize(kLanes * warps_.size());
    for (Thread& t : threads_) make(t);
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
      Warpgroup& early = warpgroups_[any_warp() / 4];
      if (random_.integer(0, late) == 0) early.run(early.runnable());
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
    arrive(id, count, predicate);
    wait([&b, round] { return b.round != round; });
    return b.result[round % 2];
  }
  void arrive(int id, int count, bool predicate) {
    Barrier& b = barriers_[id];
    const int round = b.round;
    b.any |= predicate;
    if (++b.arrived == count) {
      b.arrived = 0;
      b.result[round % 2] = b.any;
      b.any = false;
      ++b.round;
    }
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

  /// `copy` runs some time later.
  void later(std::function<void()> copy) { copies_.push_back(std::move(copy)); }

  // Products of a warpgroup: each runs some time after all four warps have issued it and before a
  // wait for its group ends.
  void issue(std::function<void()> product) {
    my_warpgroup().products[now_ / kLanes % 4].push_back(std::move(product));
    ++my_warp().issued;
  }
  void commit() { my_warp().groups.push_back(my_warp().issued); }
  /// Products of this warp that end before a wait for all groups but the last `pending`.
  std::size_t due(std::size_t pending) {
    Warp& w = my_warp();
    for (; w.groups.size() > pending; w.groups.pop_front()) w.due = w.groups.front();
    return w.due;
  }
  void settle(std::size_t products) {
    Warpgroup& g = my_warpgroup();
    wait([&g, products] { return g.runnable() >= products; });
    g.run(products);
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
    std::size_t issued = 0, due = 0;  // products
    std::deque<std::size_t> groups;   // how many were issued at each commit
  };
  struct Warpgroup {
    std::array<std::deque<std::function<void()>>, 4> products;
    std::size_t ran = 0;

    std::size_t runnable() const {
      return ran + std::ranges::min_element(products, {}, &std::deque<std::function<void()>>::size)
                       ->size();
    }
    void run(std::size_t until) {
      for (; ran < until; ++ran)
        for (auto& of_warp : products) {
          of_warp.front()();
          of_warp.pop_front();
        }
    }
  };
  struct Barrier {
    int arrived = 0, round = 0;
    bool any = false;
    bool result[2] = {};
  };

  void make(Thread& t) {
    constexpr std::size_t kStack = std::size_t{1} << 20;
    t.stack = std::make_unique_for_overwrite<std::byte[]>(kStack);
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack.get();
    t.context.uc_stack.ss_size = kStack;
    t.context.uc_link = &home_;
    makecontext(&t.context, &HostCta::enter, 0);
  }
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
  Warp& my_warp() { return warps_[now_ / kLanes]; }
  Warpgroup& my_warpgroup() { return warpgroups_[now_ / kLanes / 4]; }
  void leave() { swapcontext(&threads_[now_].context, &home_); }

  std::span<std::byte> window_;
  int first_warp_;
  Random random_;
  int now_ = 0;  // the thread whose turn it is
  const std::function<void()>* body_ = nullptr;
  std::exception_ptr failure_;
  ucontext_t home_;
  std::vector<Warp> warps_;
  std::vector<Warpgroup> warpgroups_;
  std::vector<Thread> threads_;
  std::map<int, Barrier> barriers_;
  std::deque<std::function<void()>> copies_;
};

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
inline bool __all_sync(unsigned, bool predicate) { return !__any_sync(~0u, !predicate); }
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
inline layout::WordPair exchange_nibbles(const ExchangeLane& lane, layout::WordPair w) {
  return receive_nibbles(lane, w, __shfl_xor_sync(~0u, send_nibbles(lane, w), 1));
}
inline layout::WordPair exchange(const ExchangeLane& lane, layout::WordPair w) {
  w = exchange_nibbles(lane, w);
  return receive_bytes(lane, w, __shfl_xor_sync(~0u, send_bytes(lane, w), 2));
}
inline std::uint32_t exchange(const WordExchange& lane, std::uint32_t w) {
  w = lane.nibbles(w, __shfl_xor_sync(~0u, w, 1));
  return lane.bytes(w, __shfl_xor_sync(~0u, w, 2));
}
}  // namespace tile

}  // namespace twofour::cuda

namespace twofour::test {

/// An mbarrier, in its eight bytes.
struct HostBarrier {
  std::uint16_t expected, missing;  // arrivals
  std::uint32_t odd : 1;            // the phase
  std::int32_t bytes : 31;          // that copies have yet to bring

  void arrive() {
    if (missing == 0) throw std::runtime_error("an arrival too many");
    --missing;
    turn();
  }
  void expect(std::uint32_t more) { bytes += static_cast<std::int32_t>(more); }
  void complete(std::uint32_t brought) {
    bytes -= static_cast<std::int32_t>(brought);
    turn();
  }

 private:
  void turn() {
    if (missing > 0 || bytes != 0) return;
    missing = expected;
    odd ^= 1;
  }
};
static_assert(sizeof(HostBarrier) == 8);

/// Instructions of both kernel families.
namespace host_ptx {

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

inline HostBarrier& barrier_at(std::uint32_t address) {
  return *reinterpret_cast<HostBarrier*>(HostCta::current->at(address, 8));
}
inline void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  const auto count = static_cast<std::uint16_t>(arrivals);
  barrier_at(barrier) = {count, count, 0, 0};
}
inline void mbarrier_arrive(std::uint32_t barrier) { barrier_at(barrier).arrive(); }
inline void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  HostCta::current->wait([&b = barrier_at(barrier), parity] { return b.odd != parity % 2; });
}
inline bool named_barrier_any(int id, int threads, bool predicate) {
  return HostCta::current->barrier(id, threads, predicate);
}
inline void named_barrier_sync(int id, int threads) { named_barrier_any(id, threads, false); }
inline void named_barrier_arrive(int id, int threads) {
  HostCta::current->arrive(id, threads, false);
}

}  // namespace host_ptx
}  // namespace twofour::test
