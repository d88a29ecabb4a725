// One product, sparse or dense, 16 or 8 bits, warp or warpgroup: fragments become matrices through
// src/layout, metadata decides the column of each kept element, and the rest is a plain sum.
#include "ref/mma_sp.h"

#include <cstddef>
#include <cstring>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/half.h"
#include "layout/metadata.h"
#include "layout/mma.h"
#include "layout/wgmma.h"

namespace twofour::ref {
namespace {

Status invalid(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }

/// fp16 and bf16 widen to double, s8 to int64: sums of products are then exact or nearly so.
struct Half {
  using Wide = double;
  using Accumulator = float;
  static constexpr int kBits = 16;
  DType dtype;
  Wide widen(std::uint32_t bits) const {
    const auto half = static_cast<std::uint16_t>(bits);
    return dtype == DType::kF16 ? f16_to_f32(half) : bf16_to_f32(half);
  }
  static Accumulator narrow(Wide sum) { return static_cast<float>(sum); }
};
struct Byte {
  using Wide = std::int64_t;
  using Accumulator = std::int32_t;
  static constexpr int kBits = 8;
  Wide widen(std::uint32_t bits) const { return static_cast<std::int8_t>(bits); }
  static Accumulator narrow(Wide sum) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(sum));
  }
};

Status check_dtype(DType dtype) {
  if (dtype == DType::kF16 || dtype == DType::kBF16) return {};
  return invalid(std::string("mma operands must be fp16 or bf16, got ") + to_string(dtype));
}

/// A row-major matrix of widened elements.
template <class Wide>
struct Matrix {
  int rows = 0, cols = 0;
  std::vector<Wide> data;  // [rows,cols]
  Matrix(int r, int c) : rows(r), cols(c), data(static_cast<std::size_t>(r) * c) {}
  Wide& at(int r, int c) { return data[static_cast<std::size_t>(r) * cols + c]; }
  Wide at(int r, int c) const { return data[static_cast<std::size_t>(r) * cols + c]; }
};

template <class Layout, class Element, class Registers>
Matrix<typename Element::Wide> unpack(const Registers& registers, Element element) {
  Matrix<typename Element::Wide> out(Layout::kRows, Layout::kCols);
  for (int lane = 0; lane < Layout::kLanes; ++lane)
    for (int reg = 0; reg < Layout::kRegisters; ++reg)
      for (int part = 0; part < Layout::kParts; ++part) {
        const layout::Coord c = Layout::coord({lane, reg, part});
        const std::uint32_t word = registers[lane][reg];
        out.at(c.row, c.col) = element.widen(layout::get_part<Element::kBits>(word, part));
      }
  return out;
}

/// Which k each kept element of A multiplies: kept element c of row r, [rows,kept].
Matrix<int> dense_columns(int rows, int kept) {
  Matrix<int> out(rows, kept);
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < kept; ++c) out.at(r, c) = c;
  return out;
}

template <class Layout, std::size_t kWords>
Result<Matrix<int>> sparse_columns(const std::array<std::uint32_t, kWords>& metadata,
                                   int selector) {
  if (selector < 0 || selector >= Layout::kSelectors)
    return invalid("sparsity selector must be in 0.." + std::to_string(Layout::kSelectors - 1) +
                   ", got " + std::to_string(selector));
  Matrix<int> out(Layout::kRows, 2 * Layout::kGroups);
  for (int row = 0; row < Layout::kRows; ++row)
    for (int group = 0; group < Layout::kGroups; ++group) {
      const layout::MetadataSlot at = Layout::slot({selector, row, group});
      const std::uint32_t nibble = (metadata[at.lane] >> at.shift) & 0xFu;
      if (!layout::is_legal_nibble(nibble))
        return invalid("metadata must hold one of 4 8 9 12 13 14 in every nibble, got " +
                       std::to_string(nibble) + " in lane " + std::to_string(at.lane) + " bits " +
                       std::to_string(at.shift) + ".." + std::to_string(at.shift + 3) + " (row " +
                       std::to_string(row) + ", group " + std::to_string(group) + ")");
      out.at(row, 2 * group) = 4 * group + layout::nibble_first(nibble);
      out.at(row, 2 * group + 1) = 4 * group + layout::nibble_second(nibble);
    }
  return out;
}

