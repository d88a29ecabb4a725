// Canaries: inputs, outputs, workspace and counters lie in one buffer between guards. After a run
// of any row nothing but the outputs and the workspace may differ, every output element is written,
// and no bit of the result depends on what the guards, the outputs and the workspace held before.
// On the CPU, and where there is one on the first CUDA device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "cuda/memory.h"
#include "io/cases.h"
#include "ops/memory.h"
#include "plan/registry.h"

namespace twofour {
namespace {

constexpr std::size_t kGuard = std::size_t{1} << 16;  // more than the rows of any tile
constexpr std::size_t kAlign = 256;

constexpr const char* kCases = R"(
mode=dense,score,int8,dual,refined,int8/pair/s1/d6,exact/pair/s1/d6,nm24/pair/s1/l1/r2/d6 dtype=fp16,bf16 heads=4/2 dim=8,40,64,96,120,128,64/128,128/64 len=113x703 causal=bottom_right
mode=dense,score,int8,dual,refined dtype=fp16,bf16 batch=2 heads=2/1 dim=64,128 len=1x1,1x900,385x577,193x193,799x3,191x386
mode=dense,score,int8,dual,refined dtype=fp16,bf16 heads=3/1 dim=64,128 packed=5x5+0x0+1x7+100x300+20x640+65x257 causal=bottom_right,no transform=random
mode=dense,score,int8,refined dtype=fp16 heads=2 dim=64,128 len=300x800 causal=top_left window=100:0 input=huge
mode=dense,int8 dtype=fp16 heads=2 dim=64,128 packed=0x0,0x4+3x0
mode=dense,score,int8,dual dtype=fp16,bf16 batch=2 heads=2/1 dim=64,64/128 len=70x900 causal=bottom_right splits=3
mode=exact/nm24_strided,exact/nm24_adjacent,int8/none,int8/nm24_strided,int8/nm24_adjacent,nm24/none,nm24/nm24_strided,nm24/nm24_adjacent dtype=fp16 dim=64 len=70x400
)";

/// One buffer with a host image of it. On the CPU the image is the buffer.
class Arena {
 public:
  explicit Arena(const Device& device) : device_(device) {}

  /// Room for `bytes`, after a guard; the offset.
  std::size_t reserve(std::size_t bytes) {
    const std::size_t at = (size_ + kGuard + kAlign - 1) / kAlign * kAlign;
    size_ = at + bytes;
    regions_.push_back({at, bytes});
    return at;
  }

  /// Sets every byte, then the inputs. Everything has been reserved.
  Status fill(unsigned char value, const std::map<std::size_t, std::vector<std::byte>>& inputs) {
    before_.assign(size_ + kGuard, std::byte{value});
    for (const auto& [at, bytes] : inputs) std::copy(bytes.begin(), bytes.end(), &before_[at]);
    if (device_.kind == DeviceKind::kCpu) {
      if (memory_.empty()) memory_.resize(before_.size() + kAlign);
      std::memcpy(base(), before_.data(), before_.size());
      return {};
    }
    if (buffer_.size() == 0) {
      auto made = cuda::Buffer::allocate(device_.index, before_.size() + kAlign);
      if (!made.ok()) return made.status();
      buffer_ = *std::move(made);
    }
    return cuda::copy_to_device(base(), before_.data(), before_.size());
  }

