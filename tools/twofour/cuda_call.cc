#include "cuda_call.h"

#include <algorithm>
#include <cstring>

#include "cuda/device.h"
#include "ops/memory.h"

namespace twofour::tool {
namespace {

constexpr std::size_t kGuard = 256;
constexpr std::int64_t kAlign = 16;
constexpr unsigned char kUntouched = 0xFF;

bool is_aligned(const ConstTensorView& view) {
  const auto element = static_cast<std::int64_t>(size_of(view.dtype));
  for (int i = 0; i + 1 < view.rank; ++i) {
    if (view.shape[i] > 1 && view.stride[i] * element % kAlign != 0) return false;
  }
  return true;
}

/// Row-major, every row followed by at least 16 bytes that are not its own.
template <class View>
View with_padded_rows(View view) {
  const auto in_step = kAlign / static_cast<std::int64_t>(size_of(view.dtype));
  std::int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.stride[i] = stride;
    stride *= view.shape[i];
    if (i == view.rank - 1) stride = (stride + in_step - 1) / in_step * in_step + in_step;
  }
  return view;
}

std::size_t bytes_of(const ConstTensorView& view) {
  const Footprint touched = *footprint(view);
  return touched.end - touched.begin;
}

/// Calls visit(element number in `a`, in `b`) for every index of two views of one shape.
template <class Visit>
void for_each_element(const ConstTensorView& a, const ConstTensorView& b, Visit visit) {
  std::array<std::int64_t, kMaxRank> index{};
  for (std::int64_t n = a.numel(); n > 0; --n) {
    std::int64_t at_a = 0, at_b = 0;
    for (int i = 0; i < a.rank; ++i) {
      at_a += index[i] * a.stride[i];
      at_b += index[i] * b.stride[i];
    }
    visit(at_a, at_b);
    for (int i = a.rank - 1; i >= 0 && ++index[i] == a.shape[i]; --i) index[i] = 0;
  }
}

}  // namespace

Result<GuardedBuffer> GuardedBuffer::allocate(int device, std::size_t bytes) {
  GuardedBuffer out;
  out.bytes_ = bytes;
  // The second guard starts where the memory ends, not at the next boundary.
  Result<cuda::Buffer> made = cuda::Buffer::allocate(device, bytes + 2 * kGuard);
  if (!made.ok()) return made.status();
  out.buffer_ = *std::move(made);
  if (Status status = out.clear(); !status.ok()) return status;
  return out;
}

void* GuardedBuffer::data() const {
  return bytes_ == 0 ? nullptr : static_cast<char*>(buffer_.data()) + kGuard;
}

Status GuardedBuffer::clear() const {
  return cuda::fill(buffer_.data(), kUntouched, buffer_.size());
}

Result<bool> GuardedBuffer::guards_intact() const {
  if (buffer_.size() == 0) return true;
  std::vector<unsigned char> guards(2 * kGuard);
  const char* const begin = static_cast<const char*>(buffer_.data());
  Status status = cuda::copy_to_host(guards.data(), begin, kGuard);
  if (status.ok()) {
    status = cuda::copy_to_host(guards.data() + kGuard, begin + kGuard + bytes_, kGuard);
  }
  if (!status.ok()) return status;
  return std::all_of(guards.begin(), guards.end(), [](auto byte) { return byte == kUntouched; });
}

/// Makes room for a view and points it there; its strides stay where the device can use them.
Status CudaCall::place(ConstTensorView& view, bool copy, Placed* placed) {
  if (view.numel() == 0) return {};
  const ConstTensorView host = view;
  placed->padded = !is_aligned(view);
  if (placed->padded) view = with_padded_rows(view);
  auto made = GuardedBuffer::allocate(device_, bytes_of(view));
  if (!made.ok()) return made.status();
  placed->memory = *std::move(made);
  view.data = placed->memory.data();
  if (!copy) return {};
  if (!placed->padded)
    return cuda::copy_to_device(placed->memory.data(), host.data, bytes_of(host));
  std::vector<char> staged(placed->memory.size(), static_cast<char>(kUntouched));
  const std::size_t element = size_of(host.dtype);
  for_each_element(host, view, [&](std::int64_t from, std::int64_t to) {
    std::memcpy(staged.data() + to * element, static_cast<const char*>(host.data) + from * element,
                element);
  });
  return cuda::copy_to_device(placed->memory.data(), staged.data(), staged.size());
}

template <class T>
Status CudaCall::place_array(const T*& pointer, std::int64_t count) {
  if (pointer == nullptr) return {};
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
  auto made = GuardedBuffer::allocate(device_, bytes);
  if (!made.ok()) return made.status();
  const Status status = cuda::copy_to_device(made->data(), pointer, bytes);
  pointer = static_cast<const T*>(made->data());
  inputs_.push_back(*std::move(made));
  return status;
}

