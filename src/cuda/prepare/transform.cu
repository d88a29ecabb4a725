// x T on tensor cores with the accuracy of fp32: x is exact in 16 bits, T is a sum of 16-bit parts.
//
// One launch splits T and stores it as the fragments that the lanes of the second one hold. There
// a warp keeps 16 columns of T in registers for a run of rows, and tiles of x stream through
// shared memory, which every warp reads whole. Traffic is one read of x and one write of out.
#include <algorithm>
#include <string>

#include "cuda/error.h"
#include "cuda/prepare/transform.h"
#include "cuda/ptx/async.h"
#include "cuda/ptx/mma.h"
#include "cuda/tile/split.h"
#include "layout/mma.h"
#include "layout/schedule.h"

namespace twofour::cuda {
namespace {

using FragmentB = layout::MmaB<16, 16>;

/// The shape of the work for head_dim up to kPadded, a multiple of 16. A k-step is 16 channels of
/// x, a slice 16 columns of T, the share of a warp.
template <DType kType, int kPadded>
struct Shape {
  static constexpr int kParts = tile::kSplitParts<kType>;
  static constexpr int kSteps = kPadded / 16, kSlices = kPadded / 16;
  static constexpr int kRowGroups = kSlices < 6 ? 8 / kSlices : 1;
  static constexpr int kThreads = 32 * kSlices * kRowGroups;
  static constexpr int kTileRows = 32 * kRowGroups;
  static constexpr int kStages = 4;
  // Chunks of 8 channels. An odd pitch puts 8 rows of a chunk into different banks.
  static constexpr int kChunks = kPadded / 8, kPitch = 16 * (kChunks + 1);
  static constexpr int kRowsAtOnce = kThreads / kChunks;  // of the threads, a chunk each
  static constexpr int kTileBytes = kTileRows * kPitch;
  static_assert(kPadded % 16 == 0 && kThreads % kChunks == 0 && kTileRows % kRowsAtOnce == 0);
  static_assert(kStages * kTileBytes <= 48 * 1024);

