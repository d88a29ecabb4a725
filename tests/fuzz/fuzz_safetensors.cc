// Any bytes: tensors that lie inside the file and survive being written, or one line.
#include <cstring>

#include "fuzz.h"
#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace twofour;
  const auto file = SafetensorsFile::from_memory(fuzz::bytes_of(data, size), "fuzz");
  if (!file.ok()) {
    fuzz::check_refusal(file.status());
    return 0;
  }
  std::uint64_t total = 0;
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, entry] : file->entries()) {
    FUZZ_CHECK(entry.begin <= entry.end && entry.end <= size);
    total += entry.end - entry.begin;
    auto tensor = file->read(name);
    if (!tensor.ok()) {
      fuzz::check_refusal(tensor.status());
      continue;
    }
    FUZZ_CHECK(tensor->bytes.size() ==
               static_cast<std::uint64_t>(tensor->numel()) * size_of(tensor->dtype));
    tensors[name] = *std::move(tensor);
  }
  // No hole, no overlap, no rest: the tensors fill the file.
  std::uint64_t length = 0;
  std::memcpy(&length, data, sizeof length);
  FUZZ_CHECK(8 + length + total == size);
  FUZZ_CHECK(file->contains("no such tensor") ||
             file->read("no such tensor").status().code() == Code::kNotFound);

  std::vector<std::pair<std::string, const Tensor*>> views;
  for (const auto& [name, tensor] : tensors) views.emplace_back(name, &tensor);
  const auto head = io::safetensors_head(views, file->metadata());
  FUZZ_CHECK(head.ok());
  std::string written = head->bytes;
  for (const std::size_t i : head->order)
    written.append(reinterpret_cast<const char*>(views[i].second->bytes.data()),
                   views[i].second->bytes.size());
  const auto* begin = reinterpret_cast<const std::byte*>(written.data());
  const auto again = SafetensorsFile::from_memory({begin, begin + written.size()}, "again");
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(again->metadata() == file->metadata());
  FUZZ_CHECK(again->entries().size() == tensors.size());
  for (const auto& [name, tensor] : tensors) FUZZ_CHECK(again->read(name)->bytes == tensor.bytes);
  return 0;
}
