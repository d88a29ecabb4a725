// Pair-pruned scores without moving values: how the accumulator of S = Q Kᵀ becomes the sparse A
// operand of P V inside one thread.
//
// The key tile is a half-block (docs/semantics.md, rule 2): row r < T/2 of the tile is a key of the
// block's first half and row r + T/2 its partner, B/2 keys later. Both sit in the same thread of
// the accumulator, T/4 registers apart. The larger of the two is a kept element of A, which of the
// two it was is one bit of metadata, and V is read in the order first, partner, first, partner, so
// that two neighbouring pairs are one 2:4 group: nibble bits 0-1 are 0 or 1, bits 2-3 are 2 or 3.
#pragma once

#include <array>
#include <cstdint>

#include "layout/metadata.h"
#include "layout/wgmma.h"

namespace twofour::layout {

/// True when of two paired scores the second (the higher key) is kept: rule 4 with ties to the
/// lower key, -0 equal to +0 and NaN largest. The sign of first - second alone would be wrong for
/// (-0, +0), equal infinities and NaN.
constexpr bool keeps_second(float first, float second) {
  const bool first_is_nan = first != first;
  return !first_is_nan && (second != second || second > first);
}

/// Metadata of one 2:4 group made of two pairs.
constexpr std::uint32_t pair_nibble(bool second_of_pair0, bool second_of_pair1) {
  return encode_nibble(second_of_pair0, 2 + second_of_pair1);
}

/// Key of a block of `block` keys that row `row` of the tile of half-block `half` holds.
constexpr int half_block_key(int half, int row, int block) {
  const int quarter = block / 4;
  return half * quarter + row % quarter + row / quarter * (block / 2);
}

/// An element of the A operand: k-step, register and half of it; the lane stays the same.
struct PairTarget {
  int step = 0;
  int reg = 0;
  int part = 0;
  friend constexpr bool operator==(const PairTarget&, const PairTarget&) = default;
};

/// The layout of one tile of kTile keys (half a key block; a multiple of 32).
template <int kTile>
struct PairTile {
  static_assert(kTile % 32 == 0 && kTile <= 256);
  static constexpr int kDistance = kTile / 2;      // tile rows between partners
  static constexpr int kBlocks = kTile / 16;       // accumulator n-blocks of first keys
  static constexpr int kSteps = kTile / 32;        // sparse products of 32 keys, 16 kept
  static constexpr int kWords = (kSteps + 1) / 2;  // metadata registers of a thread
  static constexpr int kPartner = 4 * kBlocks;     // accumulator registers between partners

  /// Row of the pair-ordered V tile that holds tile key `key`: 2r + h for key r + h * distance.
  static constexpr int v_row(int key) { return 2 * (key % kDistance) + key / kDistance; }
  static constexpr int v_key(int row) { return row / 2 + row % 2 * kDistance; }

  /// The place in A that accumulator register `reg` < kPartner, pruned with its partner, becomes:
  /// registers 2i and 2i + 1 are the two halves of one A register.
  static constexpr PairTarget target(int reg) {
    const int block = reg / 4;
    return {block / 2, 2 * (block % 2) + reg / 2 % 2, reg % 2};
  }

  /// Metadata register and selector of a k-step: two steps share a register.
  static constexpr int word_of_step(int step) { return step / 2; }
  static constexpr int selector_of_step(int step) { return step % 2; }