  std::byte* base() const {
    void* start =
        device_.kind == DeviceKind::kCpu ? const_cast<std::byte*>(memory_.data()) : buffer_.data();
    return reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(start) + kAlign - 1) /
                                        kAlign * kAlign);
  }

  Status read() {
    after_.resize(before_.size());
    if (device_.kind == DeviceKind::kCpu) {
      std::memcpy(after_.data(), base(), after_.size());
      return {};
    }
    Status status = cuda::synchronize(device_.index);
    return status.ok() ? cuda::copy_to_host(after_.data(), base(), after_.size()) : status;
  }

  std::vector<std::byte> region(std::size_t at, std::size_t bytes) const {
    return {after_.begin() + static_cast<std::ptrdiff_t>(at),
            after_.begin() + static_cast<std::ptrdiff_t>(at + bytes)};
  }

  /// The first byte that differs outside the regions that may be written, or nothing.
  std::optional<std::size_t> changed(const std::vector<std::size_t>& written) const {
    std::vector<bool> may(after_.size());
    for (const Region& r : regions_)
      if (std::find(written.begin(), written.end(), r.at) != written.end())
        std::fill_n(may.begin() + static_cast<std::ptrdiff_t>(r.at), r.bytes, true);
    for (std::size_t i = 0; i < after_.size(); ++i)
      if (!may[i] && after_[i] != before_[i]) return i;
    return std::nullopt;
  }

 private:
  struct Region {
    std::size_t at, bytes;
  };
  const Device& device_;
  std::size_t size_ = 0;
  std::vector<Region> regions_;
  std::vector<std::byte> before_, after_, memory_;
  cuda::Buffer buffer_;
};

std::vector<std::byte> bytes_of(const void* data, std::size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  return {begin, begin + bytes};
}

class CanaryCall {
 public:
  CanaryCall(const io::Case& c, const Plan& plan, const Device& device)
      : plan_(plan), memory_(io::make_case_memory(c)), arena_(device) {
    args_ = memory_->args;
    const AttentionProblem& p = c.problem;
    const auto give = [&](const void* data, std::size_t bytes) {
      const std::size_t at = arena_.reserve(bytes);
      inputs_[at] = bytes_of(data, data == nullptr ? 0 : bytes);
      return at;
    };
    for (ConstTensorView* view : {&args_.q, &args_.k, &args_.v}) {
      const Footprint touched = *footprint(*view);
      views_.push_back({view, give(view->data, touched.end - touched.begin)});
    }
    const std::size_t offsets = p.packed ? static_cast<std::size_t>(p.batch + 1) * 4 : 0;
    if (p.packed) {
      cu_q_ = give(args_.cu_seqlens_q, offsets);
      cu_k_ = give(args_.cu_seqlens_k, offsets);
    }
    if (args_.transform != nullptr) {
      transform_ = *args_.transform;
      const auto vectors = static_cast<std::size_t>(transform_.heads_kv * transform_.head_dim) * 4;
      const auto dim = static_cast<std::size_t>(transform_.head_dim);
      t_q_ = give(transform_.t_q, vectors * dim);
      t_k_ = give(transform_.t_k, vectors * dim);
      w_ = give(transform_.w, vectors);
    }
    o_bytes_ = memory_->o.bytes.size();
    lse_bytes_ = memory_->lse.bytes.size();
    o_ = arena_.reserve(o_bytes_);
    lse_ = arena_.reserve(lse_bytes_);
    stats_ = arena_.reserve(sizeof(AttentionStats));
    workspace_ = arena_.reserve(plan.workspace_bytes());
  }

  /// "" or what is wrong. `result` gets the bytes of o, lse and the counts.
  std::string run(unsigned char pattern, std::vector<std::byte>* result) {
    if (Status s = arena_.fill(pattern, inputs_); !s.ok()) return s.message();
    std::byte* const base = arena_.base();
    for (const auto& [view, at] : views_) view->data = base + at;
    args_.o.data = base + o_;
    args_.lse.data = base + lse_;
    args_.stats = reinterpret_cast<AttentionStats*>(base + stats_);
    if (args_.cu_seqlens_q != nullptr) {
      args_.cu_seqlens_q = reinterpret_cast<const std::int32_t*>(base + cu_q_);
      args_.cu_seqlens_k = reinterpret_cast<const std::int32_t*>(base + cu_k_);
    }
    if (args_.transform != nullptr) {
      transform_.t_q = reinterpret_cast<const float*>(base + t_q_);
      transform_.t_k = reinterpret_cast<const float*>(base + t_k_);
      if (transform_.w != nullptr) transform_.w = reinterpret_cast<const float*>(base + w_);
      args_.transform = &transform_;
    }
    Status s = plan_.run(args_, base + workspace_, plan_.workspace_bytes());
    if (s.ok()) s = arena_.read();
    if (!s.ok()) return s.message();
    const auto outside = arena_.changed({o_, lse_, stats_, workspace_});
    if (outside) return "byte " + std::to_string(*outside) + " changed: " + place_of(*outside);
    result->clear();
    for (const auto& [at, bytes, element, name] :
         {std::tuple{o_, o_bytes_, std::size_t{2}, "o"},
          {lse_, lse_bytes_, std::size_t{4}, "lse"},
          {stats_, sizeof(AttentionStats), std::size_t{8}, "stats"}}) {
      const std::vector<std::byte> got = arena_.region(at, bytes);
      for (std::size_t i = 0; i < got.size(); i += element)
        if (std::all_of(&got[i], &got[i] + element,
                        [&](std::byte b) { return b == std::byte{pattern}; }))
          return std::string(name) + " " + std::to_string(i / element) + " is not written";
      result->insert(result->end(), got.begin(), got.end());
    }
    return "";
  }