Result<std::unique_ptr<CudaCall>> CudaCall::make(const AttentionProblem& p,
                                                 const AttentionArgs& host, const Device& device) {
  std::unique_ptr<CudaCall> call(new CudaCall());
  call->device_ = device.index;
  AttentionArgs& args = call->args_;
  args = host;
  args.prepared_k = nullptr;
  args.decisions = nullptr;
  Status status;
  for (ConstTensorView* view : {&args.q, &args.k, &args.v, &args.mask}) {
    if (!status.ok() || !*view) continue;
    Placed placed;
    status = call->place(*view, true, &placed);
    call->inputs_.push_back(std::move(placed.memory));
  }
  for (const auto& [view, placed] :
       {std::pair{&args.o, &call->o_}, std::pair{&args.lse, &call->lse_}}) {
    if (!status.ok() || !*view) continue;
    ConstTensorView there(*view);
    status = call->place(there, false, placed);
    view->stride = there.stride;
    view->data = placed->memory.data();
  }
  if (status.ok()) status = call->place_array(args.cu_seqlens_q, p.batch + 1);
  if (status.ok()) status = call->place_array(args.cu_seqlens_k, p.batch + 1);
  if (status.ok() && host.transform != nullptr) {
    call->transform_ = *host.transform;
    KeyTransform& t = call->transform_;
    const std::int64_t vectors = t.heads_kv * t.head_dim;
    status = call->place_array(t.t_q, vectors * t.head_dim);
    if (status.ok()) status = call->place_array(t.t_k, vectors * t.head_dim);
    if (status.ok()) status = call->place_array(t.w, vectors);
    args.transform = &t;
  }
  if (status.ok()) {
    auto stats = GuardedBuffer::allocate(call->device_, sizeof(AttentionStats));
    if (!stats.ok()) return stats.status();
    call->stats_ = *std::move(stats);
    args.stats = static_cast<AttentionStats*>(call->stats_.data());
  }
  if (!status.ok()) return status;
  return call;
}

Status CudaCall::clear(const Plan& plan) {
  if (workspace_.size() != plan.workspace_bytes() || workspace_.data() == nullptr) {
    auto made = GuardedBuffer::allocate(device_, plan.workspace_bytes());
    if (!made.ok()) return made.status();
    workspace_ = *std::move(made);
  }
  Status status = workspace_.clear();
  for (const GuardedBuffer* buffer : {&o_.memory, &lse_.memory, &stats_}) {
    if (status.ok()) status = buffer->clear();
  }
  return status;
}

Status CudaCall::launch(const Plan& plan, Decisions* decisions) const {
  AttentionArgs args = args_;
  args.decisions = decisions;
  return plan.run(args, workspace_.data(), workspace_.size());
}

Status CudaCall::fetch_view(const TensorView& host, const TensorView& there, const Placed& placed,
                            std::string* outside) const {
  if (host.numel() == 0) return {};
  if (!placed.padded) return cuda::copy_to_host(host.data, there.data, placed.memory.size());
  std::vector<unsigned char> staged(placed.memory.size());
  const Status status = cuda::copy_to_host(staged.data(), there.data, staged.size());
  if (!status.ok()) return status;
  std::vector<bool> owned(staged.size());
  const std::size_t element = size_of(host.dtype);
  for_each_element(host, there, [&](std::int64_t to, std::int64_t from) {
    std::memcpy(static_cast<char*>(host.data) + to * element, staged.data() + from * element,
                element);
    std::fill_n(owned.begin() + static_cast<std::ptrdiff_t>(from * element), element, true);
  });
  for (std::size_t i = 0; i < staged.size(); ++i) {
    if (!owned[i] && staged[i] != kUntouched) *outside = "wrote between the rows of o";
  }
  return {};
}

Status CudaCall::fetch(const AttentionArgs& host, std::string* outside) const {
  outside->clear();
  Status status = cuda::synchronize(device_);
  if (status.ok() && host.o) status = fetch_view(host.o, args_.o, o_, outside);
  if (status.ok() && host.lse) status = fetch_view(host.lse, args_.lse, lse_, outside);
  if (status.ok() && host.stats != nullptr) {
    status = cuda::copy_to_host(host.stats, stats_.data(), sizeof(AttentionStats));
  }
  if (!status.ok()) return status;
  std::vector<std::pair<const GuardedBuffer*, const char*>> buffers = {
      {&o_.memory, "o"}, {&lse_.memory, "lse"}, {&stats_, "stats"}, {&workspace_, "workspace"}};
  for (const GuardedBuffer& input : inputs_) buffers.emplace_back(&input, "an input");
  for (const auto& [buffer, name] : buffers) {
    const Result<bool> intact = buffer->guards_intact();
    if (!intact.ok()) return intact.status();
    if (!*intact) *outside = std::string("wrote outside of ") + name;
  }
  return {};
}

Status CudaCall::run(const Plan& plan, const AttentionArgs& host, std::string* outside) {
  Status status = clear(plan);
  if (status.ok()) status = launch(plan, host.decisions);
  return status.ok() ? fetch(host, outside) : status;
}

}  // namespace twofour::tool
