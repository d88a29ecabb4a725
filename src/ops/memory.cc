#include "ops/memory.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace twofour {
namespace {

struct Axis {
  std::int64_t extent;
  std::int64_t stride;
};

/// The axes that move through memory, shortest stride first.
int moving_axes(const ConstTensorView& view, std::array<Axis, kMaxRank>& axes) {
  int count = 0;
  for (int i = 0; i < view.rank; ++i) {
    if (view.shape[i] > 1) axes[count++] = {view.shape[i], view.stride[i]};
  }
  std::sort(axes.begin(), axes.begin() + count,
            [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  return count;
}

}  // namespace

std::optional<Footprint> footprint(const ConstTensorView& view) {
  const auto element = static_cast<std::int64_t>(size_of(view.dtype));
  Footprint out;
  out.begin = out.end = reinterpret_cast<std::uintptr_t>(view.data);
  if (view.numel() == 0) return out;
  std::array<Axis, kMaxRank> axes;
  const int count = moving_axes(view, axes);
  std::int64_t span = element;
  out.run = element;
  for (int i = 0; i < count; ++i) {
    std::int64_t step = 0;
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(axes[i].stride, element, &step) ||
        __builtin_mul_overflow(step, axes[i].extent - 1, &reach) ||
        __builtin_add_overflow(span, reach, &span)) {
      return std::nullopt;
    }
    if (out.strides == 0 && step <= out.run) {
      out.run += reach;  // continues the run without a gap
    } else {
      out.stride[out.strides++] = step;
    }
  }
  if (__builtin_add_overflow(out.begin, static_cast<std::uintptr_t>(span), &out.end)) {
    return std::nullopt;
  }
  return out;
}

Footprint footprint(const void* data, std::size_t bytes) {
  Footprint out;
  out.begin = reinterpret_cast<std::uintptr_t>(data);
  out.end = out.begin + bytes;
  out.run = static_cast<std::int64_t>(bytes);
  return out;
}

bool may_overlap(const Footprint& a, const Footprint& b) {
  if (a.empty() || b.empty() || a.end <= b.begin || b.end <= a.begin) return false;
  // Every run of either starts at a multiple of `period` from its own begin. Modulo the period
  // each view is one arc; two arcs that do not meet mean memory that does not.
  std::int64_t period = 0;
  for (int i = 0; i < a.strides; ++i) period = std::gcd(period, a.stride[i]);
  for (int i = 0; i < b.strides; ++i) period = std::gcd(period, b.stride[i]);
  if (period == 0) return true;
  const auto modulus = static_cast<std::uintptr_t>(period);
  const bool a_first = a.begin <= b.begin;
  const std::uintptr_t distance = a_first ? b.begin - a.begin : a.begin - b.begin;
  const auto offset = static_cast<std::int64_t>(distance % modulus);
  const std::int64_t first_run = a_first ? a.run : b.run;
  const std::int64_t second_run = a_first ? b.run : a.run;
  return first_run > offset || second_run > period - offset;
}

bool elements_distinct(const ConstTensorView& view) {
  if (view.numel() == 0) return true;
  std::array<Axis, kMaxRank> axes;
  const int count = moving_axes(view, axes);
  std::int64_t below = 0;
  for (int i = 0; i < count; ++i) {
    if (axes[i].stride <= below) return false;
    below += axes[i].stride * (axes[i].extent - 1);
  }
  return true;
}

}  // namespace twofour
