// twofour attend: attention over tensors in files.
#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>

#include "command.h"
#include "cuda/timer.h"
#include "cuda_call.h"
#include "io/file.h"
#include "io/npy.h"
#include "io/safetensors.h"
#include "io/text.h"
#include "twofour/attention.h"
#include "twofour/calibration.h"
#include "twofour/io.h"

namespace twofour::tool {
namespace {

constexpr const char* kAuto = "auto";

struct Options {
  std::string q, k, v, input;  // files; `input` is one .safetensors with q, k and v
  std::string mode = "dense", layout = "bmhd", align = "bottom_right", window;
  std::string mask, cu_seqlens_q, cu_seqlens_k, calibration, kernel, out, lse;
  std::optional<std::int64_t> layer;
  std::optional<float> scale;
  bool causal = false, uint16_is_bf16 = false, json = false;
  DeviceChoice device;
};

/// What the views in the arguments point into.
struct Memory {
  Tensor q, k, v, mask, o, lse;
  std::vector<std::int32_t> cu_seqlens_q, cu_seqlens_k;
  std::optional<Calibration> calibration;
  KeyTransform transform;
};

bool ends_with(const std::string& text, std::string_view end) {
  return std::string_view(text).ends_with(end);
}

Status invalid(const std::string& message) { return {Code::kInvalidArgument, message}; }

/// Reads a .npy, or the tensor `name` of a .safetensors.
Result<Tensor> read_tensor(const std::string& path, const std::string& name,
                           const Options& options) {
  if (ends_with(path, ".safetensors")) {
    const Result<SafetensorsFile> file = SafetensorsFile::open(path);
    if (!file.ok()) return file.status();
    return file->read(name);
  }
  if (!ends_with(path, ".npy")) {
    if (const auto file = io::open_file(path); !file.ok()) return file.status();
    return invalid(name + ": expected a .npy or .safetensors file, got " + io::in_quotes(path));
  }
  NpyOptions npy;
  npy.uint16_is_bf16 = options.uint16_is_bf16;
  return read_npy(path, npy);
}

Status read_into(Tensor* tensor, const std::string& path, const std::string& name,
                 const Options& options) {
  Result<Tensor> read = read_tensor(path, name, options);
  if (!read.ok()) return read.status();
  *tensor = *std::move(read);
  return {};
}

Status read_inputs(const Options& options, Memory* memory) {
  for (const auto& [name, path, tensor] :
       {std::tuple{"q", &options.q, &memory->q}, std::tuple{"k", &options.k, &memory->k},
        std::tuple{"v", &options.v, &memory->v}}) {
    if (path->empty() == options.input.empty())
      return invalid(std::string(name) + ": expected either --input or --" + name + ", got " +
                     (path->empty() ? "neither" : "both"));
    const std::string& from = path->empty() ? options.input : *path;
    if (Status status = read_into(tensor, from, name, options); !status.ok()) return status;
  }
  return {};
}

/// int32 offsets from a file of int32 or int64.
Result<std::vector<std::int32_t>> read_offsets(const std::string& path, const Options& options) {
  const Result<Tensor> tensor = read_tensor(path, "cu_seqlens", options);
  if (!tensor.ok()) return tensor.status();
  const bool wide = tensor->dtype == DType::kI64;
  if ((!wide && tensor->dtype != DType::kI32) || tensor->shape.size() != 1 || tensor->numel() < 2)
    return invalid("cu_seqlens: expected int32 [B+1] in " + io::in_quotes(path) + ", got " +
                   to_string(tensor->dtype) + " " + shape_string(tensor->view()));
  std::vector<std::int32_t> offsets;
  for (std::int64_t i = 0; i < tensor->numel(); ++i) {
    std::int64_t value = 0;
    std::int32_t narrow = 0;
    if (wide) {
      std::memcpy(&value, tensor->bytes.data() + 8 * i, 8);
    } else {
      std::memcpy(&narrow, tensor->bytes.data() + 4 * i, 4);
      value = narrow;
    }
    if (value < (offsets.empty() ? 0 : offsets.back()) || value > INT32_MAX ||
        (offsets.empty() && value != 0))
      return invalid("cu_seqlens: expected ascending offsets from 0 in " + io::in_quotes(path) +
                     ", got " + std::to_string(value) + " at " + std::to_string(i));
    offsets.push_back(static_cast<std::int32_t>(value));
  }
  return offsets;
}

/// The mask seen as [B,Hq,M,N]: axes are added in front, axes of extent 1 repeat.
Result<ConstTensorView> broadcast_mask(const Tensor& mask, const AttentionProblem& p) {
  const std::array<std::int64_t, 4> want = {p.batch, p.heads_q, p.seqlen_q, p.seqlen_k};
  const ConstTensorView given = mask.view();
  const auto refuse = [&] {
    return invalid(fmt::format("mask: expected bool that broadcasts to [{}, {}, {}, {}], got {} {}",
                               want[0], want[1], want[2], want[3], to_string(mask.dtype),
                               shape_string(given)));
  };
  if (mask.dtype != DType::kBool || given.rank > 4) return refuse();
  ConstTensorView view = given;
  view.rank = 4;
  for (int axis = 0; axis < 4; ++axis) {
    const int from = axis - (4 - given.rank);
    const std::int64_t extent = from < 0 ? 1 : given.shape[from];
    if (extent != want[axis] && extent != 1) return refuse();
    view.stride[axis] = extent == 1 && want[axis] != 1 ? 0 : (from < 0 ? 0 : given.stride[from]);
    view.shape[axis] = want[axis];
  }
  return view;
}

Status set_window(const std::string& text, Window* window) {
  if (text.empty()) return {};
  // The syntax of a case: left:right.
  const Result<std::vector<io::Case>> parsed = io::parse_cases("window=" + text, "--window");
  if (!parsed.ok() || parsed->size() != 1 || text.find(' ') != std::string::npos)
    return invalid("--window: expected LEFT:RIGHT in keys, -1 open, got " + io::in_quotes(text));
  *window = parsed->front().problem.window;
  return {};
}

/// Everything but the outputs: problem and arguments from the files and options.
Status set_up(const Options& options, Memory* memory, AttentionProblem* p, AttentionArgs* args) {
  if (options.mode != kAuto) {
    const Result<Sparsity> sparsity = parse_sparsity(options.mode);
    if (!sparsity.ok()) return sparsity.status();
    p->sparsity = *sparsity;
  }
  p->causal = options.causal;
  p->align = options.align == "top_left" ? Align::kTopLeft : Align::kBottomRight;
  p->scale = options.scale;
  if (Status status = set_window(options.window, &p->window); !status.ok()) return status;
  if (Status status = read_inputs(options, memory); !status.ok()) return status;

  p->packed = !options.cu_seqlens_q.empty();
  if (!p->packed && !options.cu_seqlens_k.empty())
    return invalid("--cu-seqlens-k: expected --cu-seqlens with it, got none");
  args->q = memory->q.view();
  args->k = memory->k.view();
  args->v = memory->v.view();
  const int rank = p->packed ? 3 : 4;
  for (const auto& [name, view] :
       {std::pair{"q", &args->q}, std::pair{"k", &args->k}, std::pair{"v", &args->v}}) {
    if (view->rank != rank)
      return invalid(fmt::format("{}: expected {} axes, got {}", name, rank, shape_string(*view)));
    if (options.layout == "bhmd") *view = transposed(*view, rank - 3, rank - 2);
  }
  p->dtype = args->q.dtype;
  p->heads_q = args->q.shape[rank - 2];
  p->heads_kv = args->k.shape[rank - 2];
  p->head_dim = args->q.shape[rank - 1];
  p->head_dim_v = args->v.shape[rank - 1];
  if (!p->packed) {
    p->batch = args->q.shape[0];
    p->seqlen_q = args->q.shape[1];
    p->seqlen_k = args->k.shape[1];
  } else {
    const bool same = options.cu_seqlens_k.empty();
    for (const auto& [path, offsets, longest] :
         {std::tuple{&options.cu_seqlens_q, &memory->cu_seqlens_q, &p->seqlen_q},
          std::tuple{same ? &options.cu_seqlens_q : &options.cu_seqlens_k, &memory->cu_seqlens_k,
                     &p->seqlen_k}}) {
      Result<std::vector<std::int32_t>> read = read_offsets(*path, options);
      if (!read.ok()) return read.status();
      *offsets = *std::move(read);
      for (std::size_t i = 1; i < offsets->size(); ++i)
        *longest = std::max<std::int64_t>(*longest, (*offsets)[i] - (*offsets)[i - 1]);
    }
    if (memory->cu_seqlens_q.size() != memory->cu_seqlens_k.size())
      return invalid(fmt::format("--cu-seqlens-k: expected {} offsets as in --cu-seqlens, got {}",
                                 memory->cu_seqlens_q.size(), memory->cu_seqlens_k.size()));
    p->batch = static_cast<std::int64_t>(memory->cu_seqlens_q.size()) - 1;
    p->total_q = args->q.shape[0];
    p->total_k = args->k.shape[0];
    args->cu_seqlens_q = memory->cu_seqlens_q.data();
    args->cu_seqlens_k = memory->cu_seqlens_k.data();
  }
  if (!options.mask.empty()) {
    if (Status status = read_into(&memory->mask, options.mask, "mask", options); !status.ok())
      return status;
    if (p->packed) return invalid("--mask: expected no mask with --cu-seqlens");
    const Result<ConstTensorView> mask = broadcast_mask(memory->mask, *p);
    if (!mask.ok()) return mask.status();
    args->mask = *mask;
    p->has_mask = true;
  }
  if (options.calibration.empty() != !options.layer)
    return invalid(options.layer
                       ? "--layer: expected --calibration FILE with it, got none"
                       : "--calibration: expected --layer N with it, the layer of the file to use, "
                         "got none");
  if (!options.calibration.empty()) {
    Result<Calibration> calibration = load_calibration(options.calibration);
    if (!calibration.ok()) return calibration.status();
    memory->calibration = *std::move(calibration);
    const auto layers = static_cast<std::int64_t>(memory->calibration->layers.size());
    Status status = memory->calibration->check_model(layers, p->heads_q, p->heads_kv, p->head_dim);
    if (!status.ok()) return status;
    const Result<KeyTransform> transform = memory->calibration->transform(*options.layer);
    if (!transform.ok()) return transform.status();
    memory->transform = *transform;
    args->transform = &memory->transform;
    p->has_transform = true;
  }
  return {};
}

/// The files of --out and --lse, opened before the work and written both or neither.
class Outputs {
 public:
  Status open(const Options& options) {
    Status status = open(options.out, &out_);
    return status.ok() ? open(options.lse, &lse_) : status;
  }

