#include "cuda/timer.h"

#include "cuda/device.h"
#include "cuda/error.h"

namespace twofour::cuda {
namespace {

cudaEvent_t event(void* handle) { return static_cast<cudaEvent_t>(handle); }

Status make_event(void** handle) {
  cudaEvent_t made = nullptr;
  const Status status = to_status(cudaEventCreate(&made), "cudaEventCreate");
  *handle = made;
  return status;
}

}  // namespace

Result<Timer> Timer::make(int device) {
  const CurrentDevice current(device);
  if (!current.status().ok()) return current.status();
  Timer timer;
  timer.device_ = device;
  Status status = make_event(&timer.start_);
  if (status.ok()) status = make_event(&timer.stop_);
  if (!status.ok()) return status;
  return timer;
}

Timer::~Timer() {
  for (void* handle : {start_, stop_}) {
    if (handle != nullptr) (void)cudaEventDestroy(event(handle));
  }
}

Status Timer::start() {
  const CurrentDevice current(device_);
  if (!current.status().ok()) return current.status();
  return to_status(cudaEventRecord(event(start_)), "cudaEventRecord");
}

Result<double> Timer::stop() {
  const CurrentDevice current(device_);
  if (!current.status().ok()) return current.status();
  float milliseconds = 0;
  Status status = to_status(cudaEventRecord(event(stop_)), "cudaEventRecord");
  if (status.ok()) status = to_status(cudaEventSynchronize(event(stop_)), "cudaEventSynchronize");
  if (status.ok()) {
    status = to_status(cudaEventElapsedTime(&milliseconds, event(start_), event(stop_)),
                       "cudaEventElapsedTime");
  }
  if (!status.ok()) return status;
  return milliseconds / 1e3;
}

}  // namespace twofour::cuda
