// The file readers and writers: what they accept, what they refuse and in which words, and that a
// failed write leaves nothing behind.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "io/file.h"
#include "io/npy.h"
#include "io/text.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

class FilesTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "twofour-io-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::string path(const std::string& name) const { return (dir_ / name).string(); }
  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(dir_), fs::directory_iterator()));
  }
  std::string put(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  static std::string slurp(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  fs::path dir_;
};

std::string npy(const std::string& header, const std::string& data, char version = 1) {
  std::string out = "\x93NUMPY";
  out += version;
  out += '\0';
  const std::size_t length = header.size();
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) out += static_cast<char>(length >> (8 * i));
  return out + header + data;
}

std::string dict(const std::string& descr, const std::string& shape,
                 const std::string& fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }\n";
}

Result<Tensor> parse(const std::string& bytes, NpyOptions options = {}) {
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
  return io::read_npy(*io::from_memory({data, data + bytes.size()}, "x.npy"), options);
}

Tensor ramp(DType dtype, std::vector<std::int64_t> shape) {
  Tensor tensor = make_tensor(dtype, std::move(shape));
  for (std::size_t i = 0; i < tensor.bytes.size(); ++i)
    tensor.bytes[i] = static_cast<std::byte>(dtype == DType::kBool ? i % 2 : i * 7);
  return tensor;
}

TEST_F(FilesTest, NpyKeepsEveryDTypeAndRank) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64, DType::kI8,
                            DType::kU8, DType::kBool, DType::kI32, DType::kI64}) {
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{
             {}, {5}, {2, 3}, {1, 2, 3, 4}, {2, 1, 2, 1, 3}, {0}, {3, 0, 2}}) {
      const Tensor tensor = ramp(dtype, shape);
      ASSERT_TRUE(write_npy(path("t.npy"), tensor).ok());
      const Result<Tensor> back = read_npy(path("t.npy"));
      ASSERT_TRUE(back.ok()) << back.status().message();
      EXPECT_EQ(back->dtype, dtype);
      EXPECT_EQ(back->shape, shape);
      EXPECT_EQ(back->bytes, tensor.bytes);
    }
  }
  EXPECT_EQ(files(), 1u);  // no temporary file stays
}

TEST(Npy, ReadsAllVersionsAndKeyOrders) {
  const std::string data(24, 'x');
  for (const char version : {1, 2, 3})
    EXPECT_TRUE(parse(npy(dict("<f4", "(2, 3)"), data, version)).ok());
  EXPECT_TRUE(
      parse(npy("{\"shape\": (6,), \"fortran_order\": False, \"descr\": \"<f4\"}", data)).ok());
  // One axis that matters: the order does not.
  EXPECT_TRUE(parse(npy(dict("<f4", "(1, 6)", "True"), data)).ok());
}

TEST(Npy, Uint16IsBf16OnlyWhenAsked) {
  const std::string file = npy(dict("<u2", "(2,)"), "\1\2\3\4");
  EXPECT_EQ(parse(file).status().code(), Code::kUnsupported);
  NpyOptions options;
  options.uint16_is_bf16 = true;
  const Result<Tensor> tensor = parse(file, options);
  ASSERT_TRUE(tensor.ok());
  EXPECT_EQ(tensor->dtype, DType::kBF16);
}

struct Refusal {
  std::string bytes;
  Code code;
  const char* says;
};

