#include "io/calibration.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "io/text.h"

namespace twofour {
namespace {

using io::in_quotes;

constexpr const char* kFormat = "twofour-calibration";
constexpr const char* kVersion = "1";
constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxHeads = 4096;
constexpr std::int64_t kMaxHeadDim = 512;

std::string tensor_name(std::int64_t layer, const char* part) {
  return "layers." + std::to_string(layer) + "." + part;
}

Status bad_layer(std::size_t layer, const std::string& message) {
  return Status(Code::kInvalidArgument, "layer " + std::to_string(layer) + ": " + message);
}

bool all_finite(const std::vector<float>& values) {
  for (const float value : values)
    if (!std::isfinite(value)) return false;
  return true;
}

/// Whether t_q t_k^T is the identity for one head. Rounding T and T^-T to
/// fp32 moves each product by at most 2^-23 of its size, so the tolerance grows with their sum.
bool is_inverse_pair(const float* t_q, const float* t_k, std::int64_t dim) {
  for (std::int64_t row = 0; row < dim; ++row) {
    for (std::int64_t col = 0; col < dim; ++col) {
      double sum = 0, magnitude = 0;
      for (std::int64_t i = 0; i < dim; ++i) {
        const double product = double{t_q[row * dim + i]} * double{t_k[col * dim + i]};
        sum += product;
        magnitude += std::fabs(product);
      }
      if (!(std::fabs(sum - (row == col ? 1.0 : 0.0)) <= 1e-3 + 1e-6 * magnitude)) return false;
    }
  }
  return true;
}

Result<std::string> required(const SafetensorsFile& file, const char* key) {
  const auto found = file.metadata().find(key);
  if (found != file.metadata().end()) return found->second;
  return {Code::kCorrupt, in_quotes(file.path()) + " is not a calibration: expected " +
                              in_quotes(key) + " in its metadata"};
}

Result<std::int64_t> required_integer(const SafetensorsFile& file, const char* key,
                                      std::int64_t most) {
  Result<std::string> text = required(file, key);
  if (!text.ok()) return text.status();
  io::Cursor cursor(*text, std::string(key) + " in the metadata of " + in_quotes(file.path()));
  Result<std::uint64_t> value = cursor.integer(static_cast<std::uint64_t>(most));
  if (!value.ok()) return value.status();
  if (!cursor.at_end() || *value < 1)
    return {Code::kCorrupt, in_quotes(file.path()) + " has " + key + " " + in_quotes(*text) +
                                "; expected an integer in 1.." + std::to_string(most)};
  return static_cast<std::int64_t>(*value);
}

Result<std::vector<float>> read_floats(const SafetensorsFile& file, const std::string& name,
                                       const std::vector<std::int64_t>& shape) {
  // Judged by the header, so that no memory is asked for on behalf of a wrong file.
  const auto found = file.entries().find(name);
  if (found != file.entries().end() &&
      (found->second.dtype != "F32" || found->second.shape != shape)) {
    std::string expected, got;
    for (const std::int64_t extent : shape) expected += " " + std::to_string(extent);
    for (const std::int64_t extent : found->second.shape) got += " " + std::to_string(extent);
    return {Code::kCorrupt, in_quotes(file.path()) + " holds " + in_quotes(name) +
                                ": expected F32 of shape" + expected + ", got " +
                                in_quotes(found->second.dtype) + " of shape" + got};
  }
  Result<Tensor> tensor = file.read(name);
  if (!tensor.ok()) {
    const bool missing = tensor.status().code() == Code::kNotFound;
    return {missing ? Code::kCorrupt : tensor.status().code(), tensor.status().message()};
  }
  std::vector<float> values(static_cast<std::size_t>(tensor->numel()));
  if (!values.empty()) std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
  return values;
}

}  // namespace

Result<KeyTransform> Calibration::transform(std::int64_t layer) const {
  if (layer < 0 || layer >= static_cast<std::int64_t>(layers.size()))
    return {Code::kInvalidArgument, "calibration layer " + std::to_string(layer) +
                                        ": expected 0.." + std::to_string(layers.size()) +
                                        " exclusive"};
  const Layer& part = layers[static_cast<std::size_t>(layer)];
  return KeyTransform{heads_kv, head_dim, part.t_q.data(), part.t_k.data(), part.w.data()};
}

Status Calibration::check_model(std::int64_t model_layers, std::int64_t model_heads_q,
                                std::int64_t model_heads_kv, std::int64_t model_head_dim) const {
  const auto describe = [](std::int64_t l, std::int64_t q, std::int64_t kv, std::int64_t d) {
    return std::to_string(l) + " layers, " + std::to_string(q) + "/" + std::to_string(kv) +
           " heads, head_dim " + std::to_string(d);
  };
  const auto own_layers = static_cast<std::int64_t>(layers.size());
  if (own_layers == model_layers && heads_q == model_heads_q && heads_kv == model_heads_kv &&
      head_dim == model_head_dim)
    return {};
  return Status(Code::kInvalidArgument,
                "the calibration is for " + in_quotes(model) + " with " +
                    describe(own_layers, heads_q, heads_kv, head_dim) + "; expected " +
                    describe(model_layers, model_heads_q, model_heads_kv, model_head_dim));
}

Status Calibration::validate() const {
  if (heads_kv < 1 || heads_q < heads_kv || heads_q > kMaxHeads || heads_q % heads_kv != 0)
    return Status(Code::kInvalidArgument,
                  "calibration heads: expected heads_q a multiple of "
                  "heads_kv, got " +
                      std::to_string(heads_q) + "/" + std::to_string(heads_kv));
  if (head_dim < 4 || head_dim > kMaxHeadDim || head_dim % 4 != 0)
    return Status(Code::kInvalidArgument, "calibration head_dim: expected a multiple of 4 in 4.." +
                                              std::to_string(kMaxHeadDim) + ", got " +
                                              std::to_string(head_dim));
  if (layers.empty() || layers.size() > static_cast<std::size_t>(kMaxLayers))
    return Status(Code::kInvalidArgument, "calibration: expected 1.." + std::to_string(kMaxLayers) +
                                              " layers, got " + std::to_string(layers.size()));
  const auto vector_size = static_cast<std::size_t>(heads_kv * head_dim);
  const std::size_t matrix_size = vector_size * static_cast<std::size_t>(head_dim);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const Layer& layer = layers[i];
    if (layer.t_q.size() != matrix_size || layer.t_k.size() != matrix_size ||
        layer.w.size() != vector_size)
      return bad_layer(i, "t_q, t_k or w have the wrong size");
    if (!all_finite(layer.t_q) || !all_finite(layer.t_k) || !all_finite(layer.w))
      return bad_layer(i, "expected finite t_q, t_k and w");
    for (const float weight : layer.w)
      if (!(weight > 0)) return bad_layer(i, "expected w > 0, got " + std::to_string(weight));
    for (std::int64_t head = 0; head < heads_kv; ++head) {
      const auto offset = static_cast<std::size_t>(head * head_dim * head_dim);
      if (!is_inverse_pair(&layer.t_q[offset], &layer.t_k[offset], head_dim))
        return bad_layer(i, "expected t_q t_k^T to be the identity; it is not for KV head " +
                                std::to_string(head));
    }
  }
  return {};
}

