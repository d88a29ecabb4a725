#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "twofour/sparsity.h"

namespace twofour {
namespace {

constexpr Mode kModes[] = {Mode::kDense, Mode::kScore, Mode::kInt8, Mode::kDual, Mode::kRefined};

TEST(Sparsity, PresetsAreTheDocumentedTable) {
  EXPECT_EQ(to_string(preset(Mode::kDense)), "exact/none");
  EXPECT_EQ(to_string(preset(Mode::kScore)), "exact/pair/s1/l0");
  EXPECT_EQ(to_string(preset(Mode::kInt8)), "int8/pair/s1/l0");
  EXPECT_EQ(to_string(preset(Mode::kDual)), "nm24/pair/s1/l1");
  EXPECT_EQ(to_string(preset(Mode::kRefined)), "nm24/pair/s1/l1/r2");
  for (Mode mode : kModes) {
    EXPECT_EQ(preset(mode).block, 0);
    EXPECT_TRUE(validate(preset(mode)).ok());
    EXPECT_EQ(preset(mode).is_dense(), mode == Mode::kDense);
    EXPECT_EQ(*parse_mode(to_string(mode)), mode);
    EXPECT_EQ(*parse_sparsity(to_string(mode)), preset(mode));
  }
}

TEST(Sparsity, ResolvedFillsTheBlockByHeadDim) {
  EXPECT_EQ(to_string(resolved(preset(Mode::kInt8), 64)), "int8/pair128/s1/l0");
  EXPECT_EQ(to_string(resolved(preset(Mode::kInt8), 72)), "int8/pair192/s1/l0");
  Sparsity chosen = preset(Mode::kScore);
  chosen.block = 320;
  EXPECT_EQ(resolved(chosen, 64).block, 320);
}

TEST(Sparsity, DenseHasOneString) {
  // Block, sinks and local blocks have no effect there, so the string leaves them out.
  EXPECT_EQ(to_string(resolved(preset(Mode::kDense), 64)), "exact/none");
  Sparsity dense;
  dense.sink_blocks = 3;
  EXPECT_EQ(to_string(dense), "exact/none");
  dense.drop = 8.0f;
  EXPECT_EQ(to_string(dense), "exact/none/s3/l0/d8");
}

TEST(Sparsity, EveryValidValueSurvivesItsString) {
  const std::optional<float> nats[] = {
      std::nullopt, 0.0f,   2.0f,
      0.1f,         12.25f, 1e-30f,
      3.4e38f,      1e10f,  std::numeric_limits<float>::denorm_min()};
  std::set<std::string> seen;
  int valid = 0;
  for (QKProduct qk : {QKProduct::kExact, QKProduct::kNm24, QKProduct::kInt8}) {
    for (ScorePattern score : {ScorePattern::kNone, ScorePattern::kPair, ScorePattern::kNm24Strided,
                               ScorePattern::kNm24Adjacent}) {
      for (int block : {0, 64, 128, 192, 512}) {
        for (int sink : {0, 1, 2147483647}) {
          for (int local : {0, 7}) {
            for (const auto& refine : nats) {
              for (const auto& drop : nats) {
                const Sparsity value{qk, score, block, sink, local, refine, drop};
                if (!validate(value).ok() || value.is_dense()) continue;
                const std::string text = to_string(value);
                const auto read = parse_sparsity(text);
                ASSERT_TRUE(read.ok()) << text << ": " << read.status().message();
                EXPECT_EQ(*read, value) << text;
                EXPECT_EQ(to_string(*read), text);
                EXPECT_TRUE(seen.insert(text).second) << text << " stands for two values";
                EXPECT_LT(text.size(), 96u);
                ++valid;
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(valid, 5000);
}

TEST(Sparsity, PartsAreOptionalAndComeInAnyOrder) {
  EXPECT_EQ(to_string(*parse_sparsity("nm24/pair")), "nm24/pair/s0/l0");
  EXPECT_EQ(to_string(*parse_sparsity("nm24/pair128/d9.5/r2/l1/s1")), "nm24/pair128/s1/l1/r2/d9.5");
  EXPECT_EQ(*parse_sparsity("exact/none"), preset(Mode::kDense));
  EXPECT_EQ(to_string(*parse_sparsity("exact/nm24_strided64/l2")), "exact/nm24_strided64/s0/l2");
}

TEST(Sparsity, ParseErrorsNameThePart) {
  const struct {
    const char* text;
    const char* part;
  } cases[] = {
      {"", "got \"\""},
      {"fast", "got \"fast\""},
      {"Dense", "got \"Dense\""},
      {"exact", "a score pattern after"},
      {"exact/", "got \"\""},
      {"fp8/pair", "got \"fp8\""},
      {"exact/pairs", "got \"pairs\""},
      {"exact/pair128x", "got \"pair128x\""},
      {"exact/pair-128", "got \"pair-128\""},
      {"exact/pair99999999999", "got \"pair99999999999\""},
      {"exact/pair/x1", "got \"x1\""},
      {"exact/pair/s", "got \"s\""},
      {"exact/pair/s-1", "got \"s-1\""},
      {"exact/pair/s1.5", "got \"s1.5\""},
      {"exact/pair/s1/s1", "one \"s\" part"},
      {"exact/pair/s1/l0/", "got \"\""},
      {"exact/pair//l0", "got \"\""},
      {"nm24/pair/r2 ", "got \"r2 \""},
      {"nm24/pair/r", "got \"r\""},
      {"nm24/pair/r1e99", "got \"r1e99\""},
      {"nm24/pair/rinf", "refine"},
      {"nm24/pair/dnan", "drop"},
      {"exact/pair/r2", "refine: expected qk nm24, got qk exact"},
      {"exact/pair100", "block: expected 0 or a multiple of 64 in 64..512, got 100"},
      {"exact/nm24_strided/d1", "drop: expected a score pattern"},
      {"dense/pair", "got \"dense\""},
      {"int8/pair128/s1/l0/q", "got \"q\""},
  };
  for (const auto& c : cases) {
    const auto result = parse_sparsity(c.text);
    ASSERT_FALSE(result.ok()) << c.text;
    EXPECT_EQ(result.status().code(), Code::kInvalidArgument);
    const std::string& message = result.status().message();
    EXPECT_NE(message.find(c.part), std::string::npos) << message;
    EXPECT_EQ(message.rfind("sparsity \"" + std::string(c.text) + "\": ", 0), 0u) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
  // Control characters do not break the line, nor end a C string.
  for (const auto& [text, shown] : {std::pair{std::string("score\n"), "score\\x0a"},
                                    {std::string("dense\0x", 7), "dense\\x00x"}}) {
    EXPECT_EQ(parse_sparsity(text).status().message().rfind(
                  "sparsity \"" + std::string(shown) + "\": expected a mode (", 0),
              0u);
    EXPECT_TRUE(
        parse_mode(text).status().message().ends_with("got \"" + std::string(shown) + "\""));
  }
  EXPECT_LT(parse_sparsity(std::string(1 << 20, 'x')).status().message().size(), 800u);
  EXPECT_EQ(parse_mode("fast").status().message(),
            "mode: expected dense, score, int8, dual or refined, got \"fast\"");
}

TEST(Sparsity, ValidateNamesTheField) {
  const auto message = [](auto change) {
    Sparsity value = preset(Mode::kRefined);
    change(value);
    const Status status = validate(value);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    return status.message().substr(0, status.message().find(':'));
  };
  EXPECT_EQ(message([](Sparsity& s) { s.block = 32; }), "block");
  EXPECT_EQ(message([](Sparsity& s) { s.block = 96; }), "block");
  EXPECT_EQ(message([](Sparsity& s) { s.block = 576; }), "block");
  EXPECT_EQ(message([](Sparsity& s) { s.block = -64; }), "block");
  EXPECT_EQ(message([](Sparsity& s) { s.sink_blocks = -1; }), "sink_blocks");
  EXPECT_EQ(message([](Sparsity& s) { s.local_blocks = -1; }), "local_blocks");
  EXPECT_EQ(message([](Sparsity& s) { s.qk = QKProduct::kInt8; }), "refine");
  EXPECT_EQ(message([](Sparsity& s) { s.refine = -0.5f; }), "refine");
  EXPECT_EQ(message([](Sparsity& s) { s.refine = INFINITY; }), "refine");
  EXPECT_EQ(message([](Sparsity& s) { s.drop = NAN; }), "drop");
  EXPECT_EQ(message([](Sparsity& s) { s.score = ScorePattern::kNm24Strided; }), "refine");
  EXPECT_EQ(message([](Sparsity& s) { s.qk = static_cast<QKProduct>(3); }), "qk");
  EXPECT_EQ(message([](Sparsity& s) { s.score = static_cast<ScorePattern>(4); }), "score");
  Sparsity strided = preset(Mode::kDual);
  strided.score = ScorePattern::kNm24Strided;
  EXPECT_TRUE(validate(strided).ok());
}

}  // namespace
}  // namespace twofour