TEST(Npy, RefusesWithOneClearLine) {
  const std::string data(24, 'x');
  const std::string good = npy(dict("<f4", "(2, 3)"), data);
  std::string huge_header = good;
  huge_header[8] = huge_header[9] = '\xff';
  std::string bomb = npy(dict("<f4", "(2, 3)"), data, 2);
  bomb[11] = '\x7f';  // claims 2 GB of header
  const std::vector<Refusal> refusals = {
      {"", Code::kCorrupt, "start with"},
      {"\x93NUMPX\1\0\0\0", Code::kCorrupt, "start with"},
      {"\x93NUMPY", Code::kCorrupt, "start with"},
      {npy(dict("<f4", "(2, 3)"), data, 4), Code::kCorrupt, "version"},
      {huge_header, Code::kCorrupt, "header claims"},
      {bomb, Code::kCorrupt, "header claims"},
      {good.substr(0, good.size() - 1), Code::kCorrupt, "expected 24 bytes of data, got 23"},
      {good + "x", Code::kCorrupt, "expected 24 bytes of data, got 25"},
      {npy(dict("<f4", "(2, -3)"), data), Code::kCorrupt, "integer"},
      {npy(dict("<f4", "(2, 03)"), data), Code::kCorrupt, "integer"},
      {npy(dict("<f4", "(2 3)"), data), Code::kCorrupt, "','"},
      {npy(dict("<f4", "(6)"), data), Code::kCorrupt, "only axis"},
      {npy(dict("<f4", "(99999999999999999999,)"), data), Code::kCorrupt, "at most"},
      {npy(dict("<f4", "(4294967296, 4294967296)"), data), Code::kCorrupt, "overflows"},
      {npy(dict("<f4", "(0, 4294967296, 4294967296)"), ""), Code::kCorrupt, "overflows"},
      {npy(dict("<f4", "(2, 3)") + "{", data), Code::kCorrupt, "nothing after"},
      {npy("{'descr': '<f4', 'shape': (6,), }", data), Code::kCorrupt, "expected the keys"},
      {npy("{'descr': '<f4', 'descr': '<f4'}", data), Code::kCorrupt, "once each"},
      {npy("{'descr': '<f4', 'evil': __import__('os')}", data), Code::kCorrupt, "once each"},
      {npy("{'descr': [('a', '<f4')]}", data), Code::kUnsupported, "records"},
      {npy(std::string(500, '('), data), Code::kCorrupt, "'{'"},
      {npy(dict(">f4", "(2, 3)"), data), Code::kUnsupported, "big endian"},
      {npy(dict("<c8", "(3,)"), data), Code::kUnsupported, "expected f4"},
      {npy(dict("O", "(3,)"), data), Code::kUnsupported, "dtype"},
      {npy(dict("<f4", "(2, 3)", "True"), data), Code::kUnsupported, "ascontiguousarray"},
      {npy(dict("<f4", "(1, 1, 1, 1, 2, 3)"), data), Code::kUnsupported, "axes"},
      {npy(dict("|b1", "(2,)"), "\1\2"), Code::kCorrupt, "0 or 1"},
  };
  for (const Refusal& refusal : refusals) {
    const Result<Tensor> result = parse(refusal.bytes);
    ASSERT_FALSE(result.ok()) << refusal.says;
    EXPECT_EQ(result.status().code(), refusal.code) << result.status().message();
    EXPECT_NE(result.status().message().find(refusal.says), std::string::npos)
        << result.status().message();
    EXPECT_NE(result.status().message().find("x.npy"), std::string::npos);
    EXPECT_EQ(result.status().message().find('\n'), std::string::npos);
  }
}

TEST_F(FilesTest, MissingAndUnreadablePathsAreNamed) {
  EXPECT_EQ(read_npy(path("none.npy")).status().code(), Code::kNotFound);
  EXPECT_EQ(read_npy(path("none/none.npy")).status().code(), Code::kNotFound);
  EXPECT_EQ(read_npy(dir_.string()).status().code(), Code::kIo);
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(read_npy(path("pipe")).status().code(), Code::kIo);  // and does not wait for a writer
  const Status status = read_npy(path("a\nb")).status();
  EXPECT_NE(status.message().find("a\\x0ab"), std::string::npos);
  // A long name is cut, though not within a character.
  std::string accents = "a";
  for (int i = 0; i < 200; ++i) accents += "\xC3\xA9";
  EXPECT_TRUE(io::is_utf8(read_npy(accents).status().message()));
  EXPECT_NE(read_npy(accents).status().message().find("\xA9...'"), std::string::npos);
  EXPECT_EQ(status.message().find('\n'), std::string::npos);
}

