// twofour golden: what the kernels of a device computed and decided, in a file that is checked
// against the reference on machines without the device.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "check_case.h"
#include "command.h"
#include "compare.h"
#include "cuda/prepare_k.h"
#include "cuda_call.h"
#include "ref/attention.h"

namespace twofour::tool {
namespace {

/// One row on one case.
struct Entry {
  std::string kernel, text, inputs;
  Tensor o, lse, stats;       // bytes as the row wrote them; int64 [5]
  Tensor kept, unit;          // of its debugging twin: int64 words, uint8
  Tensor scale, mean, codes;  // int8: fp32, fp32, and int32 [n,2]: where a code is not the
                              // reference's, and what it is
};

template <class T>
Tensor tensor_of(DType dtype, const T* data, std::size_t count) {
  Tensor out = make_tensor(dtype, {static_cast<std::int64_t>(count)});
  if (count > 0) std::memcpy(out.bytes.data(), data, out.bytes.size());
  return out;
}

template <class T>
void copy_to(std::vector<T>& out, const Tensor& from) {
  std::memcpy(out.data(), from.bytes.data(), std::min(from.bytes.size(), out.size() * sizeof(T)));
}

/// FNV-1a of everything a case gives a kernel.
std::string checksum(const io::CaseMemory& m) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&](const void* data, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i)
      hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3u;
  };
  for (const Tensor* t : {&m.q, &m.k, &m.v}) add(t->bytes.data(), t->bytes.size());
  for (const std::vector<float>* t : {&m.t_q, &m.t_k, &m.w}) add(t->data(), 4 * t->size());
  return fmt::format("{:016x}", hash);
}

bool is_cuda(const Device& device) { return device.kind == DeviceKind::kCuda; }

Status run_row(const Plan& plan, const Device& device, const AttentionArgs& args) {
  if (!is_cuda(device)) {
    std::vector<std::byte> workspace(plan.workspace_bytes());
    return plan.run(args, workspace.data(), workspace.size());
  }
  const Result<std::unique_ptr<CudaCall>> call = CudaCall::make(plan.problem(), args, device);
  if (!call.ok()) return call.status();
  std::string outside;
  const Status status = (*call)->run(plan, args, &outside);
  if (status.ok() && !outside.empty()) return {Code::kInternal, outside};
  return status;
}

Result<PreparedK> prepare(const io::Case& c, const AttentionArgs& args, const Device& device) {
  if (!is_cuda(device)) return prepare_k(c.problem, args);
  const Result<std::unique_ptr<CudaCall>> call = CudaCall::make(c.problem, args, device);
  if (!call.ok()) return call.status();
  return cuda::prepare_k(c.problem, (*call)->args(), device.index);
}

/// Nothing when the row refuses the case.
Result<std::optional<Entry>> record(const io::Case& c, const Family& family, const Device& device) {
  Entry out;
  out.kernel = family.row->id;
  out.text = c.text;
  const std::unique_ptr<io::CaseMemory> memory = io::make_case_memory(c);
  out.inputs = checksum(*memory);
  AttentionArgs args = memory->args;
  for (const Kernel* row : {family.twin, family.row}) {
    AttentionProblem problem = c.problem;
    problem.trace = row == family.twin;
    PlanOptions options;
    options.kernel_id = row->id;
    const Result<Plan> plan = twofour::plan(problem, device, options);
    if (!plan.ok() && plan.status().code() == Code::kUnsupported) return std::optional<Entry>();
    if (!plan.ok()) return plan.status();
    AttentionStats stats;
    Decisions decisions;
    args.stats = &stats;
    args.decisions = nullptr;
    if (problem.trace) {
      decisions = make_decisions(plan->problem());
      args.decisions = &decisions;
    }
    if (Status status = run_row(*plan, device, args); !status.ok()) return status;
    if (problem.trace) {
      out.kept = tensor_of(DType::kI64, decisions.kept.data(), decisions.kept.size());
      out.unit = tensor_of(DType::kU8, decisions.unit.data(), decisions.unit.size());
    }
    out.stats = tensor_of(DType::kI64, reinterpret_cast<const std::int64_t*>(&stats),
                          sizeof stats / sizeof(std::int64_t));
  }
  out.o = tensor_of(DType::kU8, memory->o.bytes.data(), memory->o.bytes.size());
  out.lse = tensor_of(DType::kU8, memory->lse.bytes.data(), memory->lse.bytes.size());
  if (c.problem.sparsity.qk == QKProduct::kInt8) {
    const Result<PreparedK> got = prepare(c, memory->args, device);
    if (!got.ok()) return got.status();
    const Result<PreparedK> reference = ref::prepare_k(c.problem, memory->args);
    if (!reference.ok()) return reference.status();
    out.scale = tensor_of(DType::kF32, got->scale.data(), got->scale.size());
    out.mean = tensor_of(DType::kF32, got->mean.data(), got->mean.size());
    std::vector<std::int32_t> other;
    for (std::size_t i = 0; i < got->codes.size(); ++i)
      if (got->codes[i] != reference->codes[i])
        other.insert(other.end(), {static_cast<std::int32_t>(i), got->codes[i]});
    out.codes = tensor_of(DType::kI32, other.data(), other.size());
  }
  return std::optional<Entry>(std::move(out));
}

