// The instructions of the mma.sync kernel on the host. Included before it: `ptx` of namespace
// cuda::sm80 is found before cuda::ptx. Products are those of the emulator of src/ref.
#pragma once

#include "host_cta.h"
#include "ref/mma_sp.h"

namespace twofour::cuda::sm80::ptx {

using namespace twofour::cuda::ptx;
using test::HostCta;
using test::host_ptx::load_shared_float;
using test::host_ptx::load_shared_uint2;
using test::host_ptx::load_shared_uint4;
using test::host_ptx::mbarrier_arrive;
using test::host_ptx::mbarrier_init;
using test::host_ptx::mbarrier_wait;
using test::host_ptx::named_barrier_any;
using test::host_ptx::store_shared;

inline void cp_async(std::uint32_t destination, const void* source, bool inside) {
  HostCta::current->copy(destination, source, inside);
}
inline void cp_async_arrive(std::uint32_t barrier) {
  HostCta::current->after_copies([&b = test::host_ptx::barrier_at(barrier)] { b.arrive(); });
}

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

}  // namespace twofour::cuda::sm80::ptx
