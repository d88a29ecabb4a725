// Any text: a valid sparsity whose canonical string reads back as the same value, or one refusal.
#include "fuzz.h"
#include "twofour/sparsity.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace twofour;
  const auto sparsity = parse_sparsity(fuzz::text_of(data, size));
  if (!sparsity.ok()) {
    FUZZ_CHECK(sparsity.status().code() == Code::kInvalidArgument);
    FUZZ_CHECK(!sparsity.status().message().empty());
    return 0;
  }
  FUZZ_CHECK(validate(*sparsity).ok());
  const std::string canonical = to_string(*sparsity);
  const auto again = parse_sparsity(canonical);
  FUZZ_CHECK(again.ok() && *again == *sparsity);
  FUZZ_CHECK(to_string(*again) == canonical);
  return 0;
}
