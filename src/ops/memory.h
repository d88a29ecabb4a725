// Which bytes a strided view touches, and whether two views share any.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "twofour/tensor.h"

namespace twofour {

/// The bytes of a view: runs of `run` bytes from `begin`, at every sum of the strides.
struct Footprint {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;                       // one past the last byte touched
  std::int64_t run = 0;                         // bytes that are touched without a gap
  std::array<std::int64_t, kMaxRank> stride{};  // bytes between runs
  int strides = 0;
  bool empty() const { return begin == end; }
};

/// Of a view with non-negative strides; nothing when its span does not fit in 63 bits.
std::optional<Footprint> footprint(const ConstTensorView& view);

/// A plain array of `bytes` bytes.
Footprint footprint(const void* data, std::size_t bytes);

/// False only when no byte is shared. Exact for plain arrays and for views interleaved at a common
/// period, such as the slices of one fused buffer; otherwise judged by the spans.
bool may_overlap(const Footprint& a, const Footprint& b);

/// True when every index of the view has its own element: with the axes in order of stride, each
/// step is longer than everything below it.
bool elements_distinct(const ConstTensorView& view);

}  // namespace twofour