/// addend + sum over kept elements, for one element of D.
template <class Element>
typename Element::Accumulator dot(const Matrix<typename Element::Wide>& a,
                                  const Matrix<int>& columns,
                                  const Matrix<typename Element::Wide>& b, int row, int col,
                                  typename Element::Accumulator addend) {
  typename Element::Wide sum = addend;
  for (int c = 0; c < a.cols; ++c) sum += a.at(row, c) * b.at(columns.at(row, c), col);
  return Element::narrow(sum);
}

template <class Element, class A, class B, class D>
void warp_product(D& d, const A& a, const B& b, const D& c, const Matrix<int>& columns,
                  Element element) {
  using LayoutA = layout::MmaA<Element::kBits>;
  constexpr int kRegistersB = std::tuple_size_v<typename B::value_type>;
  using LayoutB = layout::MmaB<Element::kBits, kRegistersB * 4 * (32 / Element::kBits)>;
  const auto matrix_a = unpack<LayoutA>(a, element);
  const auto matrix_b = unpack<LayoutB>(b, element);
  D out{};
  for (int lane = 0; lane < 32; ++lane)
    for (int reg = 0; reg < 4; ++reg) {
      const layout::Coord at = layout::MmaD::coord({lane, reg, 0});
      out[lane][reg] = dot<Element>(matrix_a, columns, matrix_b, at.row, at.col, c[lane][reg]);
    }
  d = out;  // last, so that d may be c
}

/// Reads B, K x N, out of shared memory as the descriptor says.
template <class Element>
Result<Matrix<typename Element::Wide>> read_shared(const SharedOperand& b, int k, int n,
                                                   Element element) {
  const auto descriptor = layout::Descriptor::decode(b.descriptor);
  constexpr int kBytes = Element::kBits / 8;
  if (descriptor.base_offset != 0)
    return invalid("matrix base offset must be 0 (tiles start where the swizzle repeats), got " +
                   std::to_string(descriptor.base_offset));
  if (b.mn_major && (kBytes != 2 || descriptor.swizzle == layout::Swizzle::kNone))
    return invalid("an MN-major B must be 16-bit and swizzled");
  Matrix<typename Element::Wide> out(k, n);
  for (int i = 0; i < k; ++i)
    for (int j = 0; j < n; ++j) {
      const std::uint32_t at =
          b.mn_major ? descriptor.mn_major(i, j, kBytes) : descriptor.k_major(i, j, kBytes);
      if (at + kBytes > b.memory.size())
        return invalid("descriptor must stay inside " + std::to_string(b.memory.size()) +
                       " bytes of shared memory, element (k " + std::to_string(i) + ", n " +
                       std::to_string(j) + ") is at " + std::to_string(at));
      std::uint16_t bits = 0;
      std::memcpy(&bits, b.memory.data() + at, kBytes);
      out.at(i, j) = element.widen(bits);
    }
  return out;
}

