#include "cpu/attention.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "cpu/attend.h"
#include "cpu/targets.h"

namespace twofour::cpu {
namespace {

constexpr std::int64_t kMaxHeadDim = 256;
constexpr std::size_t kAlignment = 64;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Upper bound over all sequences, from shapes alone.
std::int64_t max_blocks(const AttentionProblem& p) {
  const std::int64_t block = p.sparsity.block;
  if (p.packed) return layout::ceil_div(p.total_k, block) + p.batch;
  return p.batch * layout::ceil_div(p.seqlen_k, block);
}

// The workspace: what it holds and where.
struct Workspace {
  Sequence* sequences;
  KeyPanels keys;
  float* t_q;  // [Hkv, D, round16(D)]
  float* t_k;  // [Hkv, D, D], transposed
  char* scratch;
  std::size_t scratch_bytes;  // per thread
  std::size_t bytes;

  Workspace(const AttentionProblem& p, const Device& device, void* memory) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    char* const begin = reinterpret_cast<char*>(aligned(address));
    char* at = begin;
    auto take = [&at]<class T>(T*& pointer, std::size_t count) {
      pointer = reinterpret_cast<T*>(at);
      at += aligned(count * sizeof(T));
    };
    const bool int8 = p.sparsity.qk == QKProduct::kInt8;
    const bool transform = p.sparsity.qk == QKProduct::kNm24 && p.has_transform;
    const std::int64_t max_key_blocks = layout::ceil_div(p.seqlen_k, p.sparsity.block);
    const auto heads = static_cast<std::size_t>(p.heads_kv);
    const auto dim = static_cast<std::size_t>(p.head_dim);
    keys.int8 = int8;
    keys.vnni = int8 && find_target(device.arch).vnni;
    keys.block = p.sparsity.block;
    keys.head_dim = p.head_dim;
    keys.blocks = max_blocks(p);
    keys.batch = p.batch;
    const auto cells = heads * static_cast<std::size_t>(keys.blocks);
    take(sequences, static_cast<std::size_t>(p.batch));
    take(keys.panels, cells * keys.panel_bytes());
    take(keys.scale, int8 ? cells : 0);
    take(keys.mean, int8 ? heads * static_cast<std::size_t>(p.batch) * dim : 0);
    take(keys.live, int8 && p.has_mask ? cells * static_cast<std::size_t>(keys.block) : 0);
    if (!(int8 && p.has_mask)) keys.live = nullptr;
    take(t_q, transform ? heads * dim * ((dim + 15) / 16 * 16) : 0);
    take(t_k, transform ? heads * dim * dim : 0);
    if (!transform) t_q = t_k = nullptr;
    scratch_bytes =
        aligned(std::max(prepare_scratch_bytes(keys), attend_scratch_bytes(p, max_key_blocks)));
    take(scratch, scratch_bytes * static_cast<std::size_t>(device.threads));
    // One alignment more, since the caller's memory may start anywhere.
    bytes = static_cast<std::size_t>(at - begin) + kAlignment;
  }
};

void copy_transform(const Workspace& w, const AttentionProblem& p, const KeyTransform& transform) {
  const std::int64_t dim = p.head_dim;
  const std::int64_t padded = layout::ceil_div(dim, 16) * 16;
  for (std::int64_t h = 0; h < p.heads_kv; ++h) {
    for (std::int64_t d = 0; d < dim; ++d) {
      float* row = w.t_q + (h * dim + d) * padded;
      std::copy_n(transform.t_q + (h * dim + d) * dim, dim, row);
      std::fill(row + dim, row + padded, 0.0f);
      for (std::int64_t e = 0; e < dim; ++e)
        w.t_k[(h * dim + e) * dim + d] = transform.t_k[(h * dim + d) * dim + e];
    }
  }
}

// One unit of work of a phase, over all threads; longest first where the caller orders it so.
template <class F>
void parallel_for(std::int64_t count, int threads, F&& body) {
  const int used = static_cast<int>(std::clamp<std::int64_t>(count, 1, threads));
#pragma omp parallel for schedule(dynamic, 1) num_threads(used)
  for (std::int64_t i = 0; i < count; ++i) body(i, omp_get_thread_num());
}

// The last sequence whose `first` member is at most `value`.
template <class Member>
std::int64_t find_sequence(const Sequence* sequences, std::int64_t batch, std::int64_t value,
                           Member first) {
  const Sequence* found =
      std::upper_bound(sequences, sequences + batch, value,
                       [first](std::int64_t v, const Sequence& s) { return v < s.*first; });
  return found - sequences - 1;
}

void prepare_keys(const CallContext& call, const Workspace& w, std::int64_t blocks, int threads) {
  const AttentionProblem& p = *call.problem;
  auto scratch = [&](int thread) { return w.scratch + w.scratch_bytes * thread; };
  if (w.keys.int8 && call.args->prepared_k == nullptr)
    parallel_for(p.batch * p.heads_kv, threads, [&](std::int64_t i, int thread) {
      const std::int64_t b = i / p.heads_kv;
      prepare_mean(w.keys, call.ops, p, *call.args, w.sequences[b], b, i % p.heads_kv,
                   scratch(thread));
    });
  parallel_for(blocks * p.heads_kv, threads, [&](std::int64_t i, int thread) {
    const std::int64_t index = i / p.heads_kv;
    const std::int64_t head = i % p.heads_kv;
    const std::int64_t b = find_sequence(w.sequences, p.batch, index, &Sequence::first_block);
    const float* t_k = w.t_k ? w.t_k + head * p.head_dim * p.head_dim : nullptr;
    prepare_block(w.keys, call.ops, p, *call.args, w.sequences[b], b, head,
                  index - w.sequences[b].first_block, t_k, scratch(thread));
  });
}

float scale_of(const AttentionProblem& p) {
  return p.scale.value_or(1.0f / std::sqrt(static_cast<float>(p.head_dim)));
}

Status launch(const Kernel&, const Launch& launch) {
  const AttentionProblem& p = launch.problem;
  const int threads = launch.device.threads;
  const Target target = find_target(launch.device.arch);
  const Workspace w(p, launch.device, launch.workspace);
  const SequenceTotals totals = lay_out_sequences(w.sequences, p, launch.args);

  CallContext call;
  call.problem = &p;
  call.args = &launch.args;
  call.ops = ops_of(target);
  call.softmax = softmax_ops(target.bit);
  call.keys = w.keys;
  call.sequences = w.sequences;
  call.max_key_blocks = layout::ceil_div(p.seqlen_k, p.sparsity.block);
  call.scale = scale_of(p);
  if (w.t_q != nullptr) {
    copy_transform(w, p, *launch.args.transform);
    call.t_q = w.t_q;
  }
  if (totals.row_blocks > 0) prepare_keys(call, w, totals.blocks, threads);

  // Later row blocks of a causal sequence have more keys, so they go first; the heads of one row
  // block follow each other, since those of a group read the same K and V.
  std::atomic<std::int64_t> units{0}, refined{0}, dropped{0}, pruned{0}, live{0};
  parallel_for(totals.row_blocks * p.heads_q, threads, [&](std::int64_t i, int thread) {
    const std::int64_t index = totals.row_blocks - 1 - i / p.heads_q;
    const std::int64_t b = find_sequence(w.sequences, p.batch, index, &Sequence::first_row_block);
    const AttentionStats stats =
        attend_row_block(call, b, i % p.heads_q, index - w.sequences[b].first_row_block,
                         w.scratch + w.scratch_bytes * thread);
    units += stats.units;
    refined += stats.refined;
    dropped += stats.dropped;
    pruned += stats.pruned_pairs;
    live += stats.live_pairs;
  });
  if (launch.args.stats) *launch.args.stats = {units, refined, dropped, pruned, live};
  return {};
}

// K is padded to whole blocks, so that a small tensor with broadcast strides may ask for more than
// can be counted. 2^46 bytes is beyond any machine and far from overflow.
bool fits_memory(const AttentionProblem& p) {
  const double panels = static_cast<double>(p.heads_kv) * static_cast<double>(max_blocks(p)) *
                        static_cast<double>(p.sparsity.block) * static_cast<double>(p.head_dim);
  const double means = static_cast<double>(p.heads_kv) * static_cast<double>(p.batch) *
                       static_cast<double>(p.head_dim);
  return sizeof(float) * (panels + means) < 0x1p46;
}

std::string why_not(const Kernel& kernel, const AttentionProblem& p, const Device& device) {
  if (device.kind != DeviceKind::kCpu) return "runs on the CPU only";
  if (find_target(device.arch).bit == 0) return "not built for " + device.arch;
  for (const auto& [name, dim] :
       {std::pair{"head_dim", p.head_dim}, std::pair{"head_dim_v", p.head_dim_v}})
    if (dim % 8 != 0 || dim < 8 || dim > kMaxHeadDim)
      return std::string("unsupported: ") + name + " " + std::to_string(dim) +
             ", supported are the multiples of 8 from 8 to " + std::to_string(kMaxHeadDim);
  if (!fits_memory(p)) return "the prepared K would take more than 2^46 bytes";
  if (p.sparsity.qk != kernel.config.qk)
    return std::string("computes the ") + to_string(kernel.config.qk) + " product only";
  if (p.sparsity.score != kernel.config.score)
    return std::string("prunes scores by ") + to_string(kernel.config.score) + " only";
  if (p.trace != kernel.config.trace)
    return kernel.config.trace ? "a debugging row, for traced problems" : "writes no decisions";
  return "";
}

// Pairs that fall in pruned blocks are about this share of the live ones in long sequences.
double cost(const Kernel& kernel, const AttentionProblem& p, const Device& device) {
  const double rate = std::max(device.peak_gflops, 1.0) * 1e9;
  // Shares of the peak reached by the dense product, then the speed relative to it.
  const double dense = 0.85;
  const double qk = kernel.config.qk == QKProduct::kExact  ? 1
                    : kernel.config.qk == QKProduct::kNm24 ? 1.6
                    : find_target(device.arch).vnni        ? 3.3
                                                           : 0.95;
  const double pv = kernel.config.score == ScorePattern::kPair ? 1.6 : 1;
  return 2 * estimated_pairs(p) / (rate * dense) *
         (static_cast<double>(p.head_dim) / qk + static_cast<double>(p.head_dim_v) / pv);
}

std::size_t workspace(const Kernel&, const AttentionProblem& p, const Device& device) {
  return Workspace(p, device, nullptr).bytes;
}

std::vector<Kernel> make_rows() {
  std::vector<Kernel> rows;
  for (const bool trace : {false, true})
    for (const QKProduct qk : {QKProduct::kExact, QKProduct::kInt8, QKProduct::kNm24})
      for (const ScorePattern score : {ScorePattern::kNone, ScorePattern::kPair,
                                       ScorePattern::kNm24Strided, ScorePattern::kNm24Adjacent}) {
        Kernel row;
        row.id = std::string("attention.cpu.") + to_string(qk) + "." + to_string(score) +
                 (trace ? ".trace" : "");
        row.arch = "cpu";
        row.config = {qk, score, trace};
        row.why_not = &why_not;
        row.cost = &cost;
        row.workspace = &workspace;
        row.launch = &launch;
        rows.push_back(std::move(row));
      }
  return rows;
}

}  // namespace

std::span<const Kernel> attention_kernels() {
  static const std::vector<Kernel> rows = make_rows();
  return rows;
}

}  // namespace twofour::cpu
