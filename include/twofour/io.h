// Tensors in files: .npy (NumPy) and .safetensors (Hugging Face), read strictly and written whole.
//
// A reader trusts nothing in the file: sizes are checked against the file's length before memory is
// asked for, so a short malicious file cannot ask for much. A writer writes a temporary file beside
// the destination and renames it, so a reader sees the old file, the new one, never a part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "twofour/status.h"
#include "twofour/tensor.h"

namespace TWOFOUR_API twofour {

namespace io {
class Source;  // src/io/file.h
}

/// Contiguous row-major memory owned by the value; at most kMaxRank axes.
struct Tensor {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;  // numel() * size_of(dtype)

  std::int64_t numel() const;
  TensorView view();
  ConstTensorView view() const;
};

/// Zero-filled tensor of a shape whose size is known to fit.
Tensor make_tensor(DType dtype, std::vector<std::int64_t> shape);

struct NpyOptions {
  bool uint16_is_bf16 = false;  // read '<u2' as the bits of bf16
};

/// Reads a .npy file, format versions 1 to 3, C order, little endian: <f4 <f2 <f8 |i1 |u1 |b1 <i4
/// <i8, and bf16 as |V2 (what ml_dtypes writes) or, by option, as <u2.
/// Errors: kNotFound; kIo; kCorrupt for a malformed, truncated or oversized file; kUnsupported for
/// big endian, Fortran order, other dtypes, more than kMaxRank axes; kOutOfMemory.
Result<Tensor> read_npy(const std::string& path, const NpyOptions& options = {});

/// Writes format version 1; bf16 as <V2. Errors: kIo, and then `path` is as it was.
Status write_npy(const std::string& path, const Tensor& tensor);

/// An open .safetensors file: the header is checked at once, tensors are read when asked for.
class SafetensorsFile {
 public:
  struct Entry {
    std::string dtype;  // as in the file, "F32"
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0;  // bytes, from the end of the header
    std::uint64_t end = 0;
  };

  /// Errors: kNotFound, kIo; kCorrupt for a header that is not strict JSON of the documented form,
  /// for offsets that overlap, leave holes or do not cover the file exactly, and for duplicate
  /// names.
  static Result<SafetensorsFile> open(const std::string& path);
  /// The same over bytes in memory; `name` stands for the path in messages.
  static Result<SafetensorsFile> from_memory(std::vector<std::byte> bytes, const std::string& name);

  const std::map<std::string, Entry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& path() const;
  bool contains(const std::string& name) const { return entries_.count(name) != 0; }

  /// Errors: kNotFound with the names there are; kUnsupported for a dtype or rank that Tensor does
  /// not have; kCorrupt, kIo, kOutOfMemory.
  Result<Tensor> read(const std::string& name) const;

 private:
  static Result<SafetensorsFile> parse(std::shared_ptr<const io::Source> source);
  std::shared_ptr<const io::Source> source_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

/// Writes the tensors in the order of their element size, so that all are aligned. Errors:
/// kInvalidArgument for a duplicate or non-UTF-8 name; kIo, and then `path` is as it was.
Status write_safetensors(const std::string& path,
                         const std::vector<std::pair<std::string, const Tensor*>>& tensors,
                         const std::map<std::string, std::string>& metadata = {});

}  // namespace twofour