  Status write(const Memory& memory) {
    Status status;
    const auto and_then = [&status](std::optional<io::AtomicFile>& file, auto step) {
      if (status.ok() && file) status = step(*file);
    };
    and_then(out_, [&](io::AtomicFile& file) {
      std::vector<std::pair<std::string, const Tensor*>> tensors = {{"o", &memory.o}};
      if (!lse_) tensors.emplace_back("lse", &memory.lse);
      return write_tensors(file, tensors);
    });
    and_then(lse_, [&](io::AtomicFile& file) {
      return write_tensors(file, {{"lse", &memory.lse}});
    });
    for (auto* file : {&out_, &lse_}) and_then(*file, [](auto& one) { return one.sync(); });
    for (auto* file : {&out_, &lse_}) and_then(*file, [](auto& one) { return one.commit(); });
    return status;
  }

 private:
  static Status open(const std::string& path, std::optional<io::AtomicFile>* file) {
    if (path.empty()) return {};
    Result<io::AtomicFile> made = io::AtomicFile::create(path);
    if (!made.ok()) return made.status();
    file->emplace(*std::move(made));
    return {};
  }

  /// A .npy has room for the first alone.
  static Status write_tensors(io::AtomicFile& file,
                              const std::vector<std::pair<std::string, const Tensor*>>& tensors) {
    if (ends_with(file.path(), ".safetensors")) return io::write_safetensors(file, tensors, {});
    return io::write_npy(file, *tensors.front().second);
  }

