// The drawings of docs/layouts/ are printed from the headers that they explain, so that they cannot
// go stale: each page holds `<!-- drawing: name -->` before a fenced block, which must be what this
// file renders. To write them anew: TWOFOUR_UPDATE_DOCS=1 test_layout_docs.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "layout/bitmap_tile.h"
#include "layout/metadata.h"
#include "layout/mma.h"
#include "layout/pair_scores.h"
#include "layout/schedule.h"
#include "layout/shared_tile.h"
#include "layout/wgmma.h"

namespace twofour::layout {
namespace {

std::string pad(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

/// A table whose columns are as wide as their widest cell; trailing blanks are cut.
std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> width;
  for (const auto& row : rows)
    for (std::size_t c = 0; c < row.size(); ++c) {
      if (c == width.size()) width.push_back(0);
      width[c] = std::max(width[c], row[c].size());
    }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) line += pad(row[c], width[c] + 2);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

template <class... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

std::string range(int begin, int count) {
  return count == 1 ? cat(begin) : cat(begin, "-", begin + count - 1);
}

/// A fragment as its matrix: cell "T5 r2" is register 2 of lane 5, which holds `along` neighbours,
/// side by side in a row, or with `down` one below the other. Rows from `first` on, `rows` of them.
template <class Layout>
std::string fragment(int along, bool down, int first, int rows, const std::string& corner,
                     int registers_a_cell = 1) {
  std::vector<std::vector<std::string>> out{{corner}};
  const int row_step = down ? along : 1, col_step = down ? 1 : along;
  for (int c = 0; c < Layout::kCols; c += col_step) out[0].push_back(range(c, col_step));
  for (int r = first; r < first + rows; r += row_step) {
    std::vector<std::string> line{range(r, row_step)};
    for (int c = 0; c < Layout::kCols; c += col_step) {
      const Slot s = Layout::slot(Coord{r, c});
      line.push_back(cat("T", s.lane, " r", range(s.reg, registers_a_cell)));
    }
    out.push_back(line);
  }
  return table(out);
}

template <class Metadata>
std::string metadata_words(int lanes) {
  std::vector<std::vector<std::string>> out{{"lane", "selector"}};
  for (int shift = 28; shift >= 0; shift -= 4) out[0].push_back(cat("bits ", range(shift, 4)));
  for (int lane = 0; lane < lanes; ++lane) {
    std::vector<std::string> line{cat("T", lane), cat(Metadata::group({lane, 0}).selector)};
    for (int shift = 28; shift >= 0; shift -= 4) {
      const MetadataGroup g = Metadata::group({lane, shift});
      line.push_back(cat("r", g.row, " k", range(4 * g.group, 4)));
    }
    out.push_back(line);
  }
  return table(out);
}

std::string nibbles() {
  std::vector<std::vector<std::string>> out{{"nibble", "bits", "keeps"}};
  for (std::uint32_t nibble : kLegalNibbles) {
    std::string bits, keeps;
    for (int b = 3; b >= 0; --b) bits += (nibble >> b) & 1u ? '1' : '0';
    for (int k = 0; k < 4; ++k) keeps += (mask_of_nibble(nibble) >> k) & 1u ? 'x' : '.';
    out.push_back({cat("0x", "0123456789ABCDEF"[nibble]), bits, keeps});
  }
  return table(out);
}

/// Which 16-byte chunk of a tile row lies at each place of it.
std::string swizzle_pattern(Swizzle swizzle, int rows) {
  const int width = swizzle_bytes(swizzle), chunks = width / 16;
  std::vector<std::vector<std::string>> out{{"row \\ byte"}};
  for (int place = 0; place < chunks; ++place) out[0].push_back(range(16 * place, 16));
  for (int row = 0; row < rows; ++row) {
    std::vector<std::string> line{cat(row)};
    for (int place = 0; place < chunks; ++place) {
      const auto at = static_cast<std::uint32_t>(row * width + 16 * place);
      line.push_back(cat("c", swizzled(swizzle, at) % width / 16));
    }
    out.push_back(line);
  }
  return table(out);
}

/// What lane 1 of a warp does with row g of a 64-key tile: registers, keys, A, V rows, metadata.
std::string pair_registers() {
  using Tile = PairTile<64>;
  constexpr int kLane = 1;
  std::vector<std::vector<std::string>> out{
      {"S register", "key", "partner register", "partner key", "A of k-step", "V rows", "nibble"}};
  for (int reg = 0; reg < Tile::kPartner; ++reg) {
    const Coord first = WgmmaD<64>::coord(Slot{kLane, reg, 0});
    if (first.row != 0) continue;
    const Coord second = WgmmaD<64>::coord(Slot{kLane, reg + Tile::kPartner, 0});
    const PairTarget to = Tile::target(reg);
    const int group = WgmmaA<16>::coord(Slot{kLane, to.reg, to.part}).col / 2;
    out.push_back({cat("c", reg), cat(first.col), cat("c", reg + Tile::kPartner), cat(second.col),
                   cat(to.step, ": r", to.reg, to.part ? " high" : " low"),
                   range(Tile::v_row(first.col), 2), cat("group ", group)});
  }
  return table(out);
}

std::string pair_v_order() {
  std::string rows = "V row   ", keys = "key     ";
  for (int row = 0; row < 64; ++row) {
    if (row == 8) {
      rows += "..  ";
      keys += "..  ";
      row = 60;
    }
    rows += pad(cat(row), 4);
    keys += pad(cat(PairTile<64>::v_key(row)), 4);
  }
  rows.erase(rows.find_last_not_of(' ') + 1);
  keys.erase(keys.find_last_not_of(' ') + 1);
  return rows + "\n" + keys + "\n";
}

/// Where each nibble comes from, before and after the exchange: "T2 b1" is n-block 1 of lane 2.
std::string exchange_words() {
  std::vector<std::vector<std::string>> out{
      {"", "word", "bits 15-12", "bits 11-8", "bits 7-4", "bits 3-0"}};
  for (int after = 0; after < 2; ++after)
    for (int lane = 0; lane < 4; ++lane) {
      std::vector<std::string> line{after ? "after" : "before", cat("T", lane)};
      for (int field = 3; field >= 0; --field) {
        std::string found = "?";
        for (int t = 0; t < 4; ++t)
          for (int block = 0; block < 4; ++block) {
            std::array<WordPair, 4> words{};
            words[t].lo = 0xFu << PairTile<128>::own_shift(block, 0);
            if (after) words = exchange_quad(words);
            if ((words[lane].lo >> (4 * field)) & 0xFu) found = cat("T", t, " b", block);
          }
        line.push_back(found);
      }
      out.push_back(line);
    }
  return table(out);
}

/// One line a row block, one letter a key block.
std::string schedule(const ScheduleShape& shape, int row_blocks) {
  std::vector<std::vector<std::string>> out{{"positions", "key blocks"}};
  for (int r = 0; r < row_blocks; ++r) {
    std::string kinds;
    for (std::int64_t k = 0; k < shape.key_blocks(); ++k) {
      const BlockKind kind = schedule_row_block(shape, r).kind(k);
      kinds += kind == BlockKind::kEmpty ? ". " : kind == BlockKind::kPlain ? "P " : "# ";
    }
    out.push_back({range(r * static_cast<int>(kRowBlock), static_cast<int>(kRowBlock)), kinds});
  }
  return table(out);
}

std::string half_blocks() {
  std::vector<std::vector<std::string>> out{{"half-block", "tile rows", "keys of the block"}};
  constexpr int kBlock = 128, kQuarter = kBlock / 4;
  for (int half = 0; half < 2; ++half)
    for (int part = 0; part < 2; ++part)
      out.push_back({cat(half), range(part * kQuarter, kQuarter),
                     range(half_block_key(half, part * kQuarter, kBlock), kQuarter)});
  return table(out);
}

std::string bitmap_words() {
  using Tile = BitmapTile<32, 32>;
  std::vector<std::vector<std::string>> out{{"rows \\ cols"}};
  for (int c = 0; c < 32; c += 8) out[0].push_back(range(c, 8));
  for (int r = 0; r < 32; r += 8) {
    std::vector<std::string> line{range(r, 8)};
    for (int c = 0; c < 32; c += 8) line.push_back(cat("word ", Tile::slot(Coord{r, c}).word));
    out.push_back(line);
  }
  return table(out);
}

std::string bitmap_bits() {
  std::vector<std::vector<std::string>> out{{"row \\ col"}};
  for (int c = 0; c < 8; c += 2) out[0].push_back(range(c, 2));
  for (int r = 0; r < 8; ++r) {
    std::vector<std::string> line{cat(r)};
    for (int c = 0; c < 8; c += 2) {
      const int bit = BitmapTile<16, 16>::slot(Coord{r, c}).bit;
      line.push_back(cat("bits ", range(bit, 2), " T", MmaA<16>::slot(Coord{r, c}).lane));
    }
    out.push_back(line);
  }
  return table(out);
}

struct Drawing {
  const char* page;
  const char* name;
  std::string text;
};

std::vector<Drawing> drawings() {
  return {
      {"mma-fragments.md", "a16", fragment<MmaA<16>>(2, false, 0, 16, "m \\ k")},
      {"mma-fragments.md", "a8", fragment<MmaA<8>>(4, false, 0, 16, "m \\ k")},
      {"mma-fragments.md", "b16", fragment<MmaB<16, 32>>(2, true, 0, 32, "k \\ n")},
      {"mma-fragments.md", "b8", fragment<MmaB<8, 64>>(4, true, 0, 64, "k \\ n")},
      {"mma-fragments.md", "d", fragment<MmaD>(2, false, 0, 16, "m \\ n", 2)},
      {"wgmma-fragments.md", "a16", fragment<WgmmaA<16>>(2, false, 16, 16, "m \\ k")},
      {"wgmma-fragments.md", "d", fragment<WgmmaD<24>>(2, false, 16, 16, "m \\ n", 2)},
      {"metadata.md", "nibbles", nibbles()},
      {"metadata.md", "16-bit", metadata_words<Metadata16<1>>(8)},
      {"metadata.md", "8-bit", metadata_words<Metadata8<1>>(8)},
      {"shared-memory.md", "128B", swizzle_pattern(Swizzle::k128B, 8)},
      {"shared-memory.md", "64B", swizzle_pattern(Swizzle::k64B, 8)},
      {"pair-scores.md", "registers", pair_registers()},
      {"pair-scores.md", "v-order", pair_v_order()},
      {"pair-scores.md", "exchange", exchange_words()},
      {"block-schedule.md", "half-blocks", half_blocks()},
      {"block-schedule.md", "causal", schedule({1472, 128, true, {}, 1, 1}, 8)},
      {"block-schedule.md", "full", schedule({1472, 128, false, {}, 1, 1}, 3)},
      {"block-schedule.md", "window", schedule({1472, 128, true, {640, -1}, 1, 0}, 8)},
      {"bitmap-tile.md", "words", bitmap_words()},
      {"bitmap-tile.md", "bits", bitmap_bits()},
  };
}

std::filesystem::path page_path(const char* page) {
  return std::filesystem::absolute(__FILE__).parent_path().parent_path().parent_path() / "docs" /
         "layouts" / page;
}

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(LayoutDocs, DrawingsAreWhatTheHeadersSay) {
  const bool update = std::getenv("TWOFOUR_UPDATE_DOCS") != nullptr;
  for (const Drawing& drawing : drawings()) {
    const auto path = page_path(drawing.page);
    std::string page = read(path);
    ASSERT_FALSE(page.empty()) << path;
    const std::string mark = cat("<!-- drawing: ", drawing.name, " -->\n```text\n");
    const std::size_t begin = page.find(mark);
    ASSERT_NE(begin, std::string::npos) << path << " has no drawing " << drawing.name;
    const std::size_t text = begin + mark.size();
    const std::size_t end = page.find("```", text);
    ASSERT_NE(end, std::string::npos) << path;
    if (update) {
      page.replace(text, end - text, drawing.text);
      std::ofstream(path) << page;
      continue;
    }
    EXPECT_EQ(page.substr(text, end - text), drawing.text) << path << ", drawing " << drawing.name;
  }
}

}  // namespace
}  // namespace twofour::layout
