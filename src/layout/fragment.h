// Where a matrix element sits in the registers of a warp or warpgroup: the vocabulary shared by
// the mma and wgmma layouts, and the proof that each of them is a bijection.
//
// A layout is a type with kLanes, kRegisters, kParts, kRows, kCols and two constexpr functions,
// coord(Slot) and slot(Coord), inverse to each other. docs/layouts/ draws every one.
#pragma once

#include <cstdint>

namespace twofour::layout {

/// One element's place in registers. Lanes count over the warp, or over the four warps of a
/// warpgroup; `part` counts elements inside a 32-bit register from its low bits.
struct Slot {
  int lane = 0;
  int reg = 0;
  int part = 0;
  friend constexpr bool operator==(const Slot&, const Slot&) = default;
};

/// Row and column of a matrix element.
struct Coord {
  int row = 0;
  int col = 0;
  friend constexpr bool operator==(const Coord&, const Coord&) = default;
};

/// The PTX ISA's names for the halves of a lane number: groupID and threadID_in_group.
constexpr int group_of(int lane) { return (lane & 31) >> 2; }
constexpr int quad_lane(int lane) { return lane & 3; }

/// True when coord() and slot() are inverse over the whole of both domains.
template <class Layout>
constexpr bool is_bijective() {
  if (Layout::kLanes * Layout::kRegisters * Layout::kParts != Layout::kRows * Layout::kCols)
    return false;
  for (int lane = 0; lane < Layout::kLanes; ++lane)
    for (int reg = 0; reg < Layout::kRegisters; ++reg)
      for (int part = 0; part < Layout::kParts; ++part) {
        const Slot slot{lane, reg, part};
        const Coord coord = Layout::coord(slot);
        const bool inside = coord.row >= 0 && coord.row < Layout::kRows && coord.col >= 0 &&
                            coord.col < Layout::kCols;
        // Injective by the round trip; onto because both domains have the same size.
        if (!inside || Layout::slot(coord) != slot) return false;
      }
  return true;
}

/// Element `part` of a register holding 32 / kBits elements, without sign extension.
template <int kBits>
constexpr std::uint32_t get_part(std::uint32_t word, int part) {
  return (word >> (part * kBits)) & ((std::uint32_t{1} << kBits) - 1);
}

/// `word` with element `part` replaced.
template <int kBits>
constexpr std::uint32_t set_part(std::uint32_t word, int part, std::uint32_t value) {
  const std::uint32_t mask = ((std::uint32_t{1} << kBits) - 1) << (part * kBits);
  return (word & ~mask) | ((value << (part * kBits)) & mask);
}

}  // namespace twofour::layout
