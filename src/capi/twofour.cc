// The functions of twofour.h: convert, call the C++ API, report.
#include "twofour/twofour.h"

#include <algorithm>
#include <cstddef>
#include <memory>

#include "capi/convert.h"
#include "cuda/device.h"

namespace {

using twofour::Code;
using twofour::DeviceKind;
using twofour::Status;
using twofour::capi::guarded;

Status null_pointer(const char* name) {
  return {Code::kInvalidArgument, std::string(name) + ": expected a pointer, got NULL"};
}

/// Copies with a terminating NUL, cut where it does not fit.
template <std::size_t size>
void copy_text(const std::string& text, char (&out)[size]) {
  const std::size_t length = std::min(text.size(), size - 1);
  std::copy_n(text.data(), length, out);
  std::fill(out + length, out + size, '\0');
}

template <class FindDevice>
twofour_code create_plan(const twofour_attention_problem* problem, FindDevice find_device,
                         const char* kernel_id, twofour_plan** plan) {
  if (plan != nullptr) *plan = nullptr;
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_pointer("plan");
    const auto converted = twofour::capi::to_problem(problem);
    if (!converted.ok()) return converted.status();
    const auto device = find_device();
    if (!device.ok()) return device.status();
    const auto made = twofour::plan(*converted, *device, {kernel_id == nullptr ? "" : kernel_id});
    if (!made.ok()) return made.status();
    *plan =
        new twofour_plan{*made, to_string(made->problem().sparsity), made->explain(), device->kind};
    return {};
  });
}

template <class FindDevice>
twofour_code describe_device(FindDevice find_device, twofour_device_info* info) {
  return guarded([&]() -> Status {
    // The size of version 0.1.0, like those in convert.cc.
    constexpr std::size_t kDeviceInfoV1 = 192;
    twofour_device_info filled = {};
    Status status = twofour::capi::read_struct("info", info, kDeviceInfoV1, filled);
    if (!status.ok()) return status;
    const auto device = find_device();
    if (!device.ok()) return device.status();
    filled.kind = static_cast<int32_t>(device->kind);
    filled.index = device->index;
    filled.threads = device->threads;
    filled.peak_gflops = device->peak_gflops;
    filled.multiprocessors = device->multiprocessors;
    filled.shared_memory = device->shared_memory;
    copy_text(device->name, filled.name);
    copy_text(device->arch, filled.arch);
    filled.struct_size = info->struct_size;
    std::memcpy(info, &filled, std::min(sizeof(filled), info->struct_size));
    return {};
  });
}

}  // namespace

