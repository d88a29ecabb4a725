// A call on a CUDA device from memory of the host: inputs go there, outputs come back.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/memory.h"
#include "twofour/attention.h"

namespace twofour::tool {

/// Device memory between two guards, which a kernel must not touch.
class GuardedBuffer {
 public:
  static Result<GuardedBuffer> allocate(int device, std::size_t bytes);
  void* data() const;  // aligned to 256 bytes; null for 0 bytes
  std::size_t size() const { return bytes_; }
  /// Sets every byte, guards included, to 0xFF: NaN in every format.
  Status clear() const;
  /// Whether both guards are as clear() left them.
  Result<bool> guards_intact() const;

 private:
  cuda::Buffer buffer_;
  std::size_t bytes_ = 0;
};

class CudaCall {
 public:
  /// Copies the inputs of `host`, whose views may lie as they like, and makes room for what it
  /// wants written.
  static Result<std::unique_ptr<CudaCall>> make(const AttentionProblem& problem,
                                                const AttentionArgs& host, const Device& device);

  /// The arguments in device memory; stats are there whether wanted or not, decisions are not.
  const AttentionArgs& args() const { return args_; }

  /// Sets all outputs and a workspace for `plan` to 0xFF.
  Status clear(const Plan& plan);
  /// Launches on the default stream; does not wait.
  Status launch(const Plan& plan, Decisions* decisions = nullptr) const;
  /// Waits, copies o, lse and the counts to `host`, and says in `outside` what was written that is
  /// no output: "" for nothing.
  Status fetch(const AttentionArgs& host, std::string* outside) const;
  /// All three, with the decisions of `host`.
  Status run(const Plan& plan, const AttentionArgs& host, std::string* outside);

 private:
  struct Placed {
    GuardedBuffer memory;
    bool padded = false;  // on the device with strides of its own
  };

  CudaCall() = default;
  Status place(ConstTensorView& view, bool copy, Placed* placed);
  template <class T>
  Status place_array(const T*& pointer, std::int64_t count);
  Status fetch_view(const TensorView& host, const TensorView& there, const Placed& placed,
                    std::string* outside) const;

  int device_ = 0;
  AttentionArgs args_;
  KeyTransform transform_;
  std::vector<GuardedBuffer> inputs_;
  Placed o_, lse_;
  GuardedBuffer stats_, workspace_;
};

}  // namespace twofour::tool
