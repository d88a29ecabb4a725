// Any bytes: a tensor whose size agrees with its shape and that survives being written, or one
// line.
#include <cstring>

#include "fuzz.h"
#include "io/npy.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace twofour;
  NpyOptions options;
  options.uint16_is_bf16 = size % 2 == 1;
  const auto tensor = io::read_npy(*io::from_memory(fuzz::bytes_of(data, size), "fuzz"), options);
  if (!tensor.ok()) {
    fuzz::check_refusal(tensor.status());
    return 0;
  }
  FUZZ_CHECK(tensor->bytes.size() ==
             static_cast<std::uint64_t>(tensor->numel()) * size_of(tensor->dtype));
  // The data is all that follows the header, to the last byte of the file.
  FUZZ_CHECK(tensor->bytes.size() < size);
  FUZZ_CHECK(tensor->bytes.empty() || std::memcmp(data + size - tensor->bytes.size(),
                                                  tensor->bytes.data(), tensor->bytes.size()) == 0);
  const std::string head = io::npy_header(*tensor);
  FUZZ_CHECK(head.size() % 64 == 0);
  std::vector<std::byte> written(head.size() + tensor->bytes.size());
  std::memcpy(written.data(), head.data(), head.size());
  std::copy(tensor->bytes.begin(), tensor->bytes.end(),
            written.begin() + static_cast<std::ptrdiff_t>(head.size()));
  const auto again = io::read_npy(*io::from_memory(std::move(written), "again"), {});
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(again->dtype == tensor->dtype && again->shape == tensor->shape &&
             again->bytes == tensor->bytes);
  return 0;
}
