// Swizzled tiles in shared memory: where a bulk tensor copy (TMA) puts an element, and where a
// wgmma matrix descriptor makes the instruction look for it.
//
// Sources: PTX ISA, "Shared Memory Matrix Layout", "Strides" and "Matrix Descriptor Format" of
// wgmma.mma_async; "Swizzling modes" of the tensor copy. Both sides are written down apart, and
// the tests prove that they meet for the tiles that attention uses.
#pragma once

#include <cstdint>

#include "layout/fragment.h"

namespace twofour::layout {

/// The numbers are the descriptor's own encoding of bits 62-63.
enum class Swizzle : std::uint8_t { kNone = 0, k128B = 1, k64B = 2, k32B = 3 };

/// Bytes of a tile row under a swizzle: 16 without one.
constexpr int swizzle_bytes(Swizzle swizzle) {
  return swizzle == Swizzle::kNone ? 16 : 256 >> static_cast<int>(swizzle);
}

/// The permutation itself: address bits 7.. are added (xor) to the 16-byte chunk number in bits
/// 4..6, as many as the row has chunks. An involution on absolute shared-memory addresses; tiles
/// start at multiples of 1024 (128B), 512 (64B) or 256 (32B) so that offsets will do.
constexpr std::uint32_t swizzled(Swizzle swizzle, std::uint32_t address) {
  const std::uint32_t chunks = static_cast<std::uint32_t>(swizzle_bytes(swizzle)) / 16 - 1;
  return address ^ ((address >> 3) & (chunks << 4));
}

/// A tile of kRows rows by kCols elements of kBits bits as TMA writes it with inner box = one
/// swizzle row: panels of swizzle_bytes columns, each kRows rows long, panel after panel.
/// `Layout` in the sense of layout/fragment.h with the 32-bit word of the tile as `lane`.
template <int kBits, int kTileRows, int kTileCols, Swizzle kSwizzle = Swizzle::k128B>
struct SharedTile {
  static constexpr int kBytes = kBits / 8;
  static constexpr int kRowBytes = swizzle_bytes(kSwizzle);
  static constexpr int kPanelBytes = kTileRows * kRowBytes;
  static constexpr int kTileBytes = kTileRows * kTileCols * kBytes;
  static constexpr int kParts = 32 / kBits, kRegisters = 1, kLanes = kTileBytes / 4;
  static constexpr int kRows = kTileRows, kCols = kTileCols;
  static_assert(kTileCols * kBytes % kRowBytes == 0 && kTileRows % 8 == 0);

  /// Byte offset of an element from the start of the tile.
  static constexpr std::uint32_t offset(Coord c) {
    const std::uint32_t byte = static_cast<std::uint32_t>(c.col * kBytes);
    return swizzled(kSwizzle, byte / kRowBytes * kPanelBytes +
                                  static_cast<std::uint32_t>(c.row * kRowBytes) + byte % kRowBytes);
  }
  static constexpr Coord coord_at(std::uint32_t offset) {
    const int flat = static_cast<int>(swizzled(kSwizzle, offset));
    return {flat % kPanelBytes / kRowBytes,
            (flat / kPanelBytes * kRowBytes + flat % kRowBytes) / kBytes};
  }

  static constexpr Slot slot(Coord c) {
    const int at = static_cast<int>(offset(c));
    return {at / 4, 0, at % 4 / kBytes};
  }
  static constexpr Coord coord(Slot s) {
    return coord_at(static_cast<std::uint32_t>(4 * s.lane + kBytes * s.part));
  }
};

/// The wgmma matrix descriptor as fields; all byte values are multiples of 16 below 2^18.
struct Descriptor {
  std::uint32_t start = 0;           // shared-memory address of the first element
  std::uint32_t leading_offset = 0;  // LBO
  std::uint32_t stride_offset = 0;   // SBO
  std::uint32_t base_offset = 0;     // 0 when the swizzle pattern starts at an aligned address
  Swizzle swizzle = Swizzle::k128B;
  friend constexpr bool operator==(const Descriptor&, const Descriptor&) = default;