  /// Before the exchange a lane holds the nibbles of its own pairs: of n-block b and row half h
  /// (0: row g, 1: row g + 8) in word b / 4 at bits 16h + 4 (b % 4).
  static constexpr int own_word(int block) { return block / 4; }
  static constexpr int own_shift(int block, int row_half) {
    return 16 * row_half + 4 * (block % 4);
  }
};

/// After the exchange lane t of a quad must hold, in word w, the nibbles of all four lanes for
/// n-block 4w + t, lane t' at bits 16h + 4t': a 4 x 4 transposition of nibbles in each half-word.
/// It takes two exchanges, with lane ^ 1 (nibbles) and lane ^ 2 (bytes), and each exchange moves
/// half of a word, so that two words share one shuffle:
///   r = shuffle_xor(exchange_send(lane, 1, w), 1); w = exchange_receive(lane, 1, w, r);
///   r = shuffle_xor(exchange_send(lane, 2, w), 2); w = exchange_receive(lane, 2, w, r);
struct WordPair {
  std::uint32_t lo = 0;
  std::uint32_t hi = 0;
  friend constexpr bool operator==(const WordPair&, const WordPair&) = default;
};

constexpr std::uint32_t exchange_mask(int distance) {
  return distance == 1 ? 0x0F0F0F0Fu : 0x00FF00FFu;
}

/// What a lane gives to lane ^ distance: the odd fields of both words when its own bit is even,
/// else the even ones; those of `lo` in the even fields, those of `hi` in the odd.
constexpr std::uint32_t exchange_send(int lane, int distance, WordPair w) {
  const std::uint32_t even = exchange_mask(distance);
  const int shift = 4 * distance;
  return lane & distance ? (w.lo & even) | ((w.hi & even) << shift)
                         : ((w.lo >> shift) & even) | (w.hi & ~even);
}

constexpr WordPair exchange_receive(int lane, int distance, WordPair w, std::uint32_t received) {
  const std::uint32_t even = exchange_mask(distance);
  const int shift = 4 * distance;
  if (lane & distance)
    return {(w.lo & ~even) | (received & even), (w.hi & ~even) | ((received >> shift) & even)};
  return {(w.lo & even) | ((received & even) << shift), (w.hi & even) | (received & ~even)};
}

/// The whole exchange for the four lanes of a quad.
constexpr std::array<WordPair, 4> exchange_quad(std::array<WordPair, 4> words) {
  for (int distance = 1; distance <= 2; distance *= 2) {
    std::array<WordPair, 4> next{};
    for (int lane = 0; lane < 4; ++lane) {
      const int other = lane ^ distance;
      next[lane] = exchange_receive(lane, distance, words[lane],
                                    exchange_send(other, distance, words[other]));
    }
    words = next;
  }
  return words;
}

/// Every nibble of eight words, each marked in turn, lands where the metadata layout wants it.
constexpr bool exchange_is_transposition() {
  for (int lane = 0; lane < 4; ++lane)
    for (int block = 0; block < 8; ++block)
      for (int half = 0; half < 2; ++half) {
        std::array<WordPair, 4> words{};
        std::uint32_t& own = block < 4 ? words[lane].lo : words[lane].hi;
        own = 0xFu << PairTile<128>::own_shift(block, half);
        words = exchange_quad(words);
        // Where the instruction of k-step block / 2 looks for the group this nibble describes:
        // four groups an n-block, group `lane` of them.
        const int step = block / 2;
        const MetadataSlot want = Metadata16<>::slot(
            {PairTile<128>::selector_of_step(step), 8 * half, 4 * (block % 2) + lane});
        for (int t = 0; t < 4; ++t)
          for (int word = 0; word < 2; ++word) {
            const bool here = t == want.lane && word == PairTile<128>::word_of_step(step);
            if ((word ? words[t].hi : words[t].lo) != (here ? 0xFu << want.shift : 0u))
              return false;
          }
      }
  return true;
}
static_assert(exchange_is_transposition());

/// The claim of this page, for every accumulator register: it and its partner hold keys r and
/// r + distance of one row; the kept one becomes the element of A at that row whose group covers
/// exactly the V rows of those keys.
template <int kTile>
constexpr bool pair_tile_is_consistent() {
  using Tile = PairTile<kTile>;
  using D = WgmmaD<kTile>;
  for (int lane = 0; lane < kWarpgroupLanes; ++lane)
    for (int reg = 0; reg < Tile::kPartner; ++reg) {
      const Coord first = D::coord(Slot{lane, reg, 0});
      const Coord second = D::coord(Slot{lane, reg + Tile::kPartner, 0});
      if (second != Coord{first.row, first.col + Tile::kDistance}) return false;
      const PairTarget to = Tile::target(reg);
      const Coord kept = WgmmaA<16>::coord(Slot{lane, to.reg, to.part});
      if (kept.row != first.row) return false;
      // Kept column c of the step is pair c % 2 of group c / 2: V rows 32 step + 2c and 2c + 1.
      const int row = 32 * to.step + 2 * kept.col;
      if (Tile::v_row(first.col) != row || Tile::v_row(second.col) != row + 1) return false;
      if (Tile::v_key(row) != first.col || Tile::v_key(row + 1) != second.col) return false;
    }
  return true;
}
static_assert(pair_tile_is_consistent<64>() && pair_tile_is_consistent<96>());
static_assert(pair_tile_is_consistent<128>() && pair_tile_is_consistent<32>());

/// v_row and v_key are inverse over the tile.
template <int kTile>
constexpr bool v_order_round_trips() {
  for (int key = 0; key < kTile; ++key) {
    const int row = PairTile<kTile>::v_row(key);
    if (row < 0 || row >= kTile || PairTile<kTile>::v_key(row) != key) return false;
  }
  return true;
}
static_assert(v_order_round_trips<64>() && v_order_round_trips<96>() && v_order_round_trips<128>());

}  // namespace twofour::layout
