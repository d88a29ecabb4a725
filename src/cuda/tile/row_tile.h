// Rows of Q, K or V in shared memory for ldmatrix: which bank group a 16-byte chunk of a row is in.
//
// Eight rows are read at once, a chunk of each. No two of them share a bank group when they are
// eight in a row (K, and V of a dense product), nor when they are four in a row and the four at
// half the tile from them (V in pair order, src/layout/pair_scores.h).
#pragma once

#include <cstdint>

namespace twofour::cuda::tile {

/// `kPairs`: rows at half the tile are read together with the first ones.
template <int kPitchBytes, int kTileRows, bool kPairs = true>
struct RowTile {
  static_assert(kPitchBytes % 64 == 0 && kTileRows % 16 == 0);
  static constexpr int kPitch = kPitchBytes;
  static constexpr int kRows = kTileRows;
  static constexpr int kBytes = kPitchBytes * kTileRows;
  /// Bits of the chunk number that are permuted. Rows of an odd number of 64 bytes begin in two
  /// bank groups by themselves.
  static constexpr int kMask = kPitchBytes % 128 == 0 ? 7 : 3;

  /// What the chunk number of a row is xored with; `row` may be any of the same remainder modulo 8
  /// in the same half.
  static constexpr int permutation(int row, bool second_half) {
    return kMask == 7 ? (row & 7) ^ (second_half ? 4 : 0)
                      : ((row >> 1) & 3) ^ (second_half ? 2 : 0);
  }
  static constexpr int permutation(int row) {
    return permutation(row, kPairs && row >= kTileRows / 2);
  }

  /// Byte offset of 16-byte chunk `chunk` of a row from the start of the tile, which is a multiple
  /// of 128.
  static constexpr std::uint32_t offset(int row, int chunk) {
    return static_cast<std::uint32_t>(row * kPitch + ((chunk ^ permutation(row)) << 4));
  }

  /// `at` is the offset of a chunk whose number has no bits of `chunk`: the chunk further by it.
  static constexpr std::uint32_t further(std::uint32_t at, int chunk) {
    return (at ^ static_cast<std::uint32_t>((chunk & kMask) << 4)) +
           static_cast<std::uint32_t>((chunk & ~kMask) << 4);
  }
};

/// True when eight rows of a matrix, `first` rows in a row and the others half the tile further,
/// are in eight bank groups.
template <class Tile>
constexpr bool reads_without_conflict(int row, int together, int chunk) {
  unsigned groups = 0;
  for (int i = 0; i < 8; ++i) {
    const int r = row + i % together + i / together * (Tile::kRows / 2);
    groups |= 1u << Tile::offset(r, chunk) / 16 % 8;
  }
  return groups == 0xFF;
}
template <class Tile>
constexpr bool reads_without_conflict() {
  for (int row = 0; row + 8 <= Tile::kRows; row += 8)
    for (int chunk = 0; chunk < Tile::kPitch / 16; ++chunk)
      if (!reads_without_conflict<Tile>(row, 8, chunk)) return false;
  for (int row = 0; row + 4 <= Tile::kRows / 2; row += 4)
    for (int chunk = 0; chunk < Tile::kPitch / 16; ++chunk)
      if (!reads_without_conflict<Tile>(row, 4, chunk)) return false;
  return true;
}
static_assert(
    reads_without_conflict<RowTile<256, 96>>() && reads_without_conflict<RowTile<256, 64>>() &&
    reads_without_conflict<RowTile<192, 96>>() && reads_without_conflict<RowTile<192, 64>>() &&
    reads_without_conflict<RowTile<128, 64>>() && reads_without_conflict<RowTile<128, 128>>() &&
    reads_without_conflict<RowTile<128, 96>>() && reads_without_conflict<RowTile<64, 64>>());

}  // namespace twofour::cuda::tile
