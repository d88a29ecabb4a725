// Calibration from an open .safetensors file: what load_calibration does after opening it.
#pragma once

#include "twofour/calibration.h"
#include "twofour/io.h"

namespace twofour::io {

/// Errors as for load_calibration.
Result<Calibration> read_calibration(const SafetensorsFile& file);

}  // namespace twofour::io
