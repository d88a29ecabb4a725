// 2:4 metadata: which two of four elements a sparse A keeps, and where the instruction looks.
//
// Sources: PTX ISA, "Sparse matrix storage" of mma.sp and of wgmma.mma_async.sp, and the metadata
// figures of "Matrix Fragments for sparse mma.m16n8k32 with .f16 and .bf16 types" and "... sparse
// mma.m16n8k64 with .u8/.s8/.e4m3/.e5m2 type". wgmma.sp uses the same words, one warp per 16 rows.
// Always for the ::ordered_metadata form of mma.sp: the kept indices ascend.
#pragma once

#include <array>
#include <cstdint>

#include "layout/fragment.h"

namespace twofour::layout {

/// The six legal values of four bits of metadata, in ascending order of the kept index pair:
/// low two bits the first kept index of the group, high two bits the second, first < second.
inline constexpr std::array<std::uint32_t, 6> kLegalNibbles = {0x4, 0x8, 0xC, 0x9, 0xD, 0xE};

constexpr int nibble_first(std::uint32_t nibble) { return static_cast<int>(nibble & 3u); }
constexpr int nibble_second(std::uint32_t nibble) { return static_cast<int>((nibble >> 2) & 3u); }

/// Equal indices are invalid for every form of mma.sp; descending ones for ::ordered_metadata.
constexpr bool is_legal_nibble(std::uint32_t nibble) {
  return nibble < 16 && nibble_first(nibble) < nibble_second(nibble);
}

/// Metadata of a group that keeps elements `first` and `second`. Precondition: 0 <= first <
/// second <= 3.
constexpr std::uint32_t encode_nibble(int first, int second) {
  return static_cast<std::uint32_t>(first | (second << 2));
}

/// Metadata of a group whose kept elements are the set bits of `mask`; groups with fewer than two
/// kept are filled up with the lowest free elements (whose value is then zero).
/// Precondition: at most two of the low four bits are set.
constexpr std::uint32_t nibble_of_mask(unsigned mask) {
  int kept[2] = {0, 0};
  int count = 0;
  for (int i = 0; i < 4; ++i) count += (mask >> i) & 1u;
  for (int i = 0; count < 2; ++i)
    if (!((mask >> i) & 1u)) {
      mask |= 1u << i;
      ++count;
    }
  for (int i = 0, n = 0; i < 4 && n < 2; ++i)
    if ((mask >> i) & 1u) kept[n++] = i;
  return encode_nibble(kept[0], kept[1]);
}

/// The kept elements of a legal nibble as a bit mask.
constexpr unsigned mask_of_nibble(std::uint32_t nibble) {
  return (1u << nibble_first(nibble)) | (1u << nibble_second(nibble));
}

/// Where the nibble of a group sits: bits shift .. shift+3 of the metadata register of `lane`.
struct MetadataSlot {
  int lane = 0;
  int shift = 0;
  friend constexpr bool operator==(const MetadataSlot&, const MetadataSlot&) = default;
};

/// The group that a nibble describes: columns 4 * group .. 4 * group + 3 of `row` of the product
/// issued with this sparsity selector.
struct MetadataGroup {
  int selector = 0;
  int row = 0;
  int group = 0;
  friend constexpr bool operator==(const MetadataGroup&, const MetadataGroup&) = default;
};

/// 16-bit types, m16n8k32 and (kWarps = 4) m64nNk32: 8 groups a row. Selector s reads lanes 2s and
/// 2s+1 of each quad, so that one register serves two products. The first of the two lanes covers
/// columns 0..15, the second 16..31; bits 0..15 are row g, bits 16..31 row g + 8.
template <int kWarps = 1>
struct Metadata16 {
  static constexpr int kLanes = 32 * kWarps, kSelectors = 2, kRows = 16 * kWarps, kGroups = 8;

  static constexpr MetadataSlot slot(MetadataGroup g) {
    return {32 * (g.row / 16) + 4 * (g.row % 8) + 2 * g.selector + g.group / 4,
            16 * (g.row / 8 % 2) + 4 * (g.group % 4)};
  }
  static constexpr MetadataGroup group(MetadataSlot s) {
    return {quad_lane(s.lane) / 2, 16 * (s.lane / 32) + group_of(s.lane) + 8 * (s.shift / 16),
            4 * (s.lane % 2) + s.shift % 16 / 4};
  }
};

/// 8-bit types, m16n8k64 and (kWarps = 4) m64nNk64: 16 groups a row, every lane contributes and
/// the selector is 0. Lane t of a quad covers row g + 8 * (t % 2), columns 32 * (t / 2) .. + 31.
template <int kWarps = 1>
struct Metadata8 {
  static constexpr int kLanes = 32 * kWarps, kSelectors = 1, kRows = 16 * kWarps, kGroups = 16;

  static constexpr MetadataSlot slot(MetadataGroup g) {
    return {32 * (g.row / 16) + 4 * (g.row % 8) + g.row / 8 % 2 + 2 * (g.group / 8),
            4 * (g.group % 8)};
  }
  static constexpr MetadataGroup group(MetadataSlot s) {
    return {0, 16 * (s.lane / 32) + group_of(s.lane) + 8 * (s.lane % 2),
            8 * (quad_lane(s.lane) / 2) + s.shift / 4};
  }
};

/// True when slot() and group() are inverse over every nibble of the warp's registers.
template <class Metadata>
constexpr bool is_bijective_metadata() {
  if (Metadata::kLanes * 8 != Metadata::kSelectors * Metadata::kRows * Metadata::kGroups)
    return false;
  for (int lane = 0; lane < Metadata::kLanes; ++lane)
    for (int shift = 0; shift < 32; shift += 4) {
      const MetadataGroup g = Metadata::group({lane, shift});
      const bool inside = g.selector >= 0 && g.selector < Metadata::kSelectors && g.row >= 0 &&
                          g.row < Metadata::kRows && g.group >= 0 && g.group < Metadata::kGroups;
      if (!inside || Metadata::slot(g) != MetadataSlot{lane, shift}) return false;
    }
  return true;
}

static_assert(is_bijective_metadata<Metadata16<1>>() && is_bijective_metadata<Metadata16<4>>());
static_assert(is_bijective_metadata<Metadata8<1>>() && is_bijective_metadata<Metadata8<4>>());

/// Encoding and decoding agree on all sixteen values, and exactly six are legal.
constexpr bool nibbles_round_trip() {
  unsigned legal = 0;
  for (std::uint32_t nibble = 0; nibble < 16; ++nibble) {
    if (!is_legal_nibble(nibble)) continue;
    if (kLegalNibbles[legal++] == 0) return false;
    if (encode_nibble(nibble_first(nibble), nibble_second(nibble)) != nibble) return false;
    if (nibble_of_mask(mask_of_nibble(nibble)) != nibble) return false;
  }
  for (std::uint32_t nibble : kLegalNibbles)
    if (!is_legal_nibble(nibble)) return false;
  return legal == kLegalNibbles.size();
}
static_assert(nibbles_round_trip());

}  // namespace twofour::layout