template <class Element>
Status warpgroup_product(std::span<typename Element::Accumulator> d,
                         const Lanes<std::uint32_t, 4, 128>& a, const SharedOperand& b, int k,
                         const Matrix<int>& columns, bool scale_d, Element element) {
  const std::size_t registers = d.size() / 128;
  const int n = static_cast<int>(2 * registers);
  if (d.size() % 128 != 0 || registers < 4 || registers > 128 || n % 8 != 0)
    return invalid("wgmma N must be a multiple of 8 in 8..256 with 64 accumulators for each, got " +
                   std::to_string(d.size()) + " accumulators");
  // The integer form has every multiple of 8 up to 32, above that only those of 16.
  if (std::is_same_v<Element, Byte> && n > 32 && n % 16 != 0)
    return invalid("wgmma s8 needs N a multiple of 16 above 32, got " + std::to_string(n));
  const auto matrix_b = read_shared<Element>(b, k, n, element);
  if (!matrix_b.ok()) return matrix_b.status();
  const auto matrix_a = unpack<layout::WgmmaA<Element::kBits>>(a, element);
  for (int lane = 0; lane < 128; ++lane)
    for (std::size_t reg = 0; reg < registers; ++reg) {
      // N is only known here; the largest accumulator's layout begins with every smaller one.
      const layout::Coord at = layout::WgmmaD<256>::coord({lane, static_cast<int>(reg), 0});
      auto& value = d[lane * registers + reg];
      value = dot<Element>(matrix_a, columns, *matrix_b, at.row, at.col, scale_d ? value : 0);
    }
  return {};
}

}  // namespace

Status mma_m16n8k16(Lanes<float, 4>& d, const Lanes<std::uint32_t, 4>& a,
                    const Lanes<std::uint32_t, 2>& b, const Lanes<float, 4>& c, DType dtype) {
  if (Status status = check_dtype(dtype); !status.ok()) return status;
  warp_product(d, a, b, c, dense_columns(16, 16), Half{dtype});
  return {};
}

Status mma_m16n8k32_s8(Lanes<std::int32_t, 4>& d, const Lanes<std::uint32_t, 4>& a,
                       const Lanes<std::uint32_t, 2>& b, const Lanes<std::int32_t, 4>& c) {
  warp_product(d, a, b, c, dense_columns(16, 32), Byte{});
  return {};
}

Status mma_sp_m16n8k32(Lanes<float, 4>& d, const Lanes<std::uint32_t, 4>& a,
                       const Lanes<std::uint32_t, 4>& b, const Lanes<float, 4>& c,
                       const Metadata& metadata, int selector, DType dtype) {
  if (Status status = check_dtype(dtype); !status.ok()) return status;
  const auto columns = sparse_columns<layout::Metadata16<1>>(metadata, selector);
  if (!columns.ok()) return columns.status();
  warp_product(d, a, b, c, *columns, Half{dtype});
  return {};
}

Status mma_sp_m16n8k64_s8(Lanes<std::int32_t, 4>& d, const Lanes<std::uint32_t, 4>& a,
                          const Lanes<std::uint32_t, 4>& b, const Lanes<std::int32_t, 4>& c,
                          const Metadata& metadata, int selector) {
  const auto columns = sparse_columns<layout::Metadata8<1>>(metadata, selector);
  if (!columns.ok()) return columns.status();
  warp_product(d, a, b, c, *columns, Byte{});
  return {};
}

Status wgmma_m64k16(std::span<float> d, const Lanes<std::uint32_t, 4, 128>& a,
                    const SharedOperand& b, bool scale_d, DType dtype) {
  if (Status status = check_dtype(dtype); !status.ok()) return status;
  return warpgroup_product(d, a, b, 16, dense_columns(64, 16), scale_d, Half{dtype});
}

Status wgmma_m64k32_s8(std::span<std::int32_t> d, const Lanes<std::uint32_t, 4, 128>& a,
                       const SharedOperand& b, bool scale_d) {
  return warpgroup_product(d, a, b, 32, dense_columns(64, 32), scale_d, Byte{});
}

Status wgmma_sp_m64k32(std::span<float> d, const Lanes<std::uint32_t, 4, 128>& a,
                       const SharedOperand& b, const WarpgroupMetadata& metadata, int selector,
                       bool scale_d, DType dtype) {
  if (Status status = check_dtype(dtype); !status.ok()) return status;
  const auto columns = sparse_columns<layout::Metadata16<4>>(metadata, selector);
  if (!columns.ok()) return columns.status();
  return warpgroup_product(d, a, b, 32, *columns, scale_d, Half{dtype});
}

}  // namespace twofour::ref