Result<Calibration> io::read_calibration(const SafetensorsFile& file) {
  Result<std::string> format = required(file, "format");
  if (!format.ok()) return format.status();
  if (*format != kFormat)
    return {Code::kCorrupt, in_quotes(file.path()) + " is not a calibration: expected format " +
                                in_quotes(kFormat) + ", got " + in_quotes(*format)};
  Result<std::string> version = required(file, "version");
  if (!version.ok()) return version.status();
  if (*version != kVersion)
    return {Code::kCorrupt, in_quotes(file.path()) + " is a calibration of version " +
                                in_quotes(*version) + "; expected version " + in_quotes(kVersion)};
  Result<std::string> model = required(file, "model");
  if (!model.ok()) return model.status();
  Result<std::string> kind = required(file, "kind");
  if (!kind.ok()) return kind.status();
  if (*kind != "identity" && *kind != "permutation" && *kind != "balanced")
    return {Code::kCorrupt, in_quotes(file.path()) + " has kind " + in_quotes(*kind) +
                                "; expected 'identity', 'permutation' or 'balanced'"};
  Calibration calibration;
  calibration.model = *std::move(model);
  calibration.kind = *std::move(kind);
  std::int64_t layer_count = 0;
  const std::pair<const char*, std::pair<std::int64_t*, std::int64_t>> integers[] = {
      {"layers", {&layer_count, kMaxLayers}},
      {"heads_q", {&calibration.heads_q, kMaxHeads}},
      {"heads_kv", {&calibration.heads_kv, kMaxHeads}},
      {"head_dim", {&calibration.head_dim, kMaxHeadDim}},
  };
  for (const auto& [key, target] : integers) {
    Result<std::int64_t> value = required_integer(file, key, target.second);
    if (!value.ok()) return value.status();
    *target.first = *value;
  }
  if (file.entries().size() != static_cast<std::size_t>(3 * layer_count))
    return {Code::kCorrupt,
            in_quotes(file.path()) + " has " + std::to_string(file.entries().size()) +
                " tensors; expected 3 for each of " + std::to_string(layer_count) + " layers"};
  const std::int64_t heads = calibration.heads_kv, dim = calibration.head_dim;
  for (std::int64_t i = 0; i < layer_count; ++i) {
    Calibration::Layer layer;
    const std::pair<const char*, std::vector<float>*> parts[] = {
        {"t_q", &layer.t_q}, {"t_k", &layer.t_k}, {"w", &layer.w}};
    for (const auto& [part, target] : parts) {
      const bool matrix = target != &layer.w;
      const std::vector<std::int64_t> shape = matrix ? std::vector<std::int64_t>{heads, dim, dim}
                                                     : std::vector<std::int64_t>{heads, dim};
      Result<std::vector<float>> values = read_floats(file, tensor_name(i, part), shape);
      if (!values.ok()) return values.status();
      *target = *std::move(values);
    }
    calibration.layers.push_back(std::move(layer));
  }
  if (Status status = calibration.validate(); !status.ok())
    return {Code::kCorrupt, in_quotes(file.path()) + ": " + status.message()};
  return calibration;
}