 private:
  std::string place_of(std::size_t at) const {
    const std::map<std::size_t, std::string> names = {
        {views_[0].second, "q"}, {views_[1].second, "k"}, {views_[2].second, "v"},   {o_, "o"},
        {lse_, "lse"},           {stats_, "stats"},       {workspace_, "workspace"},
    };
    auto after = names.upper_bound(at);
    if (after == names.begin()) return "before q";
    --after;
    return std::to_string(at - after->first) + " bytes from the start of " + after->second;
  }

  const Plan& plan_;
  std::unique_ptr<io::CaseMemory> memory_;
  Arena arena_;
  AttentionArgs args_;
  KeyTransform transform_;
  std::map<std::size_t, std::vector<std::byte>> inputs_;
  std::vector<std::pair<ConstTensorView*, std::size_t>> views_;
  std::size_t cu_q_ = 0, cu_k_ = 0, t_q_ = 0, t_k_ = 0, w_ = 0;
  std::size_t o_ = 0, lse_ = 0, stats_ = 0, workspace_ = 0, o_bytes_ = 0, lse_bytes_ = 0;
};

/// The reference, which is for any device, allocates for itself.
bool is_watched(const Kernel& row, const Device& device) {
  return is_for(row, device) && row.arch != "any" && !row.config.trace;
}

void check_all(const Device& device) {
  const auto cases = io::parse_cases(kCases, "canaries");
  ASSERT_TRUE(cases.ok()) << cases.status().message();
  std::map<std::string, int> runs;
  for (const io::Case& c : *cases)
    for (const Kernel& row : kernels()) {
      if (!is_watched(row, device)) continue;
      PlanOptions options;
      options.kernel_id = row.id;
      const auto plan = twofour::plan(c.problem, device, options);
      if (!plan.ok()) {
        ASSERT_EQ(plan.status().code(), Code::kUnsupported) << plan.status().message();
        continue;
      }
      CanaryCall call(c, *plan, device);
      // NaN in every format; then numbers, so that what is read by mistake is seen.
      std::vector<std::byte> first, second;
      ASSERT_EQ(call.run(0xFF, &first), "") << row.id << ": " << c.text;
      // 0x7D: finite in bf16 and fp32, NaN in fp16; large as an index.
      ASSERT_EQ(call.run(0x7D, &second), "") << row.id << ": " << c.text;
      ASSERT_EQ(first, second) << row.id << " depends on memory that is not its: " << c.text;
      ++runs[row.id];
    }
  for (const Kernel& row : kernels()) {
    if (!is_watched(row, device)) continue;
    EXPECT_GT(runs[row.id], 0) << row.id << " ran no case";
  }
}

TEST(Canaries, OnTheCpu) {
  const auto device = cpu_device();
  ASSERT_TRUE(device.ok());
  check_all(*device);
}

TEST(Canaries, OnCuda) {
  const auto device = cuda_device();
  if (!device.ok()) GTEST_SKIP() << device.status().message();
  check_all(*device);
}

}  // namespace
}  // namespace twofour
