// .safetensors files and the calibration kept in them: round trips, and every refusal.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>

#include "io/calibration.h"
#include "io/file.h"
#include "io/safetensors.h"

namespace twofour {
namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

std::string with_length(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

Result<SafetensorsFile> parse(const std::string& bytes) {
  return SafetensorsFile::from_memory(bytes_of(bytes), "x.safetensors");
}

std::string temporary(const std::string& name) {
  return (std::filesystem::temp_directory_path() /
          ("twofour-" + std::to_string(::getpid()) + "-" + name))
      .string();
}

TEST(Safetensors, RoundTrip) {
  Tensor a = make_tensor(DType::kBF16, {2, 3});
  Tensor b = make_tensor(DType::kF32, {4});
  Tensor c = make_tensor(DType::kBool, {0, 5});
  for (std::size_t i = 0; i < a.bytes.size(); ++i) a.bytes[i] = static_cast<std::byte>(i);
  for (std::size_t i = 0; i < b.bytes.size(); ++i) b.bytes[i] = static_cast<std::byte>(100 + i);
  const std::string path = temporary("round.safetensors");
  ASSERT_TRUE(write_safetensors(path, {{"a", &a}, {"\xC3\xA9 \"q\"", &b}, {"c", &c}},
                                {{"k", "line\nbreak"}})
                  .ok());
  const Result<SafetensorsFile> file = SafetensorsFile::open(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->entries().size(), 3u);
  EXPECT_EQ(file->metadata().at("k"), "line\nbreak");
  EXPECT_EQ(file->read("a")->bytes, a.bytes);
  EXPECT_EQ(file->read("a")->shape, a.shape);
  EXPECT_EQ(file->read("\xC3\xA9 \"q\"")->bytes, b.bytes);
  EXPECT_EQ(file->read("c")->shape, c.shape);
  const Status missing = file->read("d").status();
  EXPECT_EQ(missing.code(), Code::kNotFound);
  EXPECT_NE(missing.message().find("'a', 'c'"), std::string::npos) << missing.message();
}

TEST(Safetensors, WriterRefusesBadNames) {
  const Tensor t = make_tensor(DType::kF32, {1});
  EXPECT_EQ(io::safetensors_head({{"a", &t}, {"a", &t}}, {}).status().code(),
            Code::kInvalidArgument);
  EXPECT_FALSE(io::safetensors_head({{"\xFF", &t}}, {}).ok());
  EXPECT_FALSE(io::safetensors_head({{"__metadata__", &t}}, {}).ok());
  EXPECT_FALSE(io::safetensors_head({{"a", &t}}, {{"k", "\xFF"}}).ok());
}

TEST(Safetensors, KnownButUnreadableDTypesAreNamed) {
  const Result<SafetensorsFile> file =
      parse(with_length(R"({"a":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]},)"
                        R"("b":{"dtype":"F4","shape":[3,2],"data_offsets":[2,5]}})",
                        "12345"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->read("a").status().code(), Code::kUnsupported);
  EXPECT_EQ(file->read("b").status().code(), Code::kUnsupported);
}

TEST(Safetensors, RefusesWithOneClearLine) {
  const auto entry = [](const std::string& shape, const std::string& offsets,
                        const std::string& dtype = "F32") {
    return "{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
  };
  const std::string a = entry("[1]", "[0,4]"), b = entry("[1]", "[4,8]");
  const std::string data8(8, 'x');
  ASSERT_TRUE(parse(with_length("{\"a\":" + a + ",\"b\":" + b + "}   ", data8)).ok());
  std::string bomb = with_length("{}", "");
  std::memset(bomb.data(), 0xFF, 8);
  struct Case {
    std::string bytes;
    const char* says;
  };
  const std::vector<Case> cases = {
      {"1234567", "at least 8 bytes"},
      {bomb, "header claims"},
      {with_length("{}", "").substr(0, 9), "header claims"},
      {with_length("", ""), "start with '{'"},
      {with_length(" {}", ""), "start with '{'"},
      {with_length("{} {}", ""), "nothing after"},
      {with_length("{}", "x"), "expected 0 bytes of data, got 1"},
      {with_length("{\"a\":" + a + "}", "xyz"), "expected 4 bytes of data, got 3"},
      {with_length("{\"a\":" + a + "}", "xxxxx"), "expected 4 bytes of data, got 5"},
      {with_length("{\"a\":" + a + ",\"a\":" + b + "}", data8), "each name once"},
      {with_length("{\"a\":" + a + ",\"\\u0061\":" + b + "}", data8), "each name once"},
      {with_length("{\"a\":" + a + ",\"b\":" + a + "}", data8), "no overlap, no hole"},
      {with_length("{\"a\":" + a + ",\"b\":" + entry("[1]", "[2,6]") + "}", data8), "no overlap"},
      {with_length("{\"a\":" + b + "}", data8), "no overlap, no hole"},
      {with_length("{\"a\":" + entry("[1]", "[4,0]") + "}", data8), "data offsets"},
      {with_length("{\"a\":" + entry("[2]", "[0,4]") + "}", "xxxx"), "expected 8 bytes"},
      {with_length("{\"a\":" + entry("[-1]", "[0,4]") + "}", "xxxx"), "integer"},
      {with_length("{\"a\":" + entry("[1.0]", "[0,4]") + "}", "xxxx"), "','"},
      {with_length("{\"a\":" + entry("[1e2]", "[0,4]") + "}", "xxxx"), "','"},
      {with_length("{\"a\":" + entry("[99999999999999999999]", "[0,4]") + "}", ""), "at most"},
      {with_length("{\"a\":" + entry("[4294967296,4294967296]", "[0,4]") + "}", ""), "overflows"},
      {with_length("{\"a\":" + entry("[0,4294967296,4294967296]", "[0,0]") + "}", ""), "overflows"},
      {with_length("{\"a\":" + entry("[1]", "[0,4,8]") + "}", "xxxx"), "at most 2"},
      {with_length("{\"a\":" + entry("[1]", "[0]") + "}", "xxxx"), "two data offsets"},
      {with_length("{\"a\":" + entry("[1]", "[0,4]", "F99") + "}", "xxxx"), "unknown dtype"},
      {with_length("{\"a\":" + entry("[3]", "[0,1]", "F4") + "}", "x"), "overflows"},
      {with_length("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", "xxxx"), "of a tensor"},
      {with_length("{\"a\":{\"x\":1}}", ""), "dtype, shape or data_offsets"},
      {with_length("{\"a\":" + std::string(5000, '[') + "}", ""), "'{'"},
      {with_length("{\"a\":" + std::string(5000, '{') + "}", ""), "a string"},
      {with_length("{\"\xFF\":" + a + "}", "xxxx"), "UTF-8"},
      {with_length("{\"__metadata__\":{\"k\":1}}", ""), "a string"},
      {with_length("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", ""), "each name once"},
      {with_length("{\"a\":" + a + ",}", "xxxx"), "a string"},
      {with_length("{\"a\":" + a, "xxxx"), "'}'"},
  };
  for (const Case& c : cases) {
    const Result<SafetensorsFile> file = parse(c.bytes);
    ASSERT_FALSE(file.ok()) << c.says;
    EXPECT_EQ(file.status().code(), Code::kCorrupt) << file.status().message();
    EXPECT_NE(file.status().message().find(c.says), std::string::npos) << file.status().message();
    EXPECT_NE(file.status().message().find("x.safetensors"), std::string::npos);
    EXPECT_EQ(file.status().message().find('\n'), std::string::npos);
  }
  const Result<SafetensorsFile> bools =
      parse(with_length("{\"a\":" + entry("[2]", "[0,2]", "BOOL") + "}", "\1\2"));
  ASSERT_TRUE(bools.ok());
  EXPECT_EQ(bools->read("a").status().code(), Code::kCorrupt);
}

/// A basis that is neither symmetric nor orthogonal: lower bidiagonal, with its exact inverse
/// transpose.
Calibration sample() {
  Calibration calibration;
  calibration.model = "tiny/model";
  calibration.kind = "balanced";
  calibration.heads_q = 6;
  calibration.heads_kv = 2;
  calibration.head_dim = 8;
  const std::size_t dim = 8;
  for (int layer = 0; layer < 2; ++layer) {
    Calibration::Layer part;
    part.t_q.assign(2 * dim * dim, 0.f);
    part.t_k.assign(2 * dim * dim, 0.f);
    for (std::size_t i = 0; i < 2 * dim; ++i) part.w.push_back(1.f + static_cast<float>(i));
    for (std::size_t head = 0; head < 2; ++head) {
      float* t_q = &part.t_q[head * dim * dim];
      float* t_k = &part.t_k[head * dim * dim];
      for (std::size_t i = 0; i < dim; ++i) {
        t_q[i * dim + i] = 2.f;
        if (i > 0) t_q[i * dim + i - 1] = 1.f;
        // The inverse is lower triangular, entry (i, j) = (-1/2)^(i-j) / 2; t_k is its transpose.
        for (std::size_t j = 0; j <= i; ++j)
          t_k[j * dim + i] = 0.5f * std::pow(-0.5f, static_cast<float>(i - j));
      }
    }
    calibration.layers.push_back(std::move(part));
  }
  return calibration;
}

TEST(Calibration, RoundTrip) {
  const Calibration calibration = sample();
  const std::string path = temporary("calibration.safetensors");
  const Status saved = save_calibration(path, calibration);
  ASSERT_TRUE(saved.ok()) << saved.message();
  const Result<Calibration> back = load_calibration(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->model, "tiny/model");
  EXPECT_EQ(back->kind, "balanced");
  ASSERT_EQ(back->layers.size(), 2u);
  EXPECT_EQ(back->layers[1].t_q, calibration.layers[1].t_q);
  EXPECT_EQ(back->layers[1].t_k, calibration.layers[1].t_k);
  EXPECT_EQ(back->layers[1].w, calibration.layers[1].w);
  const Result<KeyTransform> transform = back->transform(1);
  ASSERT_TRUE(transform.ok());
  EXPECT_EQ(transform->heads_kv, 2);
  EXPECT_EQ(transform->head_dim, 8);
  EXPECT_EQ(transform->t_k[1], calibration.layers[1].t_k[1]);
  EXPECT_EQ(back->transform(2).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(back->transform(-1).status().code(), Code::kInvalidArgument);
}

TEST(Calibration, ModelMustMatch) {
  const Calibration calibration = sample();
  EXPECT_TRUE(calibration.check_model(2, 6, 2, 8).ok());
  for (const auto& [l, q, kv, d] : std::vector<std::array<std::int64_t, 4>>{
           {3, 6, 2, 8}, {2, 8, 2, 8}, {2, 6, 3, 8}, {2, 6, 2, 16}}) {
    const Status status = calibration.check_model(l, q, kv, d);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("2 layers, 6/2 heads, head_dim 8"), std::string::npos);
  }
}

TEST(Calibration, ValidateSeesEveryBreak) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<std::function<void(Calibration&)>> breaks = {
      [](Calibration& c) { c.layers.clear(); },
      [](Calibration& c) { c.heads_q = 5; },
      [](Calibration& c) { c.heads_kv = 0; },
      [](Calibration& c) { c.head_dim = 6; },
      [](Calibration& c) { c.layers[1].w.pop_back(); },
      [](Calibration& c) { c.layers[1].w[3] = 0; },
      [](Calibration& c) { c.layers[1].w[3] = -1; },
      [inf](Calibration& c) { c.layers[1].w[3] = inf; },
      [inf](Calibration& c) { c.layers[1].t_q[70] = inf; },
      [](Calibration& c) { c.layers[1].t_k[70] = std::nanf(""); },
      [](Calibration& c) { c.layers[1].t_k[70] += 0.01f; },
      [](Calibration& c) { std::swap(c.layers[1].t_q, c.layers[1].t_k), c.layers[1].t_k[0] += 1; },
      [](Calibration& c) { c.layers[0].t_q[64] = 2.01f; },
  };
  ASSERT_TRUE(sample().validate().ok()) << sample().validate().message();
  for (std::size_t i = 0; i < breaks.size(); ++i) {
    Calibration broken = sample();
    breaks[i](broken);
    EXPECT_EQ(broken.validate().code(), Code::kInvalidArgument) << "break " << i;
    EXPECT_FALSE(save_calibration(temporary("never"), broken).ok());
    EXPECT_FALSE(std::filesystem::exists(temporary("never")));
  }
}

class CalibrationFile : public testing::Test {
 protected:
  CalibrationFile() {
    const Calibration c = sample();
    for (int i = 0; i < 2; ++i) {
      const std::string prefix = "layers." + std::to_string(i) + ".";
      add(prefix + "t_q", {2, 8, 8}, c.layers[i].t_q);
      add(prefix + "t_k", {2, 8, 8}, c.layers[i].t_k);
      add(prefix + "w", {2, 8}, c.layers[i].w);
    }
  }

  void add(const std::string& name, std::vector<std::int64_t> shape,
           const std::vector<float>& values) {
    Tensor tensor = make_tensor(DType::kF32, std::move(shape));
    std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
    tensors[name] = std::move(tensor);
  }

  Status load() const {
    std::vector<std::pair<std::string, const Tensor*>> views;
    for (const auto& [name, tensor] : tensors) views.emplace_back(name, &tensor);
    const auto head = io::safetensors_head(views, metadata);
    if (!head.ok()) return head.status();
    std::string file = head->bytes;
    for (const std::size_t i : head->order)
      file.append(reinterpret_cast<const char*>(views[i].second->bytes.data()),
                  views[i].second->bytes.size());
    const Result<SafetensorsFile> parsed = parse(file);
    if (!parsed.ok()) return parsed.status();
    return io::read_calibration(*parsed).status();
  }

  void expect_corrupt(const std::string& says) const {
    const Status status = load();
    EXPECT_EQ(status.code(), Code::kCorrupt) << status.message();
    EXPECT_NE(status.message().find(says), std::string::npos) << status.message();
  }

  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata = {
      {"format", "twofour-calibration"},
      {"version", "1"},
      {"model", "m"},
      {"kind", "permutation"},
      {"layers", "2"},
      {"heads_q", "6"},
      {"heads_kv", "2"},
      {"head_dim", "8"},
      {"tokens", "4096"},  // a key that is not ours
  };
};

TEST_F(CalibrationFile, Loads) { EXPECT_TRUE(load().ok()) << load().message(); }

TEST_F(CalibrationFile, EveryMetadataKeyIsRequired) {
  const auto complete = metadata;
  for (const char* key :
       {"format", "version", "model", "kind", "layers", "heads_q", "heads_kv", "head_dim"}) {
    metadata = complete;
    metadata.erase(key);
    expect_corrupt(std::string("expected '") + key + "' in its metadata");
  }
}

TEST_F(CalibrationFile, WrongValuesAreNamed) {
  const auto complete = metadata;
  const std::vector<std::array<const char*, 3>> wrong = {
      {"format", "other", "expected format"},
      {"version", "2", "expected version '1'"},
      {"kind", "magic", "expected 'identity'"},
      {"layers", "3", "expected 3 for each"},
      {"layers", "0", "expected an integer"},
      {"layers", "-1", "non-negative"},
      {"layers", "2x", "expected an integer"},
      {"layers", "99999999999999999999", "at most"},
      {"heads_q", "5", "multiple"},
      {"heads_kv", "3", "expected F32 of shape"},
      {"head_dim", "16", "expected F32 of shape"},
      {"head_dim", "100000", "at most"},
  };
  for (const auto& [key, value, says] : wrong) {
    metadata = complete;
    metadata[key] = value;
    expect_corrupt(says);
  }
}

TEST_F(CalibrationFile, TensorsMustBeComplete) {
  const auto complete = tensors;
  tensors.erase("layers.1.w");
  expect_corrupt("5 tensors");
  tensors["layers.2.w"] = complete.at("layers.1.w");
  expect_corrupt("no tensor 'layers.1.w'");
  tensors = complete;
  tensors["layers.0.w"] = make_tensor(DType::kF64, {2, 8});
  expect_corrupt("expected F32 of shape");
  tensors = complete;
  tensors["layers.1.t_q"].bytes[3] = std::byte{0x7F};
  expect_corrupt("layer 1");
}

}  // namespace
}  // namespace twofour
