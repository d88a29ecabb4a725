// A warp on the host: 32 lanes that run device code in turns and meet at every warp-wide
// instruction, which the emulator of src/ref computes. Included before the code it is for, whose
// wrappers of instructions it replaces: `ptx` of namespace cuda::sm80 is found before cuda::ptx.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#include "cuda/ptx/math.h"
#include "cuda/tile/pair_prune.h"
#include "ref/mma_sp.h"

namespace twofour::test {

class HostWarp {
 public:
  static constexpr int kLanes = 32;
  static inline HostWarp* current = nullptr;
  std::vector<std::byte> memory;  // the shared window

  HostWarp(int warp, std::size_t bytes) : memory(bytes), warp_(warp) {}

  /// Runs `body(lane)` on every lane; each must meet the same warp-wide instructions.
  void run(const std::function<void(int)>& body) {
    constexpr std::size_t kStack = std::size_t{1} << 19;
    current = this;
    body_ = &body;
    for (int i = 0; i < kLanes; ++i) {
      stacks_[i] = std::make_unique<std::byte[]>(kStack);
      getcontext(&lanes_[i]);
      lanes_[i].uc_stack.ss_sp = stacks_[i].get();
      lanes_[i].uc_stack.ss_size = kStack;
      lanes_[i].uc_link = &home_;
      makecontext(&lanes_[i], &HostWarp::enter, 0);
      ended_[i] = false;
    }
    while (!std::ranges::all_of(ended_, [](bool e) { return e; })) {
      together_ = nullptr;
      for (lane_ = 0; lane_ < kLanes; ++lane_)
        if (!ended_[lane_]) swapcontext(&home_, &lanes_[lane_]);
      if (together_ != nullptr) together_();
    }
    current = nullptr;
  }

  int lane() const { return lane_; }
  int thread() const { return 32 * warp_ + lane_; }

  /// Hands `in` of this lane over; `together(in of all, out of all)` runs once when all are there.
  template <class Out, class In, class Together>
  Out meet(const In& in, Together together) {
    static std::array<In, kLanes> all_in;
    static std::array<Out, kLanes> all_out;
    all_in[lane_] = in;
    together_ = [together] { together(all_in, all_out); };
    swapcontext(&lanes_[lane_], &home_);
    return all_out[lane_];
  }

  std::byte* at(std::uint32_t address, std::size_t bytes) {
    if (address + bytes > memory.size() || address % bytes != 0)
      throw std::out_of_range("shared memory");
    return memory.data() + address;
  }

 private:
  static void enter() {
    HostWarp& w = *current;
    (*w.body_)(w.lane_);
    w.ended_[w.lane_] = true;
  }

  int warp_, lane_ = 0;
  const std::function<void(int)>* body_ = nullptr;
  std::function<void()> together_;
  std::array<ucontext_t, kLanes> lanes_;
  ucontext_t home_;
  std::array<std::unique_ptr<std::byte[]>, kLanes> stacks_;
  std::array<bool, kLanes> ended_{};
};

struct HostThreadIndex {
  struct X {
    operator int() const { return HostWarp::current->thread(); }
  } x;
};

}  // namespace twofour::test

namespace twofour::cuda {

inline constexpr test::HostThreadIndex threadIdx;

template <class T>
T __shfl_xor_sync(unsigned, T value, int distance) {
  return test::HostWarp::current->meet<T>(value, [distance](const auto& in, auto& out) {
    for (int i = 0; i < 32; ++i) out[i] = in[i ^ distance];
  });
}
template <class T>
T __shfl_sync(unsigned, T value, int from) {
  return test::HostWarp::current->meet<T>(
      value, [from](const auto& in, auto& out) { out.fill(in[from]); });
}
template <class T>
T __ldg(const T* at) {
  return *at;
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
using test::HostWarp;

template <class T>
T load(std::uint32_t address) {
  T value;
  std::memcpy(&value, HostWarp::current->at(address, sizeof value), sizeof value);
  return value;
}
template <class T>
void store_shared(std::uint32_t address, T value) {
  std::memcpy(HostWarp::current->at(address, sizeof value), &value, sizeof value);
}
inline uint2 load_shared_uint2(std::uint32_t address) { return load<uint2>(address); }
inline uint4 load_shared_uint4(std::uint32_t address) { return load<uint4>(address); }
inline float load_shared_float(std::uint32_t address) { return load<float>(address); }

/// Register m of lane l: row l / 4 of matrix m, elements 2 (l % 4) and the next; transposed, they
/// are of column l / 4.
inline void load_matrices(std::uint32_t (&r)[4], std::uint32_t address, bool transposed) {
  const auto got = HostWarp::current->meet<std::array<std::uint32_t, 4>>(
      address, [transposed](const auto& in, auto& out) {
        for (int l = 0; l < 32; ++l)
          for (int m = 0; m < 4; ++m) {
            std::uint16_t part[2];
            for (int e = 0; e < 2; ++e) {
              const int row = transposed ? 2 * (l % 4) + e : l / 4;
              const int column = transposed ? l / 4 : 2 * (l % 4) + e;
              std::memcpy(&part[e], HostWarp::current->at(in[8 * m + row], 16) + 2 * column, 2);
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
      HostWarp::current->meet<std::array<T, 4>>(own, [product](const auto& in, auto& out) {
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
