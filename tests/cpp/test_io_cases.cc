// Case files: the product of a line, refusals with their line, and memory that is what it says.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "core/half.h"
#include "io/cases.h"

namespace twofour::io {
namespace {

std::vector<Case> parse(const std::string& text) {
  Result<std::vector<Case>> cases = parse_cases(text, "test.cases");
  EXPECT_TRUE(cases.ok()) << cases.status().message();
  return cases.ok() ? *std::move(cases) : std::vector<Case>();
}

TEST(Cases, ALineIsTheProductOfItsAlternatives) {
  const auto cases = parse(
      "# comment\n\nmode=score,dual dtype=fp16,bf16 heads=9/3 dim=64/32 len=5x7,8 "
      "causal=top_left window=3:-1 scale=0.5 splits=3  # more\r\n");
  ASSERT_EQ(cases.size(), 8u);
  std::set<std::string> texts;
  for (const Case& c : cases) texts.insert(c.text);
  EXPECT_EQ(texts.size(), 8u);
  const Case& last = cases.back();
  EXPECT_EQ(last.text,
            "mode=dual dtype=bf16 heads=9/3 dim=64/32 len=8 causal=top_left window=3:-1 scale=0.5 "
            "splits=3");
  EXPECT_EQ(last.problem.sparsity, preset(Mode::kDual));
  EXPECT_EQ(last.problem.dtype, DType::kBF16);
  EXPECT_EQ(last.problem.heads_q, 9);
  EXPECT_EQ(last.problem.heads_kv, 3);
  EXPECT_EQ(last.problem.head_dim, 64);
  EXPECT_EQ(last.problem.head_dim_v, 32);
  EXPECT_EQ(last.problem.seqlen_q, 8);
  EXPECT_EQ(last.problem.seqlen_k, 8);
  EXPECT_TRUE(last.problem.causal);
  EXPECT_EQ(last.problem.align, Align::kTopLeft);
  EXPECT_EQ(last.problem.window, (Window{3, -1}));
  EXPECT_EQ(last.problem.scale, 0.5f);
  EXPECT_EQ(last.problem.key_splits, 3);
  EXPECT_EQ(cases.front().problem.seqlen_q, 5);
  EXPECT_EQ(cases.front().problem.seqlen_k, 7);
}

TEST(Cases, PackedSequences) {
  const auto cases = parse("packed=5x6+0x0+1x7 heads=2");
  ASSERT_EQ(cases.size(), 1u);
  const Case& c = cases.front();
  EXPECT_TRUE(c.problem.packed);
  EXPECT_EQ(c.problem.batch, 3);
  EXPECT_EQ(c.problem.seqlen_q, 5);
  EXPECT_EQ(c.problem.seqlen_k, 7);
  EXPECT_EQ(c.cu_seqlens_q, (std::vector<std::int32_t>{0, 5, 5, 6}));
  EXPECT_EQ(c.cu_seqlens_k, (std::vector<std::int32_t>{0, 6, 6, 13}));
}

TEST(Cases, RefusalsNameFileAndLine) {
  for (const char* line : {"len",
                           "len=",
                           "len=3x",
                           "len=3x4x5",
                           "len=-1x3",
                           "len=99999999999x1",
                           "dim=0",
                           "heads=0",
                           "heads=3/2",
                           "dtype=fp64",
                           "mode=fast",
                           "causal=yes",
                           "window=3",
                           "window=-2:0",
                           "mask=some",
                           "mask=random:2",
                           "mask=random:nan",
                           "input=none",
                           "layout=hbmd",
                           "scale=inf",
                           "splits=65",
                           "splits=few",
                           "transform=yes",
                           "batch=-1",
                           "batch=x",
                           "speed=1",
                           "len=3 len=3",
                           "packed=3x3+",
                           "packed=3x3 layout=fused",
                           "packed=3x3 mask=random"}) {
    const auto cases = parse_cases(std::string("len=1x1\n") + line + "\n", "test.cases");
    ASSERT_FALSE(cases.ok()) << line;
    EXPECT_EQ(cases.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(cases.status().message().find("test.cases:2: "), 0u) << cases.status().message();
  }
  std::string many = "len=1";
  for (int i = 0; i < 200; ++i) many += ",1";
  EXPECT_FALSE(
      parse_cases(many + " dim=8" + many.substr(5) + " heads=1" + many.substr(5), "").ok());
}

TEST(Cases, AFolderIsReadInOrderOfName) {
  namespace fs = std::filesystem;
  const fs::path folder =
      fs::temp_directory_path() / ("twofour-cases-" + std::to_string(::getpid()));
  fs::create_directory(folder);
  EXPECT_EQ(load_cases(folder.string()).status().code(), Code::kNotFound);
  std::ofstream(folder / "b.cases") << "len=2x2";
  std::ofstream(folder / "a.cases") << "len=1x1\n";
  std::ofstream(folder / "c.txt") << "not a case";
  const auto cases = load_cases(folder.string());
  fs::remove_all(folder);
  ASSERT_TRUE(cases.ok()) << cases.status().message();
  ASSERT_EQ(cases->size(), 2u);
  EXPECT_EQ((*cases)[0].text, "len=1x1");
  EXPECT_EQ(load_cases(folder.string()).status().code(), Code::kNotFound);
}

TEST(CaseMemory, IsDecidedByTheText) {
  const Case c = parse("heads=2 dim=8 len=9x11 mask=random:0.5").front();
  const auto a = make_case_memory(c), b = make_case_memory(c);
  EXPECT_EQ(a->q.bytes, b->q.bytes);
  EXPECT_EQ(a->mask.bytes, b->mask.bytes);
  const auto other = make_case_memory(parse("heads=2 dim=8 len=9x11 mask=random:0.500").front());
  EXPECT_NE(a->q.bytes, other->q.bytes);
}

TEST(CaseMemory, LayoutsHaveTheStridesTheyNeed) {
  const auto bhmd = make_case_memory(parse("heads=3/1 dim=8 len=9x11 batch=2 layout=bhmd").front());
  EXPECT_EQ(bhmd->args.q.stride[2], 9 * 8);
  EXPECT_EQ(bhmd->args.q.stride[1], 8);
  const auto fused =
      make_case_memory(parse("heads=3/1 dim=8/16 len=9x11 dtype=fp16 layout=fused").front());
  EXPECT_EQ(fused->args.k.stride[1], 24);
  EXPECT_EQ(static_cast<const std::byte*>(fused->args.v.data) -
                static_cast<const std::byte*>(fused->args.k.data),
            8 * 2);
  EXPECT_EQ(fused->args.q.stride[2], 9);
}

double density(const Tensor& mask) {
  double live = 0;
  for (const std::byte bit : mask.bytes) live += std::to_integer<int>(bit);
  return live / static_cast<double>(mask.bytes.size());
}

TEST(CaseMemory, MasksHaveTheirDensity) {
  const auto mask = [](const std::string& text) {
    return make_case_memory(parse("heads=2 dim=8 len=300x400 mask=" + text).front())->mask;
  };
  EXPECT_EQ(density(mask("random:0")), 0);
  EXPECT_EQ(density(mask("random:1")), 1);
  EXPECT_NEAR(density(mask("random:0.3")), 0.3, 0.01);
  EXPECT_NEAR(density(mask("blocks:0.5")), 0.5, 0.25);
  const Tensor rows = mask("rows:1");
  for (int i = 0; i < 300; ++i)
    EXPECT_EQ(std::to_integer<int>(rows.bytes[static_cast<std::size_t>(i) * 400]), i % 3 != 1);
  const auto keys = make_case_memory(parse("heads=2 dim=8 len=30x40 mask=keys:0.5").front());
  EXPECT_EQ(keys->args.mask.shape[2], 30);
  EXPECT_EQ(keys->args.mask.stride[1], 0);
  EXPECT_EQ(keys->args.mask.stride[2], 0);
}

TEST(CaseMemory, PoisonLiesOnlyWhereNoRowLooks) {
  const Case c = parse("dim=8 len=20x50 causal=top_left input=poison").front();
  const auto memory = make_case_memory(c);
  for (std::int64_t j = 0; j < 50; ++j)
    EXPECT_EQ(std::isnan(load_float(memory->k.bytes.data(), DType::kF32, j * 8)), j >= 20) << j;
}

TEST(CaseMemory, ARandomTransformKeepsTheProduct) {
  const auto memory = make_case_memory(parse("heads=2 dim=16 len=3x3 transform=random").front());
  const KeyTransform& t = *memory->args.transform;
  bool is_identity = true;
  for (std::int64_t head = 0; head < 2; ++head)
    for (std::int64_t a = 0; a < 16; ++a)
      for (std::int64_t b = 0; b < 16; ++b) {
        double sum = 0;
        for (std::int64_t e = 0; e < 16; ++e)
          sum += double{t.t_q[(head * 16 + a) * 16 + e]} * t.t_k[(head * 16 + b) * 16 + e];
        EXPECT_NEAR(sum, a == b, 1e-5);
        is_identity &= t.t_q[(head * 16 + a) * 16 + b] == (a == b ? 1.f : 0.f);
      }
  EXPECT_FALSE(is_identity);
}

}  // namespace
}  // namespace twofour::io
