// What comes before the data of a .safetensors file.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "io/file.h"
#include "twofour/io.h"

namespace twofour::io {

struct SafetensorsHead {
  std::string bytes;               // length and header
  std::vector<std::size_t> order;  // in which the data of the tensors follows
};

/// Error kInvalidArgument as for write_safetensors.
Result<SafetensorsHead> safetensors_head(
    const std::vector<std::pair<std::string, const Tensor*>>& tensors,
    const std::map<std::string, std::string>& metadata);

/// Writes all of the file, and leaves the commit to the caller.
Status write_safetensors(AtomicFile& file,
                         const std::vector<std::pair<std::string, const Tensor*>>& tensors,
                         const std::map<std::string, std::string>& metadata);

}  // namespace twofour::io
