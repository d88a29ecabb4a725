// The .safetensors format: 8 bytes of header length, a JSON header, then the data of the tensors
// without holes. https://github.com/huggingface/safetensors#format
#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <tuple>

#include "io/file.h"
#include "io/tensor_checks.h"
#include "io/text.h"

namespace twofour {
namespace {

using io::Cursor;
using io::in_quotes;

constexpr std::uint64_t kMaxHeader = 100'000'000;  // the limit of the format's own library
constexpr std::uint64_t kMaxInteger = std::uint64_t{1} << 62;
constexpr std::size_t kMaxAxes = 64;

struct FileDType {
  const char* name;
  int bits;
  std::optional<DType> dtype;  // none: known to the format, not to Tensor
};
constexpr FileDType kDTypes[] = {
    {"F32", 32, DType::kF32},     {"F16", 16, DType::kF16},     {"BF16", 16, DType::kBF16},
    {"F64", 64, DType::kF64},     {"I8", 8, DType::kI8},        {"U8", 8, DType::kU8},
    {"BOOL", 8, DType::kBool},    {"I32", 32, DType::kI32},     {"I64", 64, DType::kI64},
    {"I16", 16, std::nullopt},    {"U16", 16, std::nullopt},    {"U32", 32, std::nullopt},
    {"U64", 64, std::nullopt},    {"F8_E4M3", 8, std::nullopt}, {"F8_E5M2", 8, std::nullopt},
    {"F8_E8M0", 8, std::nullopt}, {"F4", 4, std::nullopt},      {"F6_E2M3", 6, std::nullopt},
    {"F6_E3M2", 6, std::nullopt}, {"C64", 64, std::nullopt},
};

const FileDType* find_dtype(const std::string& name) {
  for (const FileDType& dtype : kDTypes)
    if (name == dtype.name) return &dtype;
  return nullptr;
}

Status corrupt(const std::string& path, const std::string& message) {
  return Status(Code::kCorrupt, in_quotes(path) + " is not a valid .safetensors file: " + message);
}

/// Visits the members of an object: `member(key)` reads the value. Refuses a key that came before.
template <class Member>
Status parse_object(Cursor& cursor, Member&& member) {
  if (Status status = cursor.expect('{'); !status.ok()) return status;
  if (cursor.accept('}')) return {};
  std::set<std::string> seen;
  do {
    Result<std::string> key = cursor.json_text();
    if (!key.ok()) return key.status();
    if (!seen.insert(*key).second) return cursor.error("each name once, after " + in_quotes(*key));
    if (Status status = cursor.expect(':'); !status.ok()) return status;
    if (Status status = member(*key); !status.ok()) return status;
  } while (cursor.accept(','));
  if (cursor.accept('}')) return {};
  return cursor.error("',' or '}'");
}

Result<std::vector<std::uint64_t>> parse_integers(Cursor& cursor, std::size_t most) {
  std::vector<std::uint64_t> values;
  if (Status status = cursor.expect('['); !status.ok()) return status;
  if (cursor.accept(']')) return values;
  do {
    if (values.size() == most) return cursor.error("at most " + std::to_string(most) + " integers");
    Result<std::uint64_t> value = cursor.integer(kMaxInteger);
    if (!value.ok()) return value.status();
    values.push_back(*value);
  } while (cursor.accept(','));
  if (cursor.accept(']')) return values;
  return cursor.error("',' or ']'");
}

/// {"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}
Result<SafetensorsFile::Entry> parse_entry(Cursor& cursor) {
  SafetensorsFile::Entry entry;
  int members = 0;
  Status status = parse_object(cursor, [&](const std::string& key) -> Status {
    ++members;
    if (key == "dtype") {
      Result<std::string> value = cursor.json_text();
      if (!value.ok()) return value.status();
      entry.dtype = *std::move(value);
    } else if (key == "shape") {
      Result<std::vector<std::uint64_t>> value = parse_integers(cursor, kMaxAxes);
      if (!value.ok()) return value.status();
      entry.shape.assign(value->begin(), value->end());
    } else if (key == "data_offsets") {
      Result<std::vector<std::uint64_t>> value = parse_integers(cursor, 2);
      if (!value.ok()) return value.status();
      if (value->size() != 2) return cursor.error("two data offsets");
      entry.begin = (*value)[0];
      entry.end = (*value)[1];
    } else {
      return cursor.error("dtype, shape or data_offsets, after " + in_quotes(key));
    }
    return {};
  });
  if (!status.ok()) return status;
  if (members != 3) return cursor.error("dtype, shape and data_offsets of a tensor");
  return entry;
}

/// Sizes match shapes, and the tensors cover the data exactly: no overlap, no hole, no rest.
Status check_layout(const std::string& path,
                    const std::map<std::string, SafetensorsFile::Entry>& entries,
                    std::uint64_t data_size) {
  using Named = std::pair<const std::string, SafetensorsFile::Entry>;
  std::vector<const Named*> order;
  for (const Named& named : entries) {
    const auto& [name, entry] = named;
    const FileDType* dtype = find_dtype(entry.dtype);
    if (dtype == nullptr)
      return corrupt(path,
                     "tensor " + in_quotes(name) + " has unknown dtype " + in_quotes(entry.dtype));
    const auto bytes = io::checked_bytes(entry.shape, static_cast<std::uint64_t>(dtype->bits));
    if (!bytes)
      return corrupt(path, "the shape of tensor " + in_quotes(name) + " overflows 64 bits");
    if (entry.begin > entry.end || entry.end - entry.begin != *bytes)
      return corrupt(path, "tensor " + in_quotes(name) + " has data offsets [" +
                               std::to_string(entry.begin) + ", " + std::to_string(entry.end) +
                               "); expected " + std::to_string(*bytes) + " bytes");
    order.push_back(&named);
  }
  std::sort(order.begin(), order.end(), [](const Named* a, const Named* b) {
    return std::tie(a->second.begin, a->second.end) < std::tie(b->second.begin, b->second.end);
  });
  std::uint64_t at = 0;
  for (const Named* named : order) {
    if (named->second.begin != at)
      return corrupt(path, "tensor " + in_quotes(named->first) + " starts at byte " +
                               std::to_string(named->second.begin) + " of the data; expected " +
                               std::to_string(at) + " (no overlap, no hole)");
    at = named->second.end;
  }
  if (at != data_size)
    return corrupt(path, "expected " + std::to_string(at) + " bytes of data, got " +
                             std::to_string(data_size));
  return {};
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::parse(std::shared_ptr<const io::Source> source) {
  const std::string& path = source->path();
  if (source->size() < 8)
    return corrupt(path, "expected at least 8 bytes, got " + std::to_string(source->size()));
  std::array<std::byte, 8> prefix;
  if (Status status = source->read_at(0, prefix); !status.ok()) return status;
  static_assert(std::endian::native == std::endian::little);
  const auto length = std::bit_cast<std::uint64_t>(prefix);
  const std::uint64_t most = std::min(kMaxHeader, source->size() - 8);
  if (length > most)
    return corrupt(path, "the header claims " + std::to_string(length) +
                             " bytes; expected at most " + std::to_string(most));
  std::string header(static_cast<std::size_t>(length), '\0');
  if (Status status = source->read_at(8, std::as_writable_bytes(std::span(header))); !status.ok())
    return status;
  if (header.empty() || header[0] != '{')
    return corrupt(path, "expected its header to start with '{'");

  SafetensorsFile file;
  Cursor cursor(header, "header of " + in_quotes(path));
  Status status = parse_object(cursor, [&](const std::string& name) -> Status {
    if (name == "__metadata__")
      return parse_object(cursor, [&](const std::string& key) -> Status {
        Result<std::string> value = cursor.json_text();
        if (!value.ok()) return value.status();
        file.metadata_[key] = *std::move(value);
        return {};
      });
    Result<Entry> entry = parse_entry(cursor);
    if (!entry.ok()) return entry.status();
    file.entries_[name] = *std::move(entry);
    return {};
  });
  if (!status.ok()) return status;
  if (!cursor.at_end()) return cursor.error("nothing after the header's object");
  if (status = check_layout(path, file.entries_, source->size() - 8 - length); !status.ok())
    return status;
  for (auto& [name, entry] : file.entries_) {
    entry.begin += 8 + length;
    entry.end += 8 + length;
  }
  file.source_ = std::move(source);
  return file;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  Result<std::shared_ptr<const io::Source>> source = io::open_file(path);
  if (!source.ok()) return source.status();
  return parse(*std::move(source));
}

Result<SafetensorsFile> SafetensorsFile::from_memory(std::vector<std::byte> bytes,
                                                     const std::string& name) {
  return parse(io::from_memory(std::move(bytes), name));
}

const std::string& SafetensorsFile::path() const { return source_->path(); }

Result<Tensor> SafetensorsFile::read(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    std::string names;
    for (const auto& [known, entry] : entries_) {
      if (names.size() > 200) {
        names += ", ...";
        break;
      }
      names += (names.empty() ? "" : ", ") + in_quotes(known);
    }
    return {Code::kNotFound, in_quotes(path()) + " has no tensor " + in_quotes(name) +
                                 "; it holds " + (names.empty() ? "none" : names)};
  }
  const Entry& entry = found->second;
  const std::optional<DType> dtype = find_dtype(entry.dtype)->dtype;
  if (!dtype)
    return {Code::kUnsupported, in_quotes(path()) + " holds " + in_quotes(name) + " as " +
                                    entry.dtype + ", which is not read here"};
  if (entry.shape.size() > static_cast<std::size_t>(kMaxRank))
    return {Code::kUnsupported, in_quotes(path()) + " holds " + in_quotes(name) + " with " +
                                    std::to_string(entry.shape.size()) +
                                    " axes; expected at most " + std::to_string(kMaxRank)};
  Result<std::vector<std::byte>> data = io::allocate(entry.end - entry.begin, path());
  if (!data.ok()) return data.status();
  if (Status status = source_->read_at(entry.begin, *data); !status.ok()) return status;
  Tensor tensor{*dtype, entry.shape, *std::move(data)};
  if (Status status = io::check_bools(tensor, path()); !status.ok()) return status;
  return tensor;
}

Result<io::SafetensorsHead> io::safetensors_head(
    const std::vector<std::pair<std::string, const Tensor*>>& tensors,
    const std::map<std::string, std::string>& metadata) {
  const auto invalid = [](const std::string& why) { return Status(Code::kInvalidArgument, why); };
  SafetensorsHead head;
  head.order.resize(tensors.size());
  std::iota(head.order.begin(), head.order.end(), std::size_t{0});
  std::stable_sort(head.order.begin(), head.order.end(), [&](std::size_t a, std::size_t b) {
    return size_of(tensors[a].second->dtype) > size_of(tensors[b].second->dtype);
  });

  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    const char* comma = "";
    for (const auto& [key, value] : metadata) {
      if (!is_utf8(key) || !is_utf8(value)) return invalid("metadata is not UTF-8");
      json += comma + json_string(key) + ":" + json_string(value);
      comma = ",";
    }
    json += "}";
  }
  std::set<std::string> names;
  std::uint64_t at = 0;
  for (const std::size_t i : head.order) {
    const auto& [name, tensor] = tensors[i];
    if (!is_utf8(name)) return invalid("the tensor name " + in_quotes(name) + " is not UTF-8");
    if (name == "__metadata__" || !names.insert(name).second)
      return invalid("the tensor name " + in_quotes(name) + " is taken");
    const DType own = tensor->dtype;
    const auto* dtype = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                                     [own](const FileDType& d) { return d.dtype == own; });
    json += (json.size() > 1 ? "," : "") + json_string(name) + ":{\"dtype\":\"" + dtype->name +
            "\",\"shape\":[";
    for (std::size_t axis = 0; axis < tensor->shape.size(); ++axis)
      json += (axis > 0 ? "," : "") + std::to_string(tensor->shape[axis]);
    const std::uint64_t end = at + tensor->bytes.size();
    json += "],\"data_offsets\":[" + std::to_string(at) + "," + std::to_string(end) + "]}";
    at = end;
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');  // so that the data starts aligned
  const std::uint64_t length = json.size();
  head.bytes.assign(reinterpret_cast<const char*>(&length), sizeof length);
  head.bytes += json;
  return head;
}

Status io::write_safetensors(AtomicFile& file,
                             const std::vector<std::pair<std::string, const Tensor*>>& tensors,
                             const std::map<std::string, std::string>& metadata) {
  Result<SafetensorsHead> head = safetensors_head(tensors, metadata);
  if (!head.ok())
    return Status(head.status().code(),
                  "cannot write " + in_quotes(file.path()) + ": " + head.status().message());
  Status status = file.write(head->bytes);
  for (const std::size_t i : head->order) {
    const Tensor& tensor = *tensors[i].second;
    if (status.ok()) status = file.write(tensor.bytes.data(), tensor.bytes.size());
  }
  return status;
}

Status write_safetensors(const std::string& path,
                         const std::vector<std::pair<std::string, const Tensor*>>& tensors,
                         const std::map<std::string, std::string>& metadata) {
  Result<io::AtomicFile> file = io::AtomicFile::create(path);
  if (!file.ok()) return file.status();
  if (Status status = io::write_safetensors(*file, tensors, metadata); !status.ok()) return status;
  return file->commit();
}

}  // namespace twofour
