// The instructions of the Hopper kernel on the host: tensor copies and warpgroup products. Included
// before it: `ptx` of namespace cuda::sm90 is found before cuda::ptx.
//
// A product reads its operands and writes D some time between its issue by all four warps and the
// wait for its group; the arithmetic is that of ref/mma_sp.h, for the 16 rows of a warp.
#pragma once

#include <cuda.h>

#include <type_traits>

#include "core/half.h"
#include "host_cta.h"
#include "layout/metadata.h"
#include "layout/shared_tile.h"

namespace twofour::test {

/// What a CUtensorMap of the host holds instead of the driver's encoding. Axis 0 has unit stride.
struct HostTensorMap {
  const std::byte* base;
  std::int64_t stride[5];  // bytes
  std::int32_t size[5];
  std::uint16_t box[5];
  std::uint8_t rank, element;  // bytes
  layout::Swizzle swizzle;
};
static_assert(sizeof(HostTensorMap) <= sizeof(CUtensorMap));

inline CUtensorMap encode(const HostTensorMap& from) {
  CUtensorMap map{};
  std::memcpy(&map, &from, sizeof from);
  return map;
}

/// One product of a warp, as its lanes issued it.
template <class Accumulator, int kColumns>
struct HostProduct {
  static constexpr bool kInt8 = std::is_same_v<Accumulator, std::int32_t>;
  static constexpr int kBytes = kInt8 ? 1 : 2;
  static constexpr int kRegisters = kColumns / 2;

  struct Lane {
    Accumulator* d;
    const std::uint32_t* a;    // four registers, or null: A is in shared memory
    std::uint64_t a_at, b_at;  // descriptors
    std::uint32_t metadata;
    bool accumulate;
  };
  std::array<Lane, 32> lanes;
  int warp = 0;               // of the warpgroup
  int selector = -1;          // of a sparse A; -1: dense
  bool b_by_columns = false;  // MN-major
  DType dtype = DType::kF16;

  double widen(std::uint16_t bits) const {
    if constexpr (kInt8) return static_cast<std::int8_t>(bits);
    return dtype == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
  }
  double element(std::uint32_t address) const {
    std::uint16_t bits = 0;
    std::memcpy(&bits, HostCta::current->at(address, kBytes), kBytes);
    return widen(bits);
  }
  /// Kept element c of row r of the warp.
  double a(int r, int c) const {
    if (lanes[0].a == nullptr)
      return element(layout::Descriptor::decode(lanes[0].a_at).k_major(c, 16 * warp + r, kBytes));
    const std::uint32_t word = lanes[4 * (r % 8) + c / 2 % 4].a[r / 8 + 2 * (c / 8)];
    return widen(static_cast<std::uint16_t>(word >> (16 * (c % 2))));
  }
  int column(int r, int c) const {
    if (selector < 0) return c;
    const auto at = layout::Metadata16<1>::slot({selector, r, c / 2});
    const std::uint32_t nibble = lanes[at.lane].metadata >> at.shift & 0xF;
    if (!layout::is_legal_nibble(nibble)) throw std::runtime_error("illegal metadata");
    return 4 * (c / 2) +
           (c % 2 == 0 ? layout::nibble_first(nibble) : layout::nibble_second(nibble));
  }

  void operator()() const {
    constexpr int kKept = kInt8 ? 32 : 16;
    const int depth = selector < 0 ? kKept : 2 * kKept;
    const auto b_at = layout::Descriptor::decode(lanes[0].b_at);
    std::vector<double> b(depth * kColumns);
    for (int k = 0; k < depth; ++k)
      for (int n = 0; n < kColumns; ++n)
        b[k * kColumns + n] =
            element(b_by_columns ? b_at.mn_major(k, n, kBytes) : b_at.k_major(k, n, kBytes));
    for (int r = 0; r < 16; ++r) {
      std::array<double, kColumns> sum;
      for (int n = 0; n < kColumns; ++n) {
        const Lane& lane = lanes[4 * (r % 8) + n % 8 / 2];
        sum[n] = lane.accumulate ? lane.d[n / 8 * 4 + r / 8 * 2 + n % 2] : 0;
      }
      for (int c = 0; c < kKept; ++c) {
        const double x = a(r, c);
        const double* row = &b[column(r, c) * kColumns];
        for (int n = 0; n < kColumns; ++n) sum[n] += x * row[n];
      }
      for (int n = 0; n < kColumns; ++n)
        lanes[4 * (r % 8) + n % 8 / 2].d[n / 8 * 4 + r / 8 * 2 + n % 2] =
            static_cast<Accumulator>(sum[n]);
    }
  }

  static void issue(const Lane& own, DType dtype, int selector, bool b_by_columns) {
    HostCta::current->meet<int>(own, [=](const auto& in, auto& out) {
      HostCta& cta = *HostCta::current;
      HostProduct product;
      product.lanes = in;
      product.warp = cta.thread() / 32 % 4;
      product.selector = selector;
      product.b_by_columns = b_by_columns;
      product.dtype = dtype;
      for (const Lane& lane : in)
        if (lane.b_at != in[0].b_at || lane.a_at != in[0].a_at ||
            lane.accumulate != in[0].accumulate)
          throw std::runtime_error("lanes issue different products");
      cta.issue(product);
      out.fill(0);
    });
  }
};

}  // namespace twofour::test

