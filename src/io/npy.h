// The .npy format over any source of bytes.
#pragma once

#include <string>

#include "io/file.h"
#include "twofour/io.h"

namespace twofour::io {

/// Errors as for the read_npy that takes a path.
Result<Tensor> read_npy(const Source& source, const NpyOptions& options);

/// Writes all of the file, and leaves the commit to the caller.
Status write_npy(AtomicFile& file, const Tensor& tensor);

/// The bytes before the data of a version 1 file, padded so that the data is aligned to 64.
std::string npy_header(const Tensor& tensor);

}  // namespace twofour::io
