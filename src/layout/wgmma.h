// Register fragments of the warpgroup-level wgmma.mma_async and wgmma.mma_async.sp instructions.
//
// Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Register Fragment" for wgmma.mma_async
// m64nNk16, m64nNk32 and its sparse forms m64nNk32, m64nNk64. Warp w of the warpgroup owns rows
// 16w .. 16w+15 and holds them as mma.sync would; lanes here count 0..127 over the warpgroup.
// B has no fragment: it is read from shared memory (layout/shared_tile.h).
#pragma once

#include "layout/fragment.h"
#include "layout/mma.h"

namespace twofour::layout {

inline constexpr int kWarpgroupLanes = 128;

/// A in registers, 64 x (256 / bits); of the sparse instructions the kept elements, as in MmaA.
template <int kBits>
struct WgmmaA {
  using Warp = MmaA<kBits>;
  static constexpr int kParts = Warp::kParts;
  static constexpr int kLanes = kWarpgroupLanes, kRegisters = 4, kRows = 64, kCols = Warp::kCols;

  static constexpr Coord coord(Slot s) {
    const Coord c = Warp::coord({s.lane % 32, s.reg, s.part});
    return {c.row + 16 * (s.lane / 32), c.col};
  }
  static constexpr Slot slot(Coord c) {
    const Slot s = Warp::slot({c.row % 16, c.col});
    return {s.lane + 32 * (c.row / 16), s.reg, s.part};
  }
};

/// The accumulator D, 64 x N: kN / 8 blocks of the mma accumulator, four registers a block.
template <int kN>
struct WgmmaD {
  static_assert(kN % 8 == 0 && kN >= 8 && kN <= 256);
  static constexpr int kParts = 1;
  static constexpr int kLanes = kWarpgroupLanes, kRegisters = kN / 2, kRows = 64, kCols = kN;

  static constexpr Coord coord(Slot s) {
    const Coord c = MmaD::coord({s.lane % 32, s.reg % 4, 0});
    return {c.row + 16 * (s.lane / 32), c.col + 8 * (s.reg / 4)};
  }
  static constexpr Slot slot(Coord c) {
    const Slot s = MmaD::slot({c.row % 16, c.col % 8});
    return {s.lane + 32 * (c.row / 16), s.reg + 4 * (c.col / 8), 0};
  }
};

static_assert(is_bijective<WgmmaA<16>>() && is_bijective<WgmmaA<8>>());
static_assert(is_bijective<WgmmaD<8>>() && is_bijective<WgmmaD<64>>());
static_assert(is_bijective<WgmmaD<96>>() && is_bijective<WgmmaD<256>>());

}  // namespace twofour::layout
