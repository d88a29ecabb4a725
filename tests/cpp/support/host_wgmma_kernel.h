// The Hopper kernel on the host: one CTA that works through all items of a call.
#pragma once

#include "host_wgmma.h"
// After host_wgmma.h, which it needs.
#include "cuda/sm90/attention.cuh"
#include "host_call.h"

namespace twofour::cuda::sm90 {

alignas(1024) inline unsigned char allocated[232448];  // what the kernel declares extern

}  // namespace twofour::cuda::sm90

namespace twofour::test {

struct WgmmaKernels {
  static constexpr auto& kRows = cuda::sm90::kRows;

  /// Runs a row; `seed` orders the warps.
  template <int kRow>
  static KernelOutput run(AttentionCase& c, const PreparedK* prepared, std::uint64_t seed) {
    using namespace cuda::sm90;
    constexpr Config config = cuda::sm90::kRows[kRow];
    Params params{};
    HostCall call(params, c, config, static_cast<int>(layout::kRowBlock), config.head_dim,
                  prepared);
    make_maps(params, call, config);
    int next_item = 0;
    params.next_item = &next_item;
    const std::span window(reinterpret_cast<std::byte*>(allocated),
                           static_cast<std::size_t>(Shared<config>::kAllocated));
    for (int i = 0; i < 2; ++i) {  // one more than there is work for
      std::ranges::fill(window, std::byte{0xFF});
      HostCta(kThreads / 32, window, 0, seed).run([&] { attention_kernel<kRow>(params); });
    }
    return call.finish(params);
  }

 private:
  struct Axis {
    std::int64_t size, stride;  // elements
    int box;
  };
  static CUtensorMap map_of(const void* base, int element, layout::Swizzle swizzle,
                            std::initializer_list<Axis> axes) {
    HostTensorMap map{};
    map.base = static_cast<const std::byte*>(base);
    map.element = static_cast<std::uint8_t>(element);
    map.swizzle = swizzle;
    for (const Axis& axis : axes) {
      map.size[map.rank] = static_cast<std::int32_t>(axis.size);
      map.stride[map.rank] = element * axis.stride;
      map.box[map.rank++] = static_cast<std::uint16_t>(axis.box);
    }
    return encode(map);
  }
  /// As src/cuda/sm90/attention.cc makes them.
  static void make_maps(cuda::sm90::Params& params, const HostCall& call,
                        const cuda::sm90::Config& c) {
    const AttentionProblem& p = call.problem;
    const bool int8 = cuda::sm90::is_int8(c);
    const std::int64_t keys = p.packed ? p.total_k : p.seqlen_k, batch = p.packed ? 1 : p.batch;
    const auto maps = [&](CUtensorMap& whole, CUtensorMap& pairs, const cuda::Rows& rows,
                          std::int64_t channels, std::int64_t count, std::int64_t batches,
                          int element, int box, layout::Swizzle swizzle, bool side_by_side) {
      const Axis channel{channels, 1, box}, head{p.heads_kv, rows.head, 1},
          sequence{batches, rows.batch, 1};
      whole =
          map_of(rows.data, element, swizzle, {channel, {count, rows.row, c.tile}, head, sequence});
      const std::int64_t distance = c.block / 2;
      const Axis row{std::max<std::int64_t>(count - distance, 1), rows.row, c.tile / 2},
          partner{2, rows.row * distance, 2};
      pairs = map_of(
          rows.data, element, swizzle,
          {channel, side_by_side ? partner : row, side_by_side ? row : partner, head, sequence});
    };
    if (int8)
      maps(params.k, params.k_pair, call.k, c.head_dim, call.k.head / c.head_dim, 1, 1, c.head_dim,
           c.head_dim == 64 ? layout::Swizzle::k64B : layout::Swizzle::k128B, false);
    else
      maps(params.k, params.k_pair, call.k, p.head_dim, keys, batch, 2, 64, layout::Swizzle::k128B,
           false);
    maps(params.v, params.v_pair, call.v, p.head_dim_v, keys, batch, 2, 64, layout::Swizzle::k128B,
         true);
  }
};

}  // namespace twofour::test