TEST_F(FilesTest, ASparseFileCannotClaimMoreMemoryThanThereIs) {
  const std::string header = npy(dict("|u1", "(8796093022208,)"), "");
  const std::string file = put("huge.npy", header);
  if (::truncate(file.c_str(), static_cast<off_t>(header.size() + (std::uint64_t{1} << 43))) != 0)
    GTEST_SKIP() << "this file system has no files of 8 TiB";
  EXPECT_EQ(read_npy(file).status().code(), Code::kOutOfMemory);
}

TEST_F(FilesTest, AtomicFileReplacesOnlyOnCommit) {
  const std::string target = put("out", "old");
  ASSERT_EQ(::chmod(target.c_str(), 0640), 0);
  {
    Result<io::AtomicFile> file = io::AtomicFile::create(target);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->write(std::string("new")).ok());
    EXPECT_EQ(slurp(target), "old");
    EXPECT_EQ(files(), 2u);
  }
  EXPECT_EQ(slurp(target), "old");
  EXPECT_EQ(files(), 1u);
  ASSERT_TRUE(io::write_file(target, "new").ok());
  EXPECT_EQ(slurp(target), "new");
  EXPECT_EQ(fs::status(target).permissions(), fs::perms{0640});
  fs::create_symlink("out", dir_ / "link");
  ASSERT_TRUE(io::write_file(path("link"), "through the link").ok());
  EXPECT_TRUE(fs::is_symlink(dir_ / "link"));
  EXPECT_EQ(slurp(target), "through the link");
}

TEST_F(FilesTest, AFullDiskLeavesTheOldFile) {
  const std::string target = put("out.npy", "old");
  const Tensor tensor = ramp(DType::kU8, {1 << 16});
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 1000;  // stands for the space left on the disk
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = write_npy(target, tensor);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_NE(status.message().find(target), std::string::npos);
  EXPECT_EQ(slurp(target), "old");
  EXPECT_EQ(files(), 1u);
}

TEST_F(FilesTest, UnwritableDestinationsAreNamed) {
  for (const std::string& target : {path("none/out.npy"), dir_.string(), path("x/"), std::string()})
    EXPECT_EQ(io::write_file(target, "x").code(), Code::kIo) << target;
  EXPECT_EQ(files(), 0u);
  if (fs::exists("/dev/full")) {
    EXPECT_EQ(io::write_file("/dev/full", "x").code(), Code::kIo);
    EXPECT_FALSE(fs::is_regular_file("/dev/full"));
  }
}

TEST_F(FilesTest, ASignalRemovesTemporaryFiles) {
  Result<io::AtomicFile> file = io::AtomicFile::create(path("out"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(files(), 1u);
  io::remove_temporary_files();
  EXPECT_EQ(files(), 0u);
}

TEST(Text, Utf8IsJudgedByTheStandard) {
  EXPECT_TRUE(io::is_utf8("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"));
  for (const char* bad : {"\x80", "\xC3", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80",
                          "\xF0\x80\x80\x80", "\xF4\x90\x80\x80", "\xFF", "\xE2\x82"})
    EXPECT_FALSE(io::is_utf8(bad)) << bad;
}

TEST(Text, JsonStringsRoundTrip) {
  const std::string text = "quote \" backslash \\ tab \t nul-ish \x01 caf\xC3\xA9";
  const std::string held = io::json_string(text);
  io::Cursor cursor(held, "text");
  const Result<std::string> back = cursor.json_text();
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(*back, text);
  io::Cursor escapes(R"("\u00e9\ud83d\ude00\/\n")", "text");
  EXPECT_EQ(*escapes.json_text(), "\xC3\xA9\xF0\x9F\x98\x80/\n");
  for (const char* bad : {R"("\ud83d")", R"("\ude00")", R"("\ud83d\u0041")", R"("\x")", R"("\u12)",
                          R"("open)", "\"a\nb\""}) {
    io::Cursor broken(bad, "text");
    EXPECT_FALSE(broken.json_text().ok()) << bad;
  }
}

}  // namespace
}  // namespace twofour