/// The parts of an entry by name, for both directions.
template <class E>
std::vector<std::pair<std::string, decltype(&std::declval<E&>().o)>> parts(E& e) {
  return {{"o", &e.o},       {"lse", &e.lse},     {"stats", &e.stats}, {"kept", &e.kept},
          {"unit", &e.unit}, {"scale", &e.scale}, {"mean", &e.mean},   {"codes", &e.codes}};
}

Status write(const std::string& path, const std::vector<Entry>& entries) {
  std::vector<std::pair<std::string, const Tensor*>> tensors;
  std::map<std::string, std::string> metadata;
  for (std::size_t n = 0; n < entries.size(); ++n) {
    const Entry& e = entries[n];
    const std::string number = fmt::format("{:03}", n);
    metadata[number] = e.kernel + "\n" + e.inputs + "\n" + e.text;
    for (const auto& [name, tensor] : parts(e))
      if (!tensor->bytes.empty()) tensors.emplace_back(number + "." + name, tensor);
  }
  return write_safetensors(path, tensors, metadata);
}

Result<std::vector<Entry>> read(const std::string& path) {
  const Result<SafetensorsFile> file = SafetensorsFile::open(path);
  if (!file.ok()) return file.status();
  std::vector<Entry> out;
  for (const auto& [number, text] : file->metadata()) {
    const std::size_t first = text.find('\n'), second = text.find('\n', first + 1);
    if (second == std::string::npos)
      return {Code::kCorrupt, path + ": expected kernel, checksum and case of entry " + number};
    Entry& e = out.emplace_back();
    e.kernel = text.substr(0, first);
    e.inputs = text.substr(first + 1, second - first - 1);
    e.text = text.substr(second + 1);
    for (const auto& [name, tensor] : parts(e)) {
      if (!file->contains(number + "." + name)) continue;
      Result<Tensor> part = file->read(number + "." + name);
      if (!part.ok()) return part.status();
      *tensor = *std::move(part);
    }
  }
  return out;
}

