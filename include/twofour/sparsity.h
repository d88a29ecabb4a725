// What is pruned, as one value with one canonical string.
//
// The string stands beside every speed and every quality figure: "int8/pair192/s1/l0".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "twofour/status.h"

namespace TWOFOUR_API twofour {

/// How a score is computed in pruned blocks (int8: in every block).
enum class QKProduct : std::uint8_t {
  kExact,  // all channels, input precision
  kNm24,   // two of every four channels of the transformed query, by w_d * |q'_d|
  kInt8,   // K centred and quantised per key block, Q per row
};

/// Which scores of a pruned block survive. B is the block length.
enum class ScorePattern : std::uint8_t {
  kNone,          // all
  kPair,          // of keys j and j + B/2 the larger
  kNm24Strided,   // of j, j + B/4, j + B/2, j + 3B/4 two
  kNm24Adjacent,  // of 4j .. 4j+3 two
};

/// The five presets of the documentation.
enum class Mode : std::uint8_t { kDense, kScore, kInt8, kDual, kRefined };

struct Sparsity {
  QKProduct qk = QKProduct::kExact;
  ScorePattern score = ScorePattern::kNone;
  int block = 0;                // keys in a key block; 0: 128 for head_dim <= 64, else 192
  int sink_blocks = 0;          // first live key blocks of a row block that stay plain
  int local_blocks = 0;         // key blocks below the lowest diagonal one that stay plain
  std::optional<float> refine;  // nats: recompute a unit whose maximum is >= m - refine
  std::optional<float> drop;    // nats: skip a unit whose every maximum is < m - drop

  /// True when no pruned block can differ from a plain one.
  bool is_dense() const {
    return qk == QKProduct::kExact && score == ScorePattern::kNone && !drop.has_value();
  }
  friend bool operator==(const Sparsity&, const Sparsity&) = default;
};

/// The preset of a mode. `block` stays 0 (chosen by head_dim).
Sparsity preset(Mode mode);

/// "dense", "score", "int8", "dual", "refined".
const char* to_string(Mode mode);
const char* to_string(QKProduct qk);          // "exact", "nm24", "int8"
const char* to_string(ScorePattern pattern);  // "none", "pair", "nm24_strided", "nm24_adjacent"
Result<Mode> parse_mode(std::string_view text);

/// The key block length used for this head_dim when the caller chose none.
constexpr int default_block(std::int64_t head_dim) { return head_dim <= 64 ? 128 : 192; }

/// The same sparsity with `block` filled in.
Sparsity resolved(Sparsity sparsity, std::int64_t head_dim);

/// Canonical string: qk "/" pattern block "/s" sink "/l" local ["/r" refine] ["/d" drop], for
/// example "nm24/pair128/s1/l1/r2"; "exact/none" for dense. Numbers are printed shortest.
/// With block 0 the number is left out: "nm24/pair/s1/l1/r2".
std::string to_string(const Sparsity& sparsity);

/// Reads a mode name or a canonical string; "/" parts after the pattern are optional and may come
/// in any order, once each. Error kInvalidArgument names the part that was not understood.
Result<Sparsity> parse_sparsity(std::string_view text);

/// kOk, or kInvalidArgument saying which field is out of range: block a multiple of 64 in 64..512
/// or 0; sink_blocks, local_blocks >= 0; refine only with nm24; refine, drop finite and >= 0;
/// refine and drop only with patterns closed under half-blocks (not nm24_strided).
Status validate(const Sparsity& sparsity);

}  // namespace twofour