  /// [Hkv, kSlices, kParts, kSteps, 32]: both registers of both n-blocks of a slice.
  static constexpr int kFragments = kSlices * kParts * kSteps * 32;  // of a head
  static uint4* fragments(void* split) { return static_cast<uint4*>(split); }
  static float* rescale(void* split, int heads_kv) {  // [Hkv, kPadded], fp16 alone
    return reinterpret_cast<float*>(fragments(split) + std::int64_t{heads_kv} * kFragments);
  }
};

/// Column of a slice that is column `col` of n-block `n`: so assigned that the accumulators of a
/// row are four neighbours in a lane, and 16 in a quad.
__host__ __device__ constexpr int column(int n, int col) { return 4 * (col / 2) + 2 * n + col % 2; }
constexpr bool accumulators_are_neighbours() {
  for (int lane = 0; lane < 32; ++lane)
    for (int n = 0; n < 2; ++n)
      for (int reg = 0; reg < 4; ++reg) {
        const layout::Coord at = layout::MmaD::coord({lane, reg, 0});
        if (at.row != lane / 4 + 8 * (reg / 2)) return false;
        if (column(n, at.col) != 4 * (lane % 4) + 2 * n + reg % 2) return false;
      }
  return true;
}
static_assert(accumulators_are_neighbours());

/// ldmatrix_x4 fills A when lane l points to this row and chunk of 8: matrix l / 8 is register
/// l / 8, and its row r, halves 2q and 2q + 1 go to lane 4r + q.
__host__ __device__ constexpr layout::Coord address_of_lane(int lane) {
  return {lane % 16, lane / 16};
}
constexpr bool ldmatrix_gives_a() {
  for (int lane = 0; lane < 32; ++lane)
    for (int reg = 0; reg < 4; ++reg)
      for (int part = 0; part < 2; ++part) {
        const layout::Coord row = address_of_lane(8 * reg + lane / 4);
        const layout::Coord given{row.row, 8 * row.col + 2 * (lane % 4) + part};
        if (layout::MmaA<16>::coord({lane, reg, part}) != given) return false;
      }
  return true;
}
static_assert(ldmatrix_gives_a());

// Grid of slices x Hkv, a warp a k-step.
template <DType kType, int kPadded>
__global__ void __launch_bounds__(2 * kPadded)
    split_kernel(const float* t, int dim, uint4* fragments, float* rescale) {
  using S = Shape<kType, kPadded>;
  const int lane = threadIdx.x % 32, step = threadIdx.x / 32;
  const int slice = static_cast<int>(blockIdx.x % S::kSlices);
  const std::int64_t kv = blockIdx.x / S::kSlices;
  float value[2][2][2];  // n-block, register, part
  float largest[2] = {0, 0};
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int reg = 0; reg < 2; ++reg)
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const auto [row, col] = FragmentB::coord({lane, reg, part});
        const int d = 16 * step + row, e = 16 * slice + column(n, col);
        const float v = d < dim && e < dim ? t[(kv * dim + d) * dim + e] : 0.0f;
        value[n][reg][part] = v;
        largest[n] = fmaxf(largest[n], fabsf(v));
      }
  if constexpr (kType == DType::kF16) {
    __shared__ float largest_of[S::kSteps][2][8];
    const int col = lane / 4;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      largest[n] = fmaxf(largest[n], __shfl_xor_sync(~0u, largest[n], 1));
      largest[n] = fmaxf(largest[n], __shfl_xor_sync(~0u, largest[n], 2));
      if (lane % 4 == 0) largest_of[step][n][col] = largest[n];
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      for (int s = 0; s < S::kSteps; ++s) largest[n] = fmaxf(largest[n], largest_of[s][n][col]);
      const tile::ColumnScale scale = tile::column_scale<kType>(largest[n]);
      if (step == 0 && lane % 4 == 0)
        rescale[kv * kPadded + 16 * slice + column(n, col)] = scale.down;
#pragma unroll
      for (int reg = 0; reg < 2; ++reg) {
        value[n][reg][0] *= scale.up;
        value[n][reg][1] *= scale.up;
      }
    }
  }
  std::uint32_t parts[2][2][S::kParts];
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int reg = 0; reg < 2; ++reg)
      tile::split_pair<kType>(value[n][reg][0], value[n][reg][1], parts[n][reg]);
  fragments += kv * S::kFragments + (slice * S::kParts * S::kSteps + step) * 32 + lane;
#pragma unroll
  for (int p = 0; p < S::kParts; ++p)
    fragments[p * S::kSteps * 32] =
        make_uint4(parts[0][0][p], parts[0][1][p], parts[1][0][p], parts[1][1][p]);
}

/// 16 rows by the 16 columns of a warp, as four neighbours of row lane / 4 and four of that plus 8.
template <DType kType, int kPadded>
__device__ __forceinline__ void multiply(
    std::uint32_t address,
    const uint4 (&t)[Shape<kType, kPadded>::kParts][Shape<kType, kPadded>::kSteps],
    float (&sum)[2][4]) {
  using S = Shape<kType, kPadded>;
  // The small parts apart from the large one: four independent chains, and less is lost.
  float small[2][4] = {};
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[n][i] = 0;
#pragma unroll
  for (int step = 0; step < S::kSteps; ++step) {
    std::uint32_t a[4];
    ptx::ldmatrix_x4(a, address + 32 * step);
#pragma unroll
    for (int p = 0; p < S::kParts; ++p) {
      ptx::mma_m16n8k16<kType>(p == 0 ? sum[0] : small[0], a, t[p][step].x, t[p][step].y);
      ptx::mma_m16n8k16<kType>(p == 0 ? sum[1] : small[1], a, t[p][step].z, t[p][step].w);
    }
  }
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[n][i] += small[n][i];
}