  constexpr std::uint64_t encode() const {
    return std::uint64_t{(start & 0x3FFFFu) >> 4} |
           std::uint64_t{(leading_offset & 0x3FFFFu) >> 4} << 16 |
           std::uint64_t{(stride_offset & 0x3FFFFu) >> 4} << 32 |
           std::uint64_t{base_offset & 7u} << 49 |
           std::uint64_t{static_cast<std::uint8_t>(swizzle)} << 62;
  }
  static constexpr Descriptor decode(std::uint64_t bits) {
    const auto field = [bits](int shift) {
      return static_cast<std::uint32_t>((bits >> shift) & 0x3FFFu) << 4;
    };
    return {field(0), field(16), field(32), static_cast<std::uint32_t>((bits >> 49) & 7u),
            static_cast<Swizzle>((bits >> 62) & 3u)};
  }

  /// Address of element (k, n) of a K-major B (k fastest in memory), k within one instruction.
  /// Rows of one swizzle width, eight to a group; SBO is the step to the next eight n. Without a
  /// swizzle LBO is the step to the next 16 bytes along k.
  constexpr std::uint32_t k_major(int k, int n, int bytes) const {
    const std::uint32_t width = static_cast<std::uint32_t>(swizzle_bytes(swizzle));
    const std::uint32_t along = static_cast<std::uint32_t>(k * bytes);
    const std::uint32_t inside =
        swizzle == Swizzle::kNone ? along / 16 * leading_offset + along % 16 : along;
    return swizzled(swizzle, start + static_cast<std::uint32_t>(n / 8) * stride_offset +
                                 static_cast<std::uint32_t>(n % 8) * width + inside);
  }

  /// Address of element (k, n) of an MN-major B (n fastest in memory; 16-bit types only). One
  /// swizzle width of n in a row, eight k to a group; SBO is the step to the next eight k and LBO
  /// the step to the next swizzle width of n. Not defined here without a swizzle.
  constexpr std::uint32_t mn_major(int k, int n, int bytes) const {
    const std::uint32_t width = static_cast<std::uint32_t>(swizzle_bytes(swizzle));
    const std::uint32_t along = static_cast<std::uint32_t>(n * bytes);
    return swizzled(swizzle, start + static_cast<std::uint32_t>(k / 8) * stride_offset +
                                 static_cast<std::uint32_t>(k % 8) * width +
                                 along / width * leading_offset + along % width);
  }
};

/// Descriptor of B = Kᵀ for k-step `step`: tile rows are keys (n), tile columns channels (k), and a
/// step covers kStep channels. It moves inside the swizzle row, then from panel to panel.
template <class Tile, int kStep>
constexpr Descriptor k_major_descriptor(std::uint32_t tile_start, int step, Swizzle swizzle) {
  const int byte = step * kStep * Tile::kBytes;
  static_assert(Tile::kRowBytes % (kStep * Tile::kBytes) == 0);
  return {tile_start + static_cast<std::uint32_t>(byte / Tile::kRowBytes * Tile::kPanelBytes +
                                                  byte % Tile::kRowBytes),
          0, 8 * Tile::kRowBytes, 0, swizzle};
}

/// Descriptor of B = V for k-step `step`: tile rows are keys (k), tile columns channels (n), and a
/// step covers kStep keys.
template <class Tile, int kStep>
constexpr Descriptor mn_major_descriptor(std::uint32_t tile_start, int step, Swizzle swizzle) {
  static_assert(kStep % 8 == 0);
  return {tile_start + static_cast<std::uint32_t>(step * kStep * Tile::kRowBytes),
          Tile::kPanelBytes, 8 * Tile::kRowBytes, 0, swizzle};
}

static_assert(is_bijective<SharedTile<16, 64, 64>>() && is_bijective<SharedTile<16, 96, 128>>());
static_assert(is_bijective<SharedTile<8, 64, 128>>());
static_assert(is_bijective<SharedTile<8, 64, 64, Swizzle::k64B>>());
static_assert(is_bijective<SharedTile<16, 64, 16, Swizzle::k32B>>());

}  // namespace twofour::layout
