// Calibration of a model: the basis of the pruned Query of every layer, in one file.
//
// A .safetensors file. Metadata (all strings): format "twofour-calibration", version "1", model,
// kind ("identity", "permutation", "balanced"), layers, heads_q, heads_kv, head_dim; other keys are
// kept and ignored. Tensors, fp32, for each layer i: layers.{i}.t_q and layers.{i}.t_k [Hkv,D,D]
// (T and T^-T), layers.{i}.w [Hkv,D].
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "twofour/prepare.h"
#include "twofour/status.h"

namespace TWOFOUR_API twofour {

class Calibration {
 public:
  struct Layer {
    std::vector<float> t_q;  // [Hkv,D,D]: T
    std::vector<float> t_k;  // [Hkv,D,D]: T^-T
    std::vector<float> w;    // [Hkv,D], > 0
  };

  std::string model;              // as the writer named it
  std::string kind = "identity";  // how T was made
  std::int64_t heads_q = 0;
  std::int64_t heads_kv = 0;
  std::int64_t head_dim = 0;
  std::vector<Layer> layers;

  /// A view of one layer, valid while the calibration lives. Error kInvalidArgument out of range.
  Result<KeyTransform> transform(std::int64_t layer) const;

  /// kOk when the calibration was made for a model of this form, else kInvalidArgument naming what
  /// differs.
  Status check_model(std::int64_t model_layers, std::int64_t model_heads_q,
                     std::int64_t model_heads_kv, std::int64_t model_head_dim) const;

  /// Sizes agree, every entry is finite, w > 0, and t_q t_k^T is the identity to within 1e-3 plus
  /// what the rounding of its terms to fp32 explains; else kInvalidArgument naming layer and head.
  Status validate() const;
};

/// Errors: kNotFound, kIo; kCorrupt for a malformed file, missing or extra tensors, another format
/// or version, and for whatever validate() refuses.
Result<Calibration> load_calibration(const std::string& path);

/// Writes the file whole or not at all. Errors: those of validate(), kIo.
Status save_calibration(const std::string& path, const Calibration& calibration);

}  // namespace twofour