// Grid of heads x runs of rows x B: neighbours read the same rows.
template <DType kType, int kPadded>
__global__ void __launch_bounds__(Shape<kType, kPadded>::kThreads, 2)
    transform_kernel(TransformedRows all, unsigned runs, int tiles_of_run, const uint4* fragments,
                     const float* rescale) {
  using S = Shape<kType, kPadded>;
  __shared__ __align__(16) unsigned char stages[S::kStages][S::kTileBytes];
  const int head = static_cast<int>(blockIdx.x % all.heads);
  const std::int64_t b = blockIdx.x / all.heads / runs;
  const std::int64_t first =
      std::int64_t{blockIdx.x / all.heads % runs} * tiles_of_run * S::kTileRows;
  const int tiles = static_cast<int>(
      min(std::int64_t{tiles_of_run}, layout::ceil_div(all.rows - first, S::kTileRows)));
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int slice = warp % S::kSlices, group = warp / S::kSlices;

  const int chunk = threadIdx.x % S::kChunks, load_row = threadIdx.x / S::kChunks;
  const auto* source = static_cast<const unsigned short*>(all.x) + b * all.batch_stride +
                       (first + load_row) * all.row_stride + head * all.head_stride + 8 * chunk;
  const std::uint32_t destination = ptx::shared_address(stages) + load_row * S::kPitch + 16 * chunk;
  // Rows of this run up to the end of the sequence, from this thread's first on; none beyond D.
  const int rows = static_cast<int>(min(std::int64_t{tiles} * S::kTileRows, all.rows - first));
  const int load_rows = 8 * chunk < all.head_dim ? rows - load_row : 0;
  const auto load = [&](int tile) {
    const std::uint32_t to = destination + tile % S::kStages * S::kTileBytes;
#pragma unroll
    for (int row = 0; row < S::kTileRows; row += S::kRowsAtOnce) {
      const int tile_row = tile * S::kTileRows + row;
      const bool inside = tile_row < load_rows;
      ptx::cp_async(to + row * S::kPitch, inside ? source + tile_row * all.row_stride : all.x,
                    inside);
    }
  };
#pragma unroll
  for (int tile = 0; tile < S::kStages - 1; ++tile) {
    if (tile < tiles) load(tile);
    ptx::cp_async_commit();
  }

  const std::int64_t kv = head / all.heads_per_kv;
  uint4 t[S::kParts][S::kSteps];
  fragments += kv * S::kFragments + slice * S::kParts * S::kSteps * 32 + lane;
#pragma unroll
  for (int p = 0; p < S::kParts; ++p)
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step)
      t[p][step] = __ldg(fragments + (p * S::kSteps + step) * 32);
  float4 down = make_float4(1, 1, 1, 1);
  if constexpr (kType == DType::kF16)
    down = __ldg(reinterpret_cast<const float4*>(rescale + kv * kPadded + 16 * slice) + lane % 4);

  const auto [a_row, a_chunk] = address_of_lane(lane);
  const std::uint32_t a_address =
      ptx::shared_address(stages) + (32 * group + a_row) * S::kPitch + 16 * a_chunk;
  // A lane stores 8 neighbours: an even one of row lane / 4, an odd one of that plus 8.
  const bool odd = lane % 2 != 0;
  const int store_row = 32 * group + lane / 4 + (odd ? 8 : 0);
  const int store_column = 16 * slice + 8 * (lane % 4 / 2);
  const int store_rows = store_column < all.head_dim ? rows - store_row : 0;
  const int out_stride = all.heads * all.head_dim;
  auto* out = static_cast<unsigned short*>(all.out) +
              (b * all.rows + first + store_row) * out_stride + head * all.head_dim + store_column;

  for (int tile = 0; tile < tiles; ++tile) {
    ptx::cp_async_wait<S::kStages - 2>();
    __syncthreads();  // the tile is there, and the one before it is read
    if (tile + S::kStages - 1 < tiles) load(tile + S::kStages - 1);
    ptx::cp_async_commit();
#pragma unroll
    for (int row = 0; row < 32; row += 16) {
      float sum[2][4];
      multiply<kType, kPadded>(a_address + tile % S::kStages * S::kTileBytes + row * S::kPitch, t,
                               sum);
      const uint2 upper = make_uint2(ptx::pack<kType>(sum[0][0] * down.x, sum[0][1] * down.y),
                                     ptx::pack<kType>(sum[1][0] * down.z, sum[1][1] * down.w));
      const uint2 lower = make_uint2(ptx::pack<kType>(sum[0][2] * down.x, sum[0][3] * down.y),
                                     ptx::pack<kType>(sum[1][2] * down.z, sum[1][3] * down.w));
      const std::uint32_t x = __shfl_xor_sync(~0u, odd ? upper.x : lower.x, 1);
      const std::uint32_t y = __shfl_xor_sync(~0u, odd ? upper.y : lower.y, 1);
      const int tile_row = tile * S::kTileRows + row;
      if (tile_row < store_rows)
        *reinterpret_cast<uint4*>(out + std::int64_t{tile_row} * out_stride) =
            odd ? make_uint4(x, y, lower.x, lower.y) : make_uint4(upper.x, upper.y, x, y);
    }
  }
}