/// "" when the reference, replaying the decisions, agrees; `worst` is the largest share of a bound.
std::string disagreement(const Entry& e, double* worst) {
  const Result<std::vector<io::Case>> cases = io::parse_cases(e.text, "golden");
  if (!cases.ok()) return cases.status().message();
  if (cases->size() != 1) return fmt::format("expected one case, got {}", cases->size());
  const io::Case& c = cases->front();
  const std::unique_ptr<io::CaseMemory> memory = io::make_case_memory(c);
  if (const std::string sum = checksum(*memory); sum != e.inputs)
    return "inputs: expected checksum " + e.inputs + ", the seed gives " + sum;
  if (e.o.bytes.size() != memory->o.bytes.size() || e.lse.bytes.size() != memory->lse.bytes.size())
    return "o or lse has another size than the case gives it";
  AttentionProblem problem = c.problem;
  problem.sparsity = resolved(problem.sparsity, problem.head_dim);
  Decisions decisions = make_decisions(problem);
  if (e.kept.bytes.size() != decisions.kept.size() * 8 ||
      e.unit.bytes.size() != decisions.unit.size())
    return "decisions have another size than the case gives them";
  copy_to(decisions.kept, e.kept);
  copy_to(decisions.unit, e.unit);
  std::optional<PreparedK> prepared;
  if (problem.sparsity.qk == QKProduct::kInt8) {
    Result<PreparedK> reference = ref::prepare_k(c.problem, memory->args);
    if (!reference.ok()) return reference.status().message();
    prepared = *std::move(reference);
    copy_to(prepared->scale, e.scale);
    copy_to(prepared->mean, e.mean);
    std::vector<std::int32_t> other(e.codes.bytes.size() / 4);
    copy_to(other, e.codes);
    for (std::size_t i = 0; i + 1 < other.size(); i += 2) {
      const auto at = static_cast<std::size_t>(other[i]);
      if (at >= prepared->codes.size()) return "a code lies outside of the keys";
      prepared->codes[at] = static_cast<std::int8_t>(other[i + 1]);
    }
  }
  ref::Options options;
  options.prepared = prepared ? &*prepared : nullptr;
  options.replay = &decisions;
  if (e.kernel.find(".cpu.") == std::string::npos) options.weights = ref::weights_in(problem.dtype);
  const Result<ref::Output> expected = ref::attention(problem, memory->args, options);
  if (!expected.ok()) return expected.status().message();
  memory->o.bytes = e.o.bytes;
  memory->lse.bytes = e.lse.bytes;
  const Comparison comparison = compare(problem, memory->args, *expected);
  *worst = std::max({*worst, comparison.worst, expected->max_bound_used});
  if (!comparison.where.empty()) return comparison.where;
  AttentionStats stats;
  if (e.stats.bytes.size() != sizeof stats) return "counts are missing";
  std::memcpy(&stats, e.stats.bytes.data(), sizeof stats);
  return compare_counts(stats, expected->stats);
}

int record_all(const CaseSource& source, const DeviceChoice& choice, const std::string& filter,
               const std::string& out) {
  const Result<std::vector<io::Case>> cases = source.load("");
  if (!cases.ok()) return report(cases.status(), false);
  const Result<std::vector<Device>> devices = choice.devices();
  if (!devices.ok()) return report(devices.status(), false);
  std::vector<Entry> entries;
  const Selection rows = select_rows(filter, devices->front());
  for (const Family& family : rows.families) {
    if (family.row == nullptr || family.twin == nullptr) continue;
    for (const io::Case& c : *cases) {
      Result<std::optional<Entry>> entry = record(c, family, devices->front());
      if (!entry.ok()) return report(entry.status(), false);
      if (entry->has_value()) entries.push_back(std::move(**entry));
    }
  }
  if (entries.empty())
    return report({Code::kUnsupported, "no kernel of the device serves any of the cases"}, false);
  if (const Status status = write(out, entries); !status.ok()) return report(status, false);
  print(fmt::format("{} entries in {}\n", entries.size(), out));
  return kExitOk;
}

int check_all(const std::string& path) {
  const Result<std::vector<Entry>> entries = read(path);
  if (!entries.ok()) return report(entries.status(), false);
  std::size_t failed = 0;
  double worst = 0;
  for (const Entry& e : *entries) {
    const std::string wrong = disagreement(e, &worst);
    if (wrong.empty()) continue;
    ++failed;
    print(fmt::format("FAILED {}: {}\n    {}\n", e.kernel, wrong, e.text));
  }
  print(fmt::format("{} entries, {} failed, worst error {:.3f} of its bound\n", entries->size(),
                    failed, worst));
  return failed == 0 && !entries->empty() ? kExitOk : kExitFailed;
}

}  // namespace

void add_golden(CLI::App& app, int* exit_code) {
  struct Options {
    CaseSource source;
    DeviceChoice device;
    std::string filter, out, file;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "golden", "Record what a device's kernels compute, or check a recording without the device");
  command->require_subcommand(1);
  CLI::App* record = command->add_subcommand("record", "Run every kernel and write a file");
  options->source.add_to(*record);
  options->device.add_to(*record);
  record->add_option("--filter", options->filter, "only kernels whose id contains this");
  record->add_option("--out", options->out, "the .safetensors file to write")->required();
  record->callback([options, exit_code] {
    *exit_code = record_all(options->source, options->device, options->filter, options->out);
  });
  CLI::App* check = command->add_subcommand("check", "Compare a recording with the reference");
  check->add_option("file", options->file, "a file of twofour golden record")->required();
  check->callback([options, exit_code] { *exit_code = check_all(options->file); });
}

}  // namespace twofour::tool
