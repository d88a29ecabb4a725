// The emulated Tensor Core instructions against plain matrix products.
//
// Elements are small integers, which fp16, bf16, s8 and every partial sum hold exactly, so that
// results are compared bit by bit and one misplaced element cannot hide in a tolerance.
#include "ref/mma_sp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/half.h"
#include "layout/metadata.h"
#include "layout/mma.h"
#include "layout/wgmma.h"

namespace twofour::ref {
namespace {

struct Matrix {
  int rows = 0, cols = 0;
  std::vector<int> data;  // [rows,cols]
  Matrix(int r, int c) : rows(r), cols(c), data(static_cast<std::size_t>(r) * c) {}
  int& at(int r, int c) { return data[static_cast<std::size_t>(r) * cols + c]; }
  int at(int r, int c) const { return data[static_cast<std::size_t>(r) * cols + c]; }
};

Matrix random_matrix(int rows, int cols, std::mt19937& random, int limit) {
  Matrix out(rows, cols);
  std::uniform_int_distribution<int> value(-limit, limit);
  for (int& x : out.data) x = value(random);
  return out;
}

std::uint32_t f16(int value) { return f32_to_f16(static_cast<float>(value)); }
std::uint32_t bf16(int value) { return f32_to_bf16(static_cast<float>(value)); }
std::uint32_t s8(int value) { return static_cast<std::uint8_t>(value); }
using Encode = std::uint32_t (*)(int);

Encode encoder(DType dtype) { return dtype == DType::kF16 ? f16 : bf16; }

/// The registers of a fragment that holds `matrix`.
template <class Layout, int kBits>
auto pack(const Matrix& matrix, Encode encode) {
  EXPECT_EQ(matrix.rows, Layout::kRows);
  EXPECT_EQ(matrix.cols, Layout::kCols);
  Lanes<std::uint32_t, Layout::kRegisters, Layout::kLanes> out{};
  for (int r = 0; r < matrix.rows; ++r)
    for (int c = 0; c < matrix.cols; ++c) {
      const layout::Slot s = Layout::slot({r, c});
      std::uint32_t& word = out[s.lane][s.reg];
      word = layout::set_part<kBits>(word, s.part, encode(matrix.at(r, c)));
    }
  return out;
}

template <class T>
Lanes<T, 4> pack_accumulator(const Matrix& matrix) {
  Lanes<T, 4> out{};
  for (int r = 0; r < 16; ++r)
    for (int c = 0; c < 8; ++c) {
      const layout::Slot s = layout::MmaD::slot({r, c});
      out[s.lane][s.reg] = static_cast<T>(matrix.at(r, c));
    }
  return out;
}

template <class T>
void expect_accumulator(const Lanes<T, 4>& d, const Matrix& want) {
  for (int r = 0; r < 16; ++r)
    for (int c = 0; c < 8; ++c) {
      const layout::Slot s = layout::MmaD::slot({r, c});
      ASSERT_EQ(d[s.lane][s.reg], static_cast<T>(want.at(r, c))) << "row " << r << " col " << c;
    }
}

Matrix product(const Matrix& a, const Matrix& b, const Matrix& c) {
  Matrix out = c;
  for (int i = 0; i < a.rows; ++i)
    for (int j = 0; j < b.cols; ++j)
      for (int k = 0; k < a.cols; ++k) out.at(i, j) += a.at(i, k) * b.at(k, j);
  return out;
}

/// A 2:4 sparse matrix with its compressed form.
struct Sparse {
  Matrix full, kept;
  std::vector<std::uint32_t> nibbles;  // [rows, groups]
  Sparse(int rows, int cols)
      : full(rows, cols),
        kept(rows, cols / 2),
        nibbles(static_cast<std::size_t>(rows) * cols / 4) {}
  int groups() const { return full.cols / 4; }
};

/// Prunes a random matrix; `choose(row, group)` names which of the six nibbles a group keeps.
template <class Choose>
Sparse random_sparse(int rows, int cols, std::mt19937& random, int limit, Choose choose) {
  Sparse out(rows, cols);
  const Matrix dense = random_matrix(rows, cols, random, limit);
  for (int r = 0; r < rows; ++r)
    for (int g = 0; g < out.groups(); ++g) {
      const std::uint32_t nibble = layout::kLegalNibbles[choose(r, g) % 6];
      out.nibbles[static_cast<std::size_t>(r) * out.groups() + g] = nibble;
      const int index[2] = {layout::nibble_first(nibble), layout::nibble_second(nibble)};
      for (int i = 0; i < 2; ++i) {
        const int value = dense.at(r, 4 * g + index[i]);
        out.full.at(r, 4 * g + index[i]) = value;
        out.kept.at(r, 2 * g + i) = value;
      }
    }
  return out;
}

/// Adds the metadata of `a` for one selector to the words of a warp or warpgroup.
template <class Layout, std::size_t kWords>
void add_metadata(std::array<std::uint32_t, kWords>& words, const Sparse& a, int selector) {
  for (int r = 0; r < Layout::kRows; ++r)
    for (int g = 0; g < Layout::kGroups; ++g) {
      const layout::MetadataSlot s = Layout::slot({selector, r, g});
      const auto at = static_cast<std::size_t>(r) * Layout::kGroups + g;
      words[s.lane] = (words[s.lane] & ~(0xFu << s.shift)) | (a.nibbles[at] << s.shift);
    }
}

class HalfType : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Mma, HalfType, testing::Values(DType::kF16, DType::kBF16),
                         [](const auto& each) { return std::string(to_string(each.param)); });

TEST_P(HalfType, DenseM16n8k16) {
  std::mt19937 random(1);
  const Encode encode = encoder(GetParam());
  for (int trial = 0; trial < 20; ++trial) {
    const Matrix a = random_matrix(16, 16, random, 15), b = random_matrix(16, 8, random, 15);
    const Matrix c = random_matrix(16, 8, random, 1000);
    Lanes<float, 4> d{};
    ASSERT_TRUE(mma_m16n8k16(d, pack<layout::MmaA<16>, 16>(a, encode),
                             pack<layout::MmaB<16, 16>, 16>(b, encode), pack_accumulator<float>(c),
                             GetParam())
                    .ok());
    ASSERT_NO_FATAL_FAILURE(expect_accumulator(d, product(a, b, c)));
  }
}

TEST_P(HalfType, SparseM16n8k32WithBothSelectors) {
  std::mt19937 random(2);
  const Encode encode = encoder(GetParam());
  const auto any = [&](int, int) { return static_cast<int>(random() % 6); };
  for (int trial = 0; trial < 20; ++trial) {
    // Two products share one metadata register, as in a kernel.
    const Sparse a[2] = {random_sparse(16, 32, random, 15, any),
                         random_sparse(16, 32, random, 15, any)};
    Metadata metadata{};
    for (int s = 0; s < 2; ++s) add_metadata<layout::Metadata16<1>>(metadata, a[s], s);
    for (int s = 0; s < 2; ++s) {
      const Matrix b = random_matrix(32, 8, random, 15), c = random_matrix(16, 8, random, 1000);
      Lanes<float, 4> d = pack_accumulator<float>(c);
      ASSERT_TRUE(mma_sp_m16n8k32(d, pack<layout::MmaA<16>, 16>(a[s].kept, encode),
                                  pack<layout::MmaB<16, 32>, 16>(b, encode), d, metadata, s,
                                  GetParam())
                      .ok());
      ASSERT_NO_FATAL_FAILURE(expect_accumulator(d, product(a[s].full, b, c)));
    }
  }
}

TEST(MmaSp, EveryNibbleInEveryGroup) {
  std::mt19937 random(3);
  for (int first = 0; first < 6; ++first) {
    // Over the six trials every (row, group) meets every nibble.
    const Sparse a =
        random_sparse(16, 32, random, 15, [&](int r, int g) { return first + r + 3 * g; });
    const Matrix b = random_matrix(32, 8, random, 15), zero(16, 8);
    for (int selector = 0; selector < 2; ++selector) {
      Metadata metadata{};  // the lanes of the other selector hold zero, which is not legal
      add_metadata<layout::Metadata16<1>>(metadata, a, selector);
      Lanes<float, 4> d{};
      ASSERT_TRUE(mma_sp_m16n8k32(d, pack<layout::MmaA<16>, 16>(a.kept, f16),
                                  pack<layout::MmaB<16, 32>, 16>(b, f16), {}, metadata, selector,
                                  DType::kF16)
                      .ok());
      ASSERT_NO_FATAL_FAILURE(expect_accumulator(d, product(a.full, b, zero)));
      EXPECT_FALSE(mma_sp_m16n8k32(d, {}, {}, {}, metadata, 1 - selector, DType::kF16).ok());
    }
  }
}

TEST(MmaSp, DenseAndSparseS8) {
  std::mt19937 random(4);
  const auto any = [&](int, int) { return static_cast<int>(random() % 6); };
  for (int trial = 0; trial < 20; ++trial) {
    const Matrix c = random_matrix(16, 8, random, 100000);
    const Matrix a = random_matrix(16, 32, random, 127), b = random_matrix(32, 8, random, 127);
    Lanes<std::int32_t, 4> d{};
    ASSERT_TRUE(mma_m16n8k32_s8(d, pack<layout::MmaA<8>, 8>(a, s8),
                                pack<layout::MmaB<8, 32>, 8>(b, s8),
                                pack_accumulator<std::int32_t>(c))
                    .ok());
    ASSERT_NO_FATAL_FAILURE(expect_accumulator(d, product(a, b, c)));

    const Sparse sparse = random_sparse(16, 64, random, 127, any);
    const Matrix wide_b = random_matrix(64, 8, random, 127);
    Metadata metadata{};
    add_metadata<layout::Metadata8<1>>(metadata, sparse, 0);
    ASSERT_TRUE(mma_sp_m16n8k64_s8(d, pack<layout::MmaA<8>, 8>(sparse.kept, s8),
                                   pack<layout::MmaB<8, 64>, 8>(wide_b, s8),
                                   pack_accumulator<std::int32_t>(c), metadata, 0)
                    .ok());
    ASSERT_NO_FATAL_FAILURE(expect_accumulator(d, product(sparse.full, wide_b, c)));
  }
}

TEST(MmaSp, S8SumsWrap) {
  Matrix a(16, 32), b(32, 8);
  a.at(3, 5) = 127;
  b.at(5, 2) = 127;
  Lanes<std::int32_t, 4> c{};
  for (auto& lane : c) lane.fill(std::numeric_limits<std::int32_t>::max());
  ASSERT_TRUE(
      mma_m16n8k32_s8(c, pack<layout::MmaA<8>, 8>(a, s8), pack<layout::MmaB<8, 32>, 8>(b, s8), c)
          .ok());
  const layout::Slot s = layout::MmaD::slot({3, 2});
  EXPECT_EQ(c[s.lane][s.reg], std::numeric_limits<std::int32_t>::min() + 127 * 127 - 1);
}

TEST(MmaSp, NonFiniteValuesSpreadOverTheirRowOnly) {
  Matrix b(16, 8);
  for (int& x : b.data) x = 1;
  auto a = pack<layout::MmaA<16>, 16>(Matrix(16, 16), f16);
  const layout::Slot s = layout::MmaA<16>::slot({9, 4});
  a[s.lane][s.reg] = layout::set_part<16>(a[s.lane][s.reg], s.part, 0x7E00);  // NaN
  Lanes<float, 4> d{};
  ASSERT_TRUE(mma_m16n8k16(d, a, pack<layout::MmaB<16, 16>, 16>(b, f16), {}, DType::kF16).ok());
  for (int r = 0; r < 16; ++r)
    for (int c = 0; c < 8; ++c) {
      const layout::Slot at = layout::MmaD::slot({r, c});
      EXPECT_EQ(std::isnan(d[at.lane][at.reg]), r == 9);
    }
}

TEST(MmaSp, IllegalMetadataIsAnErrorThatNamesThePlaceAndWritesNothing) {
  Metadata good{};
  good.fill(0x44444444u);
  Lanes<float, 4> d{};
  for (auto& lane : d) lane.fill(7.0f);
  const Lanes<float, 4> before = d;
  for (std::uint32_t nibble = 0; nibble < 16; ++nibble) {
    Metadata metadata = good;
    metadata[13] = (metadata[13] & ~0xF00u) | (nibble << 8);
    const Status status = mma_sp_m16n8k32(d, {}, {}, {}, metadata, 0, DType::kF16);
    if (layout::is_legal_nibble(nibble)) {
      EXPECT_TRUE(status.ok());
      d = before;
      continue;
    }
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    // Lane 13 is lane 1 of quad 3: row 3, columns 16 onwards.
    EXPECT_NE(status.message().find("lane 13 bits 8..11 (row 3, group 6)"), std::string::npos)
        << status.message();
    EXPECT_EQ(d, before);
    // The same word is not read through the other selector, and is by the 8-bit form.
    EXPECT_TRUE(mma_sp_m16n8k32(d, {}, {}, {}, metadata, 1, DType::kF16).ok());
    d = before;
    Lanes<std::int32_t, 4> integers{};
    EXPECT_FALSE(mma_sp_m16n8k64_s8(integers, {}, {}, {}, metadata, 0).ok());
  }
}

TEST(MmaSp, SelectorsAndTypesOutOfRangeAreErrors) {
  Metadata metadata{};
  metadata.fill(0x44444444u);
  Lanes<float, 4> d{};
  Lanes<std::int32_t, 4> integers{};
  for (int selector : {-1, 2, 3})
    EXPECT_EQ(mma_sp_m16n8k32(d, {}, {}, {}, metadata, selector, DType::kF16).code(),
              Code::kInvalidArgument);
  EXPECT_TRUE(mma_sp_m16n8k64_s8(integers, {}, {}, {}, metadata, 0).ok());
  EXPECT_EQ(mma_sp_m16n8k64_s8(integers, {}, {}, {}, metadata, 1).code(), Code::kInvalidArgument);
  EXPECT_EQ(mma_m16n8k16(d, {}, {}, {}, DType::kF32).code(), Code::kInvalidArgument);
  EXPECT_EQ(mma_sp_m16n8k32(d, {}, {}, {}, metadata, 0, DType::kI8).code(), Code::kInvalidArgument);
}

/// A shared memory with one tile at `start`, written as a tensor copy would write it.
template <class Tile>
std::vector<std::byte> shared_memory(const Matrix& tile, Encode encode, std::uint32_t start) {
  std::vector<std::byte> memory(start + Tile::kTileBytes);
  for (int r = 0; r < Tile::kRows; ++r)
    for (int c = 0; c < Tile::kCols; ++c) {
      const std::uint32_t bits = encode(tile.at(r, c));  // little-endian: the low bytes come first
      std::memcpy(memory.data() + start + Tile::offset({r, c}), &bits, Tile::kBytes);
    }
  return memory;
}

template <int kN, class T>
void expect_warpgroup(const std::vector<T>& d, const Matrix& want) {
  for (int r = 0; r < 64; ++r)
    for (int c = 0; c < kN; ++c) {
      const layout::Slot s = layout::WgmmaD<kN>::slot({r, c});
      ASSERT_EQ(d[static_cast<std::size_t>(s.lane) * (kN / 2) + s.reg], T(want.at(r, c)))
          << "row " << r << " col " << c;
    }
}

Matrix columns(const Matrix& m, int begin, int count) {
  Matrix out(m.rows, count);
  for (int r = 0; r < m.rows; ++r)
    for (int c = 0; c < count; ++c) out.at(r, c) = m.at(r, begin + c);
  return out;
}

// S = Q Kᵀ over head_dim 128 and 96 keys: dense 16-bit, K in shared memory, eight k-steps.
TEST_P(HalfType, WgmmaDenseKMajor) {
  using Tile = layout::SharedTile<16, 96, 128>;
  std::mt19937 random(5);
  const Encode encode = encoder(GetParam());
  const Matrix q = random_matrix(64, 128, random, 15), k = random_matrix(96, 128, random, 15);
  const auto memory = shared_memory<Tile>(k, encode, 2048);
  std::vector<float> d(64 * 96, 99.0f);  // overwritten: scale_d is false in the first step
  for (int step = 0; step < 8; ++step) {
    const auto b = layout::k_major_descriptor<Tile, 16>(2048, step, layout::Swizzle::k128B);
    ASSERT_TRUE(wgmma_m64k16(d, pack<layout::WgmmaA<16>, 16>(columns(q, 16 * step, 16), encode),
                             {memory, b.encode(), false}, step > 0, GetParam())
                    .ok());
  }
  Matrix want(64, 96);
  for (int i = 0; i < 64; ++i)
    for (int j = 0; j < 96; ++j)
      for (int c = 0; c < 128; ++c) want.at(i, j) += q.at(i, c) * k.at(j, c);
  expect_warpgroup<96>(d, want);
}

// The same with Q pruned 2:4, two k-steps to a metadata register.
TEST_P(HalfType, WgmmaSparseKMajor) {
  using Tile = layout::SharedTile<16, 64, 128>;
  std::mt19937 random(6);
  const Encode encode = encoder(GetParam());
  const Matrix k = random_matrix(64, 128, random, 15);
  const auto memory = shared_memory<Tile>(k, encode, 1024);
  Matrix want(64, 64);
  std::vector<float> d(64 * 64);
  WarpgroupMetadata metadata{};
  std::vector<Sparse> q;
  for (int step = 0; step < 4; ++step) {
    q.push_back(random_sparse(64, 32, random, 15,
                              [&](int, int) { return static_cast<int>(random() % 6); }));
    for (int i = 0; i < 64; ++i)
      for (int j = 0; j < 64; ++j)
        for (int c = 0; c < 32; ++c)
          want.at(i, j) += q[step].full.at(i, c) * k.at(j, 32 * step + c);
  }
  for (int step = 0; step < 4; ++step) {
    add_metadata<layout::Metadata16<4>>(metadata, q[step], step % 2);
    const auto b = layout::k_major_descriptor<Tile, 32>(1024, step, layout::Swizzle::k128B);
    ASSERT_TRUE(wgmma_sp_m64k32(d, pack<layout::WgmmaA<16>, 16>(q[step].kept, encode),
                                {memory, b.encode(), false}, metadata, step % 2, step > 0,
                                GetParam())
                    .ok());
  }
  expect_warpgroup<64>(d, want);
}

TEST(Wgmma, S8KMajorWithBothSwizzles) {
  std::mt19937 random(7);
  const Matrix q = random_matrix(64, 128, random, 127);
  const auto check = [&]<class Tile>(Tile, layout::Swizzle swizzle) {
    const Matrix k = random_matrix(96, Tile::kCols, random, 127);
    const auto memory = shared_memory<Tile>(k, s8, 0);
    std::vector<std::int32_t> d(64 * 96);
    Matrix want(64, 96);
    for (int step = 0; step < Tile::kCols / 32; ++step)
      ASSERT_TRUE(
          wgmma_m64k32_s8(
              d, pack<layout::WgmmaA<8>, 8>(columns(q, 32 * step, 32), s8),
              {memory, layout::k_major_descriptor<Tile, 32>(0, step, swizzle).encode(), false},
              step > 0)
              .ok());
    for (int i = 0; i < 64; ++i)
      for (int j = 0; j < 96; ++j)
        for (int c = 0; c < Tile::kCols; ++c) want.at(i, j) += q.at(i, c) * k.at(j, c);
    expect_warpgroup<96>(d, want);
  };
  check(layout::SharedTile<8, 96, 128>{}, layout::Swizzle::k128B);
  check(layout::SharedTile<8, 96, 64, layout::Swizzle::k64B>{}, layout::Swizzle::k64B);
}

TEST(Wgmma, BadOperandsAreErrorsAndWriteNothing) {
  using Tile = layout::SharedTile<16, 64, 64>;
  const std::vector<std::byte> memory(Tile::kTileBytes);
  const std::uint64_t good =
      layout::k_major_descriptor<Tile, 16>(0, 0, layout::Swizzle::k128B).encode();
  std::vector<float> d(64 * 64, 7.0f);
  const std::vector<float> before = d;
  const Lanes<std::uint32_t, 4, 128> a{};
  const auto code = [&](std::span<float> out, const SharedOperand& b) {
    return wgmma_m64k16(out, a, b, true, DType::kF16).code();
  };
  EXPECT_EQ(code(d, {memory, good, false}), Code::kOk);
  EXPECT_EQ(d, before);
  // N of 4, of 264, not a whole number; a tile that ends early; a pattern that starts elsewhere.
  std::vector<float> big(64 * 264);
  EXPECT_EQ(code(std::span(d).first(64 * 4), {memory, good, false}), Code::kInvalidArgument);
  EXPECT_EQ(code(big, {memory, good, false}), Code::kInvalidArgument);
  EXPECT_EQ(code(std::span(d).first(64 * 64 - 1), {memory, good, false}), Code::kInvalidArgument);
  EXPECT_EQ(code(d, {std::span(memory).first(memory.size() - 1), good, false}),
            Code::kInvalidArgument);
  EXPECT_EQ(code(d, {memory, good | 1ull << 49, false}), Code::kInvalidArgument);
  EXPECT_EQ(code(d, {memory, good & ~(3ull << 62), true}), Code::kInvalidArgument);
  std::vector<std::int32_t> integers(64 * 40);
  EXPECT_EQ(wgmma_m64k32_s8(integers, a, {memory, good, false}, false).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(
      wgmma_m64k32_s8(std::span(integers).first(64 * 8), a, {memory, good, true}, false).code(),
      Code::kInvalidArgument);
  WarpgroupMetadata metadata{};
  metadata.fill(0x44444444u);
  metadata[64] = 0x44544444u;
  const Status status =
      wgmma_sp_m64k32(d, a, {memory, good, false}, metadata, 0, true, DType::kF16);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("lane 64 bits 20..23 (row 40, group 1)"), std::string::npos)
      << status.message();
  EXPECT_EQ(d, before);
}

}  // namespace
}  // namespace twofour::ref
