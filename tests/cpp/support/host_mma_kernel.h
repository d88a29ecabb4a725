// The mma.sync kernel on the host: every CTA of a call, one after the other.
#pragma once

#include "host_mma.h"
// After host_mma.h, which it needs.
#include "cuda/sm80/attention.cuh"
#include "host_call.h"

namespace twofour::cuda::sm80 {

inline constexpr int kWindowBytes = 227 * 1024;
alignas(1024) inline unsigned char allocated[kWindowBytes];  // what the kernel declares extern

}  // namespace twofour::cuda::sm80

namespace twofour::test {

struct MmaKernels {
  static constexpr auto& kRows = cuda::sm80::kRows;

  /// Runs a row; `seed` orders the warps and chooses how many stages of shared memory there are.
  template <int kRow>
  static KernelOutput run(AttentionCase& c, const PreparedK* prepared, std::uint64_t seed) {
    using namespace cuda::sm80;
    constexpr Config config = cuda::sm80::kRows[kRow];
    Params params{};
    HostCall call(params, c, config, config.rows(), code_width(config), prepared);
    params.k = call.k;
    params.v = call.v;
    params.stages = static_cast<int>(2 + seed % 3);
    while (Shared<config>::allocated(params.stages) > kWindowBytes) --params.stages;
    const std::span window(reinterpret_cast<std::byte*>(allocated),
                           static_cast<std::size_t>(Shared<config>::allocated(params.stages)));
    const int ctas = cuda::work_items(params, cuda::total_row_tiles(params, config.rows()));
    for (int i = 0; i <= ctas; ++i) {  // one more than there is work for
      std::ranges::fill(window, std::byte{0xFF});
      cuda::blockIdx.x = static_cast<unsigned>(i);
      HostCta(config.warps, window, 0, seed + i).run([&] { attention_kernel<kRow>(params); });
    }
    return call.finish(params);
  }
};

}  // namespace twofour::test
