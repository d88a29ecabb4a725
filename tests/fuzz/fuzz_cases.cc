// Any text: cases whose problems validate and whose own text reads back as one case, or one line.
#include "fuzz.h"
#include "io/cases.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace twofour;
  const auto cases = io::parse_cases(fuzz::text_of(data, size), "fuzz");
  if (!cases.ok()) {
    FUZZ_CHECK(cases.status().code() == Code::kInvalidArgument);
    return 0;
  }
  for (const io::Case& c : *cases) {
    FUZZ_CHECK(validate(c.problem).ok());
    const auto again = io::parse_cases(c.text, "again");
    FUZZ_CHECK(again.ok() && again->size() == 1 && again->front().text == c.text);
  }
  return 0;
}