  std::optional<io::AtomicFile> out_, lse_;
};

Status check_out(const std::string& option, const std::string& path) {
  if (path.empty() || ends_with(path, ".npy") || ends_with(path, ".safetensors") ||
      path.starts_with("/dev/"))
    return {};
  return invalid(option + ": expected a name ending in .npy or .safetensors, got " +
                 io::in_quotes(path));
}

/// By what the names lead to, through links too; devices may be named twice.
bool is_same_file(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::equivalent(a, b, error)) return fs::is_regular_file(a, error);
  if (fs::exists(a, error) || fs::exists(b, error)) return false;
  const auto place = [&](const std::string& path) {
    return fs::weakly_canonical(fs::absolute(path, error), error);
  };
  return place(a) == place(b) && !error;
}

/// No output may replace an input or the other output.
Status check_distinct(const Options& options) {
  const std::pair<const char*, const std::string*> named[] = {
      {"--q", &options.q},
      {"--k", &options.k},
      {"--v", &options.v},
      {"--input", &options.input},
      {"--mask", &options.mask},
      {"--cu-seqlens", &options.cu_seqlens_q},
      {"--cu-seqlens-k", &options.cu_seqlens_k},
      {"--calibration", &options.calibration},
      {"--out", &options.out}};
  for (const auto& [option, path] : {std::pair{"--out", &options.out}, {"--lse", &options.lse}})
    for (const auto& [other, taken] : named) {
      if (path == taken || path->empty() || taken->empty() || !is_same_file(*path, *taken))
        continue;
      return invalid(std::string(option) + ": expected a file of its own, got " +
                     io::in_quotes(*path) + ", which is " + other + " too");
    }
  return {};
}

/// Runs where the plan is for; seconds of the run, without copies.
Result<double> run(const Plan& plan, const AttentionArgs& args, const Device& device) {
  if (device.kind == DeviceKind::kCpu) {
    std::vector<std::byte> workspace(plan.workspace_bytes());
    const auto start = std::chrono::steady_clock::now();
    const Status status = plan.run(args, workspace.data(), workspace.size());
    if (!status.ok()) return status;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  const auto call = CudaCall::make(plan.problem(), args, device);
  if (!call.ok()) return call.status();
  Result<cuda::Timer> timer = cuda::Timer::make(device.index);
  if (!timer.ok()) return timer.status();
  Status status = (*call)->clear(plan);
  if (status.ok()) status = timer->start();
  if (status.ok()) status = (*call)->launch(plan);
  if (!status.ok()) return status;
  const Result<double> seconds = timer->stop();
  if (!seconds.ok()) return seconds.status();
  std::string outside;
  status = (*call)->fetch(args, &outside);
  if (!status.ok()) return status;
  if (!outside.empty()) return {Code::kInternal, plan.kernel_id() + " " + outside};
  return *seconds;
}

int attend(const Options& options) {
  const auto refuse = [&](const Status& status) { return report(status, options.json); };
  for (const auto& [option, path] : {std::pair{"--out", &options.out}, {"--lse", &options.lse}})
    if (const Status status = check_out(option, *path); !status.ok()) return refuse(status);
  if (const Status status = check_distinct(options); !status.ok()) return refuse(status);
  Outputs outputs;
  if (const Status status = outputs.open(options); !status.ok()) return refuse(status);
  Memory memory;
  AttentionProblem problem;
  AttentionArgs args;
  if (const Status status = set_up(options, &memory, &problem, &args); !status.ok())
    return refuse(status);
  // Before memory is asked for: shapes that make no sense stop here.
  const Result<std::vector<Device>> devices = options.device.devices();
  if (!devices.ok()) return refuse(devices.status());
  PlanOptions plan_options;
  plan_options.kernel_id = options.kernel;
  const Device* device = nullptr;
  const Result<Plan> chosen = plan_on(*devices, &device, [&](const Device& one) {
    return options.mode == kAuto ? plan_auto(problem, one, plan_options)
                                 : plan(problem, one, plan_options);
  });
  if (!chosen.ok()) return refuse(chosen.status());

  const bool bhmd = options.layout == "bhmd";
  const std::int64_t m = problem.seqlen_q, h = problem.heads_q, dim = problem.head_dim_v;
  if (problem.packed) {
    memory.o = make_tensor(problem.dtype, bhmd ? std::vector{h, problem.total_q, dim}
                                               : std::vector{problem.total_q, h, dim});
    memory.lse = make_tensor(DType::kF32, {h, problem.total_q});
  } else {
    memory.o = make_tensor(problem.dtype, bhmd ? std::vector{problem.batch, h, m, dim}
                                               : std::vector{problem.batch, m, h, dim});
    memory.lse = make_tensor(DType::kF32, {problem.batch, h, m});
  }
  args.o = memory.o.view();
  if (bhmd) args.o = transposed(args.o, args.o.rank - 3, args.o.rank - 2);
  args.lse = memory.lse.view();
  AttentionStats stats;
  args.stats = &stats;
  const Result<double> seconds = run(*chosen, args, *device);
  if (!seconds.ok()) return refuse(seconds.status());
  if (const Status status = outputs.write(memory); !status.ok()) return refuse(status);

  const std::string sparsity = to_string(chosen->problem().sparsity);
  const std::string shape = shape_string(memory.o.view());
  if (options.json) {
    print_json(Json{{"kernel", chosen->kernel_id()},
                    {"sparsity", sparsity},
                    {"o_shape", memory.o.shape},
                    {"dtype", to_string(problem.dtype)},
                    {"seconds", *seconds},
                    {"units", stats.units},
                    {"refined", stats.refined},
                    {"dropped", stats.dropped},
                    {"pruned_pairs", stats.pruned_pairs},
                    {"live_pairs", stats.live_pairs}});
  } else {
    print(fmt::format("{} {} with {} ({}) in {:.3f} ms\n", to_string(problem.dtype), shape,
                      chosen->kernel_id(), sparsity, *seconds * 1e3));
    print(fmt::format("{} of {} live pairs in pruned blocks; of {} units {} refined, {} dropped\n",
                      stats.pruned_pairs, stats.live_pairs, stats.units, stats.refined,
                      stats.dropped));
  }
  const bool needs_transform =
      chosen->problem().sparsity.qk == QKProduct::kNm24 && !problem.has_transform;
  if (needs_transform)
    std::fprintf(stderr, "twofour: warning: %s without --calibration prunes the query unrotated\n",
                 sparsity.c_str());
  return kExitOk;
}

}  // namespace

void add_attend(CLI::App& app, int* exit_code) {
  auto o = std::make_shared<Options>();
  CLI::App* c = app.add_subcommand("attend", "Attention over q, k and v from files");
  c->add_option("--q", o->q, ".npy or .safetensors (tensor q), [B,M,Hq,D]");
  c->add_option("--k", o->k, "[B,N,Hkv,D]");
  c->add_option("--v", o->v, "[B,N,Hkv,Dv]");
  c->add_option("--input", o->input, "one .safetensors with q, k and v instead");
  c->add_option(
      "--mode", o->mode,
      "dense (the default), score, int8, dual, refined, a sparsity string, or auto: int8, "
      "else score, where there is enough to prune, else dense");
  c->add_option("--layout", o->layout,
                "of inputs and output: bmhd (the default), or bhmd as PyTorch")
      ->check(CLI::IsMember({"bmhd", "bhmd"}));
  c->add_flag("--causal", o->causal, "query i sees keys up to its position");
  c->add_option("--align", o->align, "of causal: bottom_right (the default, KV cache) or top_left")
      ->check(CLI::IsMember({"bottom_right", "top_left"}));
  c->add_option("--window", o->window, "LEFT:RIGHT keys around the position; -1 open");
  c->add_option("--scale", o->scale, "of the logits; default 1/sqrt(D)")
      ->check(number<float>("a finite number"));
  c->add_option("--mask", o->mask, "bool that broadcasts to [B,Hq,M,N], true is live");
  c->add_option("--cu-seqlens", o->cu_seqlens_q, "int32 [B+1]: q, k, v are packed [T,H,D]");
  c->add_option("--cu-seqlens-k", o->cu_seqlens_k, "of the keys, when they differ");
  c->add_option("--calibration", o->calibration,
                "calibration file, for dual and refined; needs --layer");
  c->add_option("--layer", o->layer, "layer of the calibration to use, from 0")
      ->check(number<std::int64_t>("a whole number"));
  c->add_option("--kernel", o->kernel, "force this kernel id");
  o->device.add_to(*c);
  c->add_option("--out", o->out, "write O to .npy, or O and LSE to .safetensors");
  c->add_option("--lse", o->lse, "write LSE [B,Hq,M] fp32 to a file of its own");
  c->add_flag("--uint16-bf16", o->uint16_is_bf16, "read uint16 .npy as bf16 bits");
  c->add_flag("--json", o->json, "print one JSON document");
  for (const char* file : {"--q", "--k", "--v", "--input", "--mask", "--cu-seqlens",
                           "--cu-seqlens-k", "--calibration", "--out", "--lse"})
    c->get_option(file)->check(not_empty("a file name"));
  c->get_option("--window")->check(not_empty("LEFT:RIGHT in keys, -1 open"));
  c->get_option("--kernel")->check(not_empty("a kernel id that `twofour info` lists"));
  c->callback([o, exit_code] { *exit_code = attend(*o); });
}

}  // namespace twofour::tool
