// Any bytes: a calibration that passes its own validation and serves every layer, or one line.
#include "fuzz.h"
#include "io/calibration.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace twofour;
  const auto file = SafetensorsFile::from_memory(fuzz::bytes_of(data, size), "fuzz");
  if (!file.ok()) return 0;  // fuzz_safetensors looks at these
  const auto calibration = io::read_calibration(*file);
  if (!calibration.ok()) {
    fuzz::check_refusal(calibration.status());
    return 0;
  }
  FUZZ_CHECK(calibration->validate().ok());
  const auto layers = static_cast<std::int64_t>(calibration->layers.size());
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const auto transform = calibration->transform(layer);
    FUZZ_CHECK(transform.ok());
    const std::int64_t matrix = transform->heads_kv * transform->head_dim * transform->head_dim;
    // The last elements, for AddressSanitizer.
    FUZZ_CHECK(transform->t_q[matrix - 1] == transform->t_q[matrix - 1]);
    FUZZ_CHECK(transform->t_k[matrix - 1] == transform->t_k[matrix - 1]);
    FUZZ_CHECK(transform->w[transform->heads_kv * transform->head_dim - 1] > 0);
  }
  FUZZ_CHECK(!calibration->transform(layers).ok());
  FUZZ_CHECK(
      calibration
          ->check_model(layers, calibration->heads_q, calibration->heads_kv, calibration->head_dim)
          .ok());
  return 0;
}