/// Tiles a CTA takes with one load of T: few enough that a small call fills the device too.
int tiles_of_run(std::int64_t tiles) {
  constexpr std::int64_t kMost = 16, kWantedCtas = 1024;
  return static_cast<int>(std::min(std::max(tiles / kWantedCtas, std::int64_t{1}), kMost));
}

template <DType kType, int kPadded>
Status launch(const TransformedRows& all, cudaStream_t stream) {
  using S = Shape<kType, kPadded>;
  const int heads_kv = all.heads / all.heads_per_kv;
  uint4* fragments = S::fragments(all.split);
  float* rescale = S::rescale(all.split, heads_kv);
  split_kernel<kType, kPadded>
      <<<static_cast<unsigned>(heads_kv) * S::kSlices, 2 * kPadded, 0, stream>>>(
          all.t, all.head_dim, fragments, rescale);
  if (Status status = launch_status("split"); !status.ok()) return status;
  const std::int64_t cells = all.batch * all.heads;
  const int tiles = tiles_of_run(cells * layout::ceil_div(all.rows, S::kTileRows));
  const std::int64_t runs = layout::ceil_div(all.rows, std::int64_t{tiles} * S::kTileRows);
  transform_kernel<kType, kPadded><<<static_cast<unsigned>(cells * runs), S::kThreads, 0, stream>>>(
      all, static_cast<unsigned>(runs), tiles, fragments, rescale);
  return launch_status("transform");
}

constexpr int padded_dim(int head_dim) { return head_dim <= 64 ? 64 : head_dim <= 96 ? 96 : 128; }

template <DType kType>
Status launch_padded(const TransformedRows& all, cudaStream_t stream) {
  switch (padded_dim(all.head_dim)) {
    case 64:
      return launch<kType, 64>(all, stream);
    case 96:
      return launch<kType, 96>(all, stream);
    default:
      return launch<kType, 128>(all, stream);
  }
}

}  // namespace

std::size_t transform_split_bytes(int heads_kv, int head_dim) {
  // bf16 has the most parts, and fp16 alone has scales; room for both.
  const auto padded = static_cast<std::size_t>(padded_dim(head_dim));
  return static_cast<std::size_t>(heads_kv) * padded *
         (tile::kSplitParts<DType::kBF16> * padded * sizeof(std::uint16_t) + sizeof(float));
}

Status transform_rows(const TransformedRows& all, cudaStream_t stream) {
  if (all.head_dim < 8 || all.head_dim > 128 || all.head_dim % 8 != 0)
    return {Code::kInternal, "transform_rows: head_dim " + std::to_string(all.head_dim)};
  if (all.batch == 0 || all.rows == 0) return {};
  if (all.dtype == DType::kF16) return launch_padded<DType::kF16>(all, stream);
  if (all.dtype == DType::kBF16) return launch_padded<DType::kBF16>(all, stream);
  return {Code::kInternal, std::string("transform_rows: dtype ") + to_string(all.dtype)};
}

}  // namespace twofour::cuda
