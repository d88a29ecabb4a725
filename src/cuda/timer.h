// Time on a device, for the benchmark.
#pragma once

#include <utility>

#include "twofour/status.h"

namespace twofour::cuda {

/// Measures what the default stream of a device does between start() and stop().
class Timer {
 public:
  static Result<Timer> make(int device);

  Timer(Timer&& other) noexcept { *this = std::move(other); }
  Timer& operator=(Timer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(start_, other.start_);
    std::swap(stop_, other.stop_);
    return *this;
  }
  ~Timer();

  Status start();
  /// Seconds since start(); waits for the device, and gives the error of whatever ran on it.
  Result<double> stop();

 private:
  Timer() = default;
  int device_ = 0;
  void* start_ = nullptr;  // cudaEvent_t
  void* stop_ = nullptr;
};

}  // namespace twofour::cuda