Result<Calibration> load_calibration(const std::string& path) {
  Result<SafetensorsFile> file = SafetensorsFile::open(path);
  if (!file.ok()) return file.status();
  return io::read_calibration(*file);
}

Status save_calibration(const std::string& path, const Calibration& calibration) {
  if (Status status = calibration.validate(); !status.ok()) return status;
  const std::int64_t heads = calibration.heads_kv, dim = calibration.head_dim;
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (std::size_t i = 0; i < calibration.layers.size(); ++i) {
    const Calibration::Layer& layer = calibration.layers[i];
    const auto add = [&](const char* part, std::vector<std::int64_t> shape,
                         const std::vector<float>& values) {
      Tensor tensor = make_tensor(DType::kF32, std::move(shape));
      std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
      tensors.emplace_back(tensor_name(static_cast<std::int64_t>(i), part), std::move(tensor));
    };
    add("t_q", {heads, dim, dim}, layer.t_q);
    add("t_k", {heads, dim, dim}, layer.t_k);
    add("w", {heads, dim}, layer.w);
  }
  std::vector<std::pair<std::string, const Tensor*>> views;
  views.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) views.emplace_back(name, &tensor);
  return write_safetensors(path, views,
                           {{"format", kFormat},
                            {"version", kVersion},
                            {"model", calibration.model},
                            {"kind", calibration.kind},
                            {"layers", std::to_string(calibration.layers.size())},
                            {"heads_q", std::to_string(calibration.heads_q)},
                            {"heads_kv", std::to_string(heads)},
                            {"head_dim", std::to_string(dim)}});
}

}  // namespace twofour
