#include "twofour/status.h"

namespace twofour {

const char* to_string(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid_argument";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kNotFound:
      return "not_found";
    case Code::kIo:
      return "io";
    case Code::kCorrupt:
      return "corrupt";
    case Code::kOutOfMemory:
      return "out_of_memory";
    case Code::kInternal:
      return "internal";
  }
  return "unknown";
}

}  // namespace twofour
