// What a kernel row of sm_80 attention is made of: the template argument, the registry's key and
// the launch parameters.
#pragma once

#include <array>
#include <cstdint>

#include "cuda/call_params.h"
#include "cuda/variants.h"
#include "layout/schedule.h"

namespace twofour::cuda::sm80 {

struct Config {
  DType dtype = DType::kF16;
  int head_dim = 128;  // what Q, K and V are padded to in shared memory: 64, 96 or 128
  QKProduct qk = QKProduct::kExact;
  ScorePattern score = ScorePattern::kPair;
  int block = 192;    // keys in a key block
  int tile = 96;      // keys in a step, which is a stage of shared memory
  int chunk = 32;     // keys whose scores a warp holds at once
  int row_tiles = 2;  // of 16 rows, of a warp: each fragment of K and V is used so many times
  int warps = 8;
  bool ahead = true;  // scores of a chunk are issued before the values of the one before
  bool refine = false;
  bool drop = false;
  bool trace = false;  // writes what was kept, refined and dropped; never timed

  /// A step is then a unit: rows may refine or drop it by itself.
  constexpr bool decides() const { return refine || drop; }
  constexpr int rows() const { return 16 * row_tiles * warps; }
  constexpr int threads() const { return 32 * warps; }
  constexpr int warps_of_unit() const { return 4 / row_tiles; }

  friend constexpr bool operator==(const Config&, const Config&) = default;
};

constexpr bool is_int8(const Config& c) { return c.qk == QKProduct::kInt8; }
constexpr bool is_nm24(const Config& c) { return c.qk == QKProduct::kNm24; }
/// Channels of a key's int8 codes (prepare/keys.h).
constexpr int code_width(const Config& c) { return c.head_dim == 64 ? 64 : 128; }
constexpr bool prunes_scores(const Config& c) { return c.score != ScorePattern::kNone; }

constexpr Config make_config(DType dtype, int head_dim, const Variant& v, bool trace) {
  Config c{dtype, head_dim, v.qk, v.score};
  c.refine = v.refine;
  c.drop = v.drop;
  c.trace = trace;
  c.block = v.score == ScorePattern::kNone ? 192 : default_block(head_dim);
  // Registers: O takes head_dim, the scores of a chunk `chunk` of them; q too where it is half of
  // what it was (docs/kernels/sm80.md).
  if (head_dim == 64) {
    c.tile = c.decides() ? 64 : v.score == ScorePattern::kNone ? 96 : 128;
    c.chunk = c.decides() ? 64 : 32;
  } else {
    // All of q is read again for every chunk.
    const bool wide = v.qk == QKProduct::kExact && v.score == ScorePattern::kPair && !c.decides();
    c.tile = wide ? 64 : 96;
    c.chunk = wide ? 64 : 32;
    c.ahead = !wide || head_dim == 96;
  }
  return c;
}

/// The rows of the registry, in its order. A kernel is compiled for each: its number is the
/// template argument (a structure as such an argument of a __global__ function trips nvcc with g++
/// 12).
inline constexpr int kHeadDims[] = {128, 96, 64};
inline constexpr int kRowCount = 12 * kVariantCount;

constexpr std::array<Config, kRowCount> make_rows() {
  std::array<Config, kRowCount> rows{};
  int n = 0;
  for (const bool trace : {false, true})
    for (const DType dtype : {DType::kF16, DType::kBF16})
      for (const int head_dim : kHeadDims)
        for (const Variant& v : kVariants) rows[n++] = make_config(dtype, head_dim, v, trace);
  return rows;
}
inline constexpr std::array<Config, kRowCount> kRows = make_rows();

struct Params : CallParams {
  Rows k, v;   // k of int8: its codes
  int stages;  // of shared memory
};

}  // namespace twofour::cuda::sm80
