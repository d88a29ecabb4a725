// What a kernel row of sm_90 attention is made of: the template argument, the registry's key and
// the launch parameters.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>

#include "cuda/call_params.h"
#include "cuda/variants.h"
#include "layout/schedule.h"

namespace twofour::cuda::sm90 {

struct Config {
  DType dtype = DType::kF16;
  int head_dim = 128;  // what Q, K and V are padded to in shared memory: 64 or 128
  QKProduct qk = QKProduct::kExact;
  ScorePattern score = ScorePattern::kPair;
  int block = 192;  // keys in a key block
  int tile = 96;    // keys in a step: the block, or half of it
  int stages = 3;   // K and V tiles in flight, each
  bool refine = false;
  bool drop = false;
  bool turns = true;   // warpgroups issue their products in turn
  bool trace = false;  // writes what was kept, refined and dropped; never timed

  /// A step is then a unit: rows may refine or drop it by itself.
  constexpr bool decides() const { return refine || drop; }
  /// Scores of plain keys are in flight beside the values of those before, where ptxas takes it.
  constexpr bool plain_ahead() const { return !decides(); }
  /// So many keys at once.
  constexpr int plain_part() const { return plain_ahead() ? tile / 2 : tile; }
};

constexpr Config make_config(DType dtype, int head_dim, const Variant& v, bool trace) {
  Config c{dtype, head_dim, v.qk, v.score};
  c.refine = v.refine;
  c.drop = v.drop;
  c.trace = trace;
  c.block = v.score == ScorePattern::kNone ? 192 : default_block(head_dim);
  c.turns = v.qk != QKProduct::kInt8 || head_dim != 64;
  // Registers: O takes head_dim / 2, the scores of a step tile / 2 (docs/kernels/sm90.md).
  if (head_dim == 64) {
    c.tile = v.score == ScorePattern::kNone ? 96 : c.decides() ? 64 : 128;
    c.stages = c.decides() ? 6 : v.score == ScorePattern::kNone ? 5 : 4;
  } else {
    c.tile = v.score == ScorePattern::kNone ? 64 : 96;
    c.stages = v.qk == QKProduct::kInt8 || v.score == ScorePattern::kNone ? 4 : 3;
  }
  return c;
}

/// The rows of the registry, in its order. A kernel is compiled for each: its number is the
/// template argument (a structure as such an argument of a __global__ function trips nvcc with g++
/// 12).
inline constexpr int kRowCount = 8 * kVariantCount;

constexpr std::array<Config, kRowCount> make_rows() {
  std::array<Config, kRowCount> rows{};
  int n = 0;
  for (const bool trace : {false, true})
    for (const DType dtype : {DType::kF16, DType::kBF16})
      for (const int head_dim : {128, 64})
        for (const Variant& v : kVariants) rows[n++] = make_config(dtype, head_dim, v, trace);
  return rows;
}
inline constexpr std::array<Config, kRowCount> kRows = make_rows();

inline constexpr int kWarpgroups = 3;  // of consumers; each has 64 rows of the row block
inline constexpr int kThreads = 128 * (kWarpgroups + 1);
static_assert(layout::kRowBlock == 64 * kWarpgroups && layout::kUnitRows == 64);

struct Params : CallParams {
  // Boxes are a tile of keys by 64 channels, for int8 codes all channels.
  CUtensorMap k;            // {D, N, Hkv, B}
  CUtensorMap k_pair;       // {D, N - distance, 2, Hkv, B}: first keys, then their partners
  CUtensorMap v;            // {D, N, Hkv, B}
  CUtensorMap v_pair;       // {D, 2, N - distance, Hkv, B}: each key beside its partner
  std::int32_t* next_item;  // work counter, zero at the start
};

}  // namespace twofour::cuda::sm90
