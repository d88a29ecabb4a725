// The .npy format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#include "io/npy.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include "io/tensor_checks.h"
#include "io/text.h"

namespace twofour {
namespace io {
namespace {

static_assert(std::endian::native == std::endian::little, "files are read without byte swapping");

constexpr char kMagic[] = "\x93NUMPY";
constexpr std::size_t kMagicBytes = 6;
constexpr std::uint64_t kMaxHeader = 65536;  // NumPy refuses above 10,000
constexpr std::uint64_t kMaxExtent = std::uint64_t{1} << 62;

struct Preamble {
  std::uint64_t header_begin = 0;
  std::uint64_t header_end = 0;  // where the data starts
};

struct Header {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
};

Status corrupt(const std::string& name, const std::string& message) {
  return Status(Code::kCorrupt, in_quotes(name) + " is not a valid .npy file: " + message);
}

/// Reads magic, version and header length from the first bytes of the file.
Result<Preamble> parse_preamble(std::span<const std::byte> bytes, std::uint64_t file_size,
                                const std::string& name) {
  if (bytes.size() < kMagicBytes + 4 || std::memcmp(bytes.data(), kMagic, kMagicBytes) != 0)
    return corrupt(name, "expected it to start with \\x93NUMPY and a version");
  const auto byte = [&](std::size_t i) { return std::to_integer<std::uint64_t>(bytes[i]); };
  const std::uint64_t version = byte(6);
  if (version < 1 || version > 3 || byte(7) != 0)
    return corrupt(name, "expected version 1.0, 2.0 or 3.0, got " + std::to_string(version) + "." +
                             std::to_string(byte(7)));
  Preamble preamble;
  std::uint64_t length = byte(8) | (byte(9) << 8);
  preamble.header_begin = 10;
  if (version >= 2) {
    if (bytes.size() < 12) return corrupt(name, "expected a header length, got the end");
    length |= (byte(10) << 16) | (byte(11) << 24);
    preamble.header_begin = 12;
  }
  preamble.header_end = preamble.header_begin + length;
  if (length > kMaxHeader || preamble.header_end > file_size)
    return corrupt(name,
                   "the header claims " + std::to_string(length) + " bytes; expected at most " +
                       std::to_string(std::min(kMaxHeader, file_size - preamble.header_begin)));
  return preamble;
}

Result<DType> parse_descr(const std::string& descr, const std::string& name,
                          const NpyOptions& options) {
  const auto unsupported = [&](const std::string& why) {
    return Status(Code::kUnsupported,
                  in_quotes(name) + " has dtype " + in_quotes(descr) + ": " + why);
  };
  if (descr.size() < 3) return unsupported("expected a byte order, a letter and a size");
  const std::string kind = descr.substr(1);
  const char order = descr[0];
  if (order == '>' && kind.back() != '1')
    return unsupported("big endian; expected little endian, save with .astype('<" + kind + "')");
  if (order != '<' && order != '|' && order != '=' && order != '>')
    return unsupported("expected a byte order, a letter and a size");
  if (kind == "f4") return DType::kF32;
  if (kind == "f2") return DType::kF16;
  if (kind == "f8") return DType::kF64;
  if (kind == "i1") return DType::kI8;
  if (kind == "u1") return DType::kU8;
  if (kind == "b1") return DType::kBool;
  if (kind == "i4") return DType::kI32;
  if (kind == "i8") return DType::kI64;
  if (kind == "V2") return DType::kBF16;
  if (kind == "u2") {
    if (options.uint16_is_bf16) return DType::kBF16;
    return unsupported("uint16 is read only as the bits of bf16, and only when asked for");
  }
  return unsupported("expected f4, f2, f8, i1, u1, b1, i4, i8 or V2 (bf16)");
}

Result<std::vector<std::int64_t>> parse_shape(Cursor& cursor) {
  std::vector<std::int64_t> shape;
  if (Status status = cursor.expect('('); !status.ok()) return status;
  while (!cursor.accept(')')) {
    Result<std::uint64_t> extent = cursor.integer(kMaxExtent);
    if (!extent.ok()) return extent.status();
    if (shape.size() == 32) return cursor.error("at most 32 axes");
    shape.push_back(static_cast<std::int64_t>(*extent));
    if (cursor.accept(',')) continue;
    if (shape.size() == 1) return cursor.error("',' after the only axis");
    if (!cursor.accept(')')) return cursor.error("',' or ')'");
    break;
  }
  return shape;
}

/// {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
Result<Header> parse_header(std::string_view text, const std::string& name,
                            const NpyOptions& options) {
  Cursor cursor(text, "header of " + in_quotes(name));
  std::optional<std::string> descr;
  std::optional<bool> fortran;
  std::optional<std::vector<std::int64_t>> shape;
  if (Status status = cursor.expect('{'); !status.ok()) return status;
  while (!cursor.accept('}')) {
    Result<std::string> key = cursor.python_text();
    if (!key.ok()) return key.status();
    if (Status status = cursor.expect(':'); !status.ok()) return status;
    if (*key == "descr" && !descr) {
      if (cursor.accept('['))
        return {Code::kUnsupported, in_quotes(name) + " holds records; expected a plain array"};
      Result<std::string> value = cursor.python_text();
      if (!value.ok()) return value.status();
      descr = *std::move(value);
    } else if (*key == "fortran_order" && !fortran) {
      fortran = cursor.accept_word("True");
      if (!*fortran && !cursor.accept_word("False")) return cursor.error("True or False");
    } else if (*key == "shape" && !shape) {
      Result<std::vector<std::int64_t>> value = parse_shape(cursor);
      if (!value.ok()) return value.status();
      shape = *std::move(value);
    } else {
      return corrupt(name, "expected the keys descr, fortran_order and shape once each, got " +
                               in_quotes(*key));
    }
    if (cursor.accept(',')) continue;
    if (!cursor.accept('}')) return cursor.error("',' or '}'");
    break;
  }
  if (!cursor.at_end()) return cursor.error("nothing after the dictionary");
  if (!descr || !fortran || !shape)
    return corrupt(name, "expected the keys descr, fortran_order and shape");
  Result<DType> dtype = parse_descr(*descr, name, options);
  if (!dtype.ok()) return dtype.status();
  // The order of an array with one axis or none does not matter, and NumPy may say either.
  const auto long_axes =
      std::count_if(shape->begin(), shape->end(), [](std::int64_t extent) { return extent != 1; });
  if (*fortran && long_axes > 1)
    return {Code::kUnsupported, in_quotes(name) +
                                    " is in Fortran order; expected C order, save with "
                                    "numpy.ascontiguousarray"};
  if (shape->size() > kMaxRank)
    return {Code::kUnsupported, in_quotes(name) + " has " + std::to_string(shape->size()) +
                                    " axes; expected at most " + std::to_string(kMaxRank)};
  return Header{*dtype, *std::move(shape)};
}

/// The number of data bytes, which must be exactly what follows the header.
Result<std::uint64_t> data_bytes(const Header& header, std::uint64_t available,
                                 const std::string& name) {
  const auto bytes = checked_bytes(header.shape, 8 * size_of(header.dtype));
  if (!bytes) return corrupt(name, "its shape overflows 64 bits");
  if (*bytes != available)
    return corrupt(name, "expected " + std::to_string(*bytes) + " bytes of data, got " +
                             std::to_string(available));
  return *bytes;
}

}  // namespace

Result<Tensor> read_npy(const Source& source, const NpyOptions& options) {
  const std::string& name = source.path();
  std::vector<std::byte> head(std::min<std::uint64_t>(source.size(), 12 + kMaxHeader));
  if (Status status = source.read_at(0, head); !status.ok()) return status;
  Result<Preamble> preamble = parse_preamble(head, source.size(), name);
  if (!preamble.ok()) return preamble.status();
  const std::uint64_t begin = preamble->header_begin, end = preamble->header_end;
  const std::string_view text(reinterpret_cast<const char*>(head.data()) + begin, end - begin);
  Result<Header> header = parse_header(text, name, options);
  if (!header.ok()) return header.status();
  Result<std::uint64_t> size = data_bytes(*header, source.size() - end, name);
  if (!size.ok()) return size.status();
  Result<std::vector<std::byte>> data = allocate(*size, name);
  if (!data.ok()) return data.status();
  if (Status status = source.read_at(end, *data); !status.ok()) return status;
  Tensor tensor{header->dtype, header->shape, *std::move(data)};
  if (Status status = check_bools(tensor, name); !status.ok()) return status;
  return tensor;
}

std::string npy_header(const Tensor& tensor) {
  std::string descr;
  switch (tensor.dtype) {
    case DType::kF32:
      descr = "<f4";
      break;
    case DType::kF16:
      descr = "<f2";
      break;
    case DType::kBF16:
      descr = "<V2";
      break;
    case DType::kF64:
      descr = "<f8";
      break;
    case DType::kI8:
      descr = "|i1";
      break;
    case DType::kU8:
      descr = "|u1";
      break;
    case DType::kBool:
      descr = "|b1";
      break;
    case DType::kI32:
      descr = "<i4";
      break;
    case DType::kI64:
      descr = "<i8";
      break;
  }
  std::string text = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (";
  for (std::size_t i = 0; i < tensor.shape.size(); ++i)
    text += (i > 0 ? ", " : "") + std::to_string(tensor.shape[i]);
  text += tensor.shape.size() == 1 ? ",), }" : "), }";
  constexpr std::size_t kPrefix = 10;  // magic, version, length
  while ((kPrefix + text.size() + 1) % 64 != 0) text += ' ';
  text += '\n';
  std::string out(kMagic, kMagicBytes);
  out += '\x01';
  out += '\0';
  out += static_cast<char>(text.size() & 0xFF);
  out += static_cast<char>(text.size() >> 8);
  return out + text;
}

}  // namespace io

Result<Tensor> read_npy(const std::string& path, const NpyOptions& options) {
  Result<std::shared_ptr<const io::Source>> source = io::open_file(path);
  if (!source.ok()) return source.status();
  return io::read_npy(**source, options);
}

Status io::write_npy(AtomicFile& file, const Tensor& tensor) {
  if (Status status = file.write(npy_header(tensor)); !status.ok()) return status;
  return file.write(tensor.bytes.data(), tensor.bytes.size());
}

Status write_npy(const std::string& path, const Tensor& tensor) {
  Result<io::AtomicFile> file = io::AtomicFile::create(path);
  if (!file.ok()) return file.status();
  if (Status status = io::write_npy(*file, tensor); !status.ok()) return status;
  return file->commit();
}

}  // namespace twofour