extern "C" {

int twofour_version(void) { return TWOFOUR_VERSION_NUMBER; }
const char* twofour_version_string(void) { return TWOFOUR_VERSION; }

const char* twofour_code_name(twofour_code code) {
  return twofour::to_string(static_cast<Code>(code));
}

const char* twofour_last_error(void) { return twofour::capi::last_error(); }

twofour_tensor twofour_contiguous(const void* data, int32_t dtype, int32_t rank,
                                  const int64_t* shape) {
  twofour_tensor tensor = {};
  tensor.data = const_cast<void*>(data);
  tensor.dtype = dtype;
  tensor.rank = rank;
  if (rank < 0 || rank > TWOFOUR_MAX_RANK || (rank > 0 && shape == nullptr)) {
    tensor.rank = -1;
    return tensor;
  }
  int64_t stride = 1;
  for (int32_t i = rank - 1; i >= 0; --i) {
    tensor.shape[i] = shape[i];
    tensor.stride[i] = stride;
    // Extents are judged later; until then their product may be anything but undefined.
    stride = static_cast<int64_t>(static_cast<uint64_t>(stride) * static_cast<uint64_t>(shape[i]));
  }
  return tensor;
}

void twofour_attention_problem_init(twofour_attention_problem* problem) {
  if (problem == nullptr) return;
  *problem = twofour_attention_problem{};
  problem->struct_size = sizeof(*problem);
  problem->batch = 1;
  problem->heads_q = 1;
  problem->heads_kv = 1;
  problem->head_dim = 64;
  problem->head_dim_v = 64;
  problem->window_left = -1;
  problem->window_right = -1;
}

void twofour_attention_args_init(twofour_attention_args* args) {
  if (args == nullptr) return;
  *args = twofour_attention_args{};
  args->struct_size = sizeof(*args);
}

twofour_code twofour_attention(const twofour_attention_problem* problem,
                               const twofour_attention_args* args) {
  return guarded([&]() -> Status {
    const auto converted = twofour::capi::to_problem(problem);
    if (!converted.ok()) return converted.status();
    // The address of q alone says where; a struct too short to hold one is refused below.
    const bool has_q = args != nullptr && args->struct_size >= offsetof(twofour_attention_args, k);
    const bool on_cuda = has_q && twofour::cuda::device_of(args->q.data).has_value();
    twofour::capi::Arguments arguments;
    Status status = twofour::capi::to_arguments(
        args, on_cuda ? DeviceKind::kCuda : DeviceKind::kCpu, arguments);
    if (status.ok()) status = twofour::attention(*converted, arguments.args);
    if (status.ok()) write_stats(arguments);
    return status;
  });
}

twofour_code twofour_plan_create(const twofour_attention_problem* problem, const char* kernel_id,
                                 twofour_plan** plan) {
  return create_plan(
      problem, [] { return twofour::cpu_device(); }, kernel_id, plan);
}

twofour_code twofour_plan_create_cuda(const twofour_attention_problem* problem, int32_t index,
                                      const char* kernel_id, twofour_plan** plan) {
  return create_plan(
      problem, [index] { return twofour::cuda_device(index); }, kernel_id, plan);
}

void twofour_plan_destroy(twofour_plan* plan) { delete plan; }

const char* twofour_plan_kernel_id(const twofour_plan* plan) {
  return plan == nullptr ? "" : plan->plan.kernel_id().c_str();
}

const char* twofour_plan_sparsity(const twofour_plan* plan) {
  return plan == nullptr ? "" : plan->sparsity.c_str();
}

const char* twofour_plan_explain(const twofour_plan* plan) {
  return plan == nullptr ? "" : plan->explanation.c_str();
}

size_t twofour_plan_workspace_bytes(const twofour_plan* plan) {
  return plan == nullptr ? 0 : plan->plan.workspace_bytes();
}

twofour_code twofour_plan_run(const twofour_plan* plan, const twofour_attention_args* args,
                              void* workspace, size_t workspace_bytes, void* stream) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_pointer("plan");
    if (plan->device == DeviceKind::kCpu && stream != nullptr)
      return {Code::kInvalidArgument, "stream: expected NULL on the CPU, got a pointer"};
    twofour::capi::Arguments arguments;
    Status status = twofour::capi::to_arguments(args, plan->device, arguments);
    if (status.ok()) status = plan->plan.run(arguments.args, workspace, workspace_bytes, stream);
    if (status.ok()) write_stats(arguments);
    return status;
  });
}

twofour_code twofour_prepare_k(const twofour_attention_problem* problem,
                               const twofour_attention_args* args,
                               twofour_prepared_k** prepared_k) {
  if (prepared_k != nullptr) *prepared_k = nullptr;
  return guarded([&]() -> Status {
    if (prepared_k == nullptr) return null_pointer("prepared_k");
    const auto converted = twofour::capi::to_problem(problem);
    if (!converted.ok()) return converted.status();
    twofour::capi::Arguments arguments;
    Status status = twofour::capi::to_arguments(args, DeviceKind::kCpu, arguments);
    if (!status.ok()) return status;
    auto made = twofour::prepare_k(*converted, arguments.args);
    if (!made.ok()) return made.status();
    *prepared_k = new twofour_prepared_k{*std::move(made)};
    return {};
  });
}

void twofour_prepared_k_destroy(twofour_prepared_k* prepared_k) { delete prepared_k; }

twofour_code twofour_sparsity_canonical(const char* text, char* out, size_t capacity) {
  return guarded([&]() -> Status {
    if (text == nullptr) return null_pointer("text");
    if (out == nullptr) return null_pointer("out");
    const auto sparsity = twofour::parse_sparsity(text);
    if (!sparsity.ok()) return sparsity.status();
    const std::string canonical = to_string(*sparsity);
    if (canonical.size() >= capacity) {
      return {Code::kInvalidArgument, "capacity: expected at least " +
                                          std::to_string(canonical.size() + 1) + " bytes, got " +
                                          std::to_string(capacity)};
    }
    std::copy_n(canonical.c_str(), canonical.size() + 1, out);
    return {};
  });
}

twofour_code twofour_cpu_device(twofour_device_info* info) {
  return describe_device([] { return twofour::cpu_device(); }, info);
}

int32_t twofour_cuda_device_count(void) { return twofour::cuda_device_count(); }

twofour_code twofour_cuda_device(int32_t index, twofour_device_info* info) {
  return describe_device([index] { return twofour::cuda_device(index); }, info);
}

}  // extern "C"