namespace twofour::cuda::sm90::ptx {

using namespace twofour::cuda::ptx;
using test::HostCta;
using test::host_ptx::load_shared_float;
using test::host_ptx::load_shared_uint2;
using test::host_ptx::load_shared_uint4;
using test::host_ptx::mbarrier_arrive;
using test::host_ptx::mbarrier_init;
using test::host_ptx::mbarrier_wait;
using test::host_ptx::named_barrier_any;
using test::host_ptx::named_barrier_arrive;
using test::host_ptx::named_barrier_sync;
using test::host_ptx::store_shared;

inline void fence_barrier_init() {}
inline void fence_proxy_async() {}
inline void prefetch_tensor_map(const CUtensorMap&) {}
inline bool elect_one() { return HostCta::current->lane() == 0; }
template <int kRegisters>
void setmaxnreg_inc() {}
template <int kRegisters>
void setmaxnreg_dec() {}

// ---- tensor copies

inline void mbarrier_arrive_expect_tx(std::uint32_t barrier, std::uint32_t bytes) {
  test::HostBarrier& b = test::host_ptx::barrier_at(barrier);
  b.expect(bytes);
  b.arrive();
}

/// Boxes beyond the tensor are zero there. Its rows are a swizzle width apart.
inline void copy_box(std::uint32_t to, const test::HostTensorMap& map,
                     const std::array<int, 5>& at) {
  std::array<int, 5> i{};
  for (std::uint32_t offset = 0;; offset += map.element) {
    bool inside = true;
    const std::byte* from = map.base + i[0] * map.element + std::int64_t{at[0]} * map.element;
    for (int axis = 0; axis < map.rank; ++axis) {
      inside &= at[axis] + i[axis] >= 0 && at[axis] + i[axis] < map.size[axis];
      if (axis > 0) from += (std::int64_t{at[axis]} + i[axis]) * map.stride[axis];
    }
    std::byte* here = HostCta::current->at(layout::swizzled(map.swizzle, to + offset), map.element);
    inside ? std::memcpy(here, from, map.element) : std::memset(here, 0, map.element);
    int axis = 0;
    while (axis < map.rank && ++i[axis] == map.box[axis]) i[axis++] = 0;
    if (axis == map.rank) return;
  }
}
inline void load_box(std::uint32_t to, const CUtensorMap& encoded, std::uint32_t barrier,
                     const std::array<int, 5>& at) {
  test::HostTensorMap map;
  std::memcpy(&map, &encoded, sizeof map);
  std::uint32_t bytes = map.element;
  for (int axis = 0; axis < map.rank; ++axis) bytes *= map.box[axis];
  if (map.box[0] * map.element != layout::swizzle_bytes(map.swizzle))
    throw std::runtime_error("the rows of a box are as wide as the swizzle");
  HostCta::current->later([=, &b = test::host_ptx::barrier_at(barrier)] {
    copy_box(to, map, at);
    b.complete(bytes);
  });
}
inline void tma_load(std::uint32_t to, const CUtensorMap& map, std::uint32_t barrier, int c0,
                     int c1, int c2, int c3) {
  load_box(to, map, barrier, {c0, c1, c2, c3, 0});
}
inline void tma_load(std::uint32_t to, const CUtensorMap& map, std::uint32_t barrier, int c0,
                     int c1, int c2, int c3, int c4) {
  load_box(to, map, barrier, {c0, c1, c2, c3, c4});
}

// ---- products

inline void wgmma_fence() { __syncwarp(); }
inline void wgmma_commit() {
  HostCta::current->meet<int>(0, [](const auto&, auto& out) {
    HostCta::current->commit();
    out.fill(0);
  });
}
template <int kPending>
void wgmma_wait() {
  HostCta& cta = *HostCta::current;
  cta.settle(cta.meet<std::size_t>(
      0, [](const auto&, auto& out) { out.fill(HostCta::current->due(kPending)); }));
}

template <DType kType, int kN>
struct WgmmaShared {
  template <class T>
  static void run(T (&d)[kN / 2], std::uint64_t a, std::uint64_t b, bool accumulate) {
    test::HostProduct<T, kN>::issue({d, nullptr, a, b, 0, accumulate}, kType, -1, false);
  }
};
template <DType kType, int kN>
struct WgmmaRegisters {
  static void run(float (&d)[kN / 2], const std::uint32_t* a, std::uint64_t b, bool accumulate) {
    test::HostProduct<float, kN>::issue({d, a, 0, b, 0, accumulate}, kType, -1, true);
  }
};
template <DType kType, int kN>
struct WgmmaSparseShared {
  template <int kSelector>
  static void run(float (&d)[kN / 2], std::uint64_t a, std::uint64_t b, std::uint32_t metadata,
                  bool accumulate) {
    test::HostProduct<float, kN>::issue({d, nullptr, a, b, metadata, accumulate}, kType, kSelector,
                                        false);
  }
};
template <DType kType, int kN>
struct WgmmaSparseRegisters {
  template <int kSelector>
  static void run(float (&d)[kN / 2], const std::uint32_t* a, std::uint64_t b,
                  std::uint32_t metadata) {
    test::HostProduct<float, kN>::issue({d, a, 0, b, metadata, true}, kType, kSelector, true);
  }
};

}  // namespace twofour::cuda::sm90::ptx
