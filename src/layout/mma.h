// Register fragments of the warp-level mma.sync and mma.sp instructions.
//
// Sources: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type", "... for
// mma.m16n8k32", and for the sparse forms "Matrix Fragments for sparse mma.m16n8k32 with .f16 and
// .bf16 types", "... for sparse mma.m16n8k64 with .u8/.s8/.e4m3/.e5m2 type". All of them are one
// formula in P = 32 / bits, the elements of a register.
//
//   instruction                 A (kept)     B       C, D
//   mma    m16n8k16 16-bit      16 x 16      16 x 8  16 x 8
//   mma    m16n8k32  8-bit      16 x 32      32 x 8  16 x 8
//   mma.sp m16n8k32 16-bit      16 x 16      32 x 8  16 x 8
//   mma.sp m16n8k64  8-bit      16 x 32      64 x 8  16 x 8
#pragma once

#include "layout/fragment.h"

namespace twofour::layout {

/// A, M x K, four registers. Of the sparse instructions the kept elements: column c of the
/// fragment is kept element c % 2 of the group of four columns 4 * (c / 2) .. 4 * (c / 2) + 3.
template <int kBits>
struct MmaA {
  static_assert(kBits == 16 || kBits == 8);
  static constexpr int kParts = 32 / kBits;
  static constexpr int kLanes = 32, kRegisters = 4, kRows = 16, kCols = 8 * kParts;

  static constexpr Coord coord(Slot s) {
    return {group_of(s.lane) + 8 * (s.reg & 1),
            kParts * quad_lane(s.lane) + s.part + 4 * kParts * (s.reg >> 1)};
  }
  static constexpr Slot slot(Coord c) {
    return {4 * (c.row % 8) + c.col / kParts % 4, c.row / 8 + 2 * (c.col / (4 * kParts)),
            c.col % kParts};
  }
};

/// B, K x N ("col" operand): row is k, column is n.
template <int kBits, int kK>
struct MmaB {
  static_assert(kBits == 16 || kBits == 8);
  static constexpr int kParts = 32 / kBits;
  static constexpr int kLanes = 32, kRegisters = kK / (4 * kParts), kRows = kK, kCols = 8;

  static constexpr Coord coord(Slot s) {
    return {kParts * quad_lane(s.lane) + s.part + 4 * kParts * s.reg, group_of(s.lane)};
  }
  static constexpr Slot slot(Coord c) {
    return {4 * c.col + c.row / kParts % 4, c.row / (4 * kParts), c.row % kParts};
  }
};

/// C and D, M x N, one 32-bit accumulator (fp32 or s32) a register.
struct MmaD {
  static constexpr int kParts = 1;
  static constexpr int kLanes = 32, kRegisters = 4, kRows = 16, kCols = 8;

  static constexpr Coord coord(Slot s) {
    return {group_of(s.lane) + 8 * (s.reg >> 1), 2 * quad_lane(s.lane) + (s.reg & 1)};
  }
  static constexpr Slot slot(Coord c) {
    return {4 * (c.row % 8) + c.col / 2, 2 * (c.row / 8) + c.col % 2, 0};
  }
};

static_assert(is_bijective<MmaA<16>>() && is_bijective<MmaA<8>>());
static_assert(is_bijective<MmaB<16, 16>>() && is_bijective<MmaB<16, 32>>());
static_assert(is_bijective<MmaB<8, 32>>() && is_bijective<MmaB<8, 64>>());
static_assert(is_bijective<MmaD>());
static_assert(MmaB<16, 16>::kRegisters == 2 && MmaB<16, 32>::kRegisters == 4);
static_assert(MmaB<8, 32>::kRegisters == 2 && MmaB<8, 64>::kRegisters == 4);

}  // namespace twofour::layout
