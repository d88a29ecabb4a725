// K as int8: the mean over the live keys, one scale a key block, codes rounded half to even.
//
// Two passes over K: sums of kMeanKeys keys at a time, added up in a fixed order so that the mean
// is the same at every run; then, one CTA a key block, amax and codes with the block in registers.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/error.h"
#include "cuda/prepare/sequences.cuh"
#include "cuda/ptx/math.h"
#include "cuda/tile/codes.h"

namespace twofour::cuda {
namespace {

constexpr int kThreads = 256;

template <DType kType>
struct Channels {
  float value[8];
  __device__ explicit Channels(uint4 packed) {
    const std::uint32_t word[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      value[2 * i] = ptx::unpack_low<kType>(word[i]);
      value[2 * i + 1] = ptx::unpack_high<kType>(word[i]);
    }
  }
};

/// Lanes of one key: kChunks of 8 channels each, neighbours in a warp.
template <int kChunks>
__device__ bool any_of_key(bool predicate) {
  const unsigned lanes = __ballot_sync(~0u, predicate);
  const int first = static_cast<int>(threadIdx.x) % 32 / kChunks * kChunks;
  return (lanes >> first & ((1u << kChunks) - 1)) != 0;
}

template <DType kType>
__device__ uint4 load_chunk(const QuantisedKeys& keys, const Sequences& all, int b, int head,
                            const Sequence& s, std::int64_t key, int chunk, bool inside) {
  if (!inside || 8 * chunk >= keys.head_dim) return make_uint4(0, 0, 0, 0);
  const std::int64_t row = all.packed ? s.first_row_k + key : key;
  const auto* at = static_cast<const unsigned short*>(keys.k) +
                   (all.packed ? 0 : b * keys.batch_stride) + row * keys.row_stride +
                   head * keys.head_stride + 8 * chunk;
  return __ldg(reinterpret_cast<const uint4*>(at));
}

/// A grid is one long row, since its other axes end at 65,535: x counts first, then heads, then
/// sequences.
struct Cell {
  int x, head, b;
  __device__ Cell(int width, int heads)
      : x(static_cast<int>(blockIdx.x % width)),
        head(static_cast<int>(blockIdx.x / width % heads)),
        b(static_cast<int>(blockIdx.x / width / heads)) {}
};

// Grid of chunks x Hkv x B. partial[..][padded] counts the finite live keys.
template <DType kType, int kPadded>
__global__ void __launch_bounds__(kThreads) sum_keys_kernel(Sequences all, QuantisedKeys keys) {
  constexpr int kChunks = kPadded / 8, kKeysAtOnce = kThreads / kChunks;
  const int chunks = mean_chunks(all.seqlen_k);
  const auto [x, head, b] = Cell(chunks, keys.heads);
  const Sequence s = sequence_at(all, b);
  const int chunk = threadIdx.x % kChunks;
  float sum[8] = {};
  float count = 0;
  const std::int64_t first = std::int64_t{x} * kMeanKeys;
#pragma unroll 4
  for (int i = threadIdx.x / kChunks; i < kMeanKeys; i += kKeysAtOnce) {
    const std::int64_t key = first + i;
    const bool live = key >= s.live.begin && key < s.live.end;
    const Channels<kType> k(load_chunk<kType>(keys, all, b, head, s, key, chunk, live));
    bool finite = true;
#pragma unroll
    for (int d = 0; d < 8; ++d) finite &= fabsf(k.value[d]) < INFINITY;
    if (any_of_key<kChunks>(!finite) || !live) continue;
    count += 1;
#pragma unroll
    for (int d = 0; d < 8; ++d) sum[d] += k.value[d];
  }
  __shared__ float sums[kKeysAtOnce][kPadded];
  __shared__ float counts[kKeysAtOnce];
  const int slot = threadIdx.x / kChunks;
#pragma unroll
  for (int d = 0; d < 8; ++d) sums[slot][8 * chunk + d] = sum[d];
  if (chunk == 0) counts[slot] = count;
  __syncthreads();
  float* out = keys.partial + ((std::int64_t{head} * all.batch + b) * chunks + x) * (kPadded + 1);
  for (int d = threadIdx.x; d <= kPadded; d += kThreads) {
    float total = 0;
    for (int i = 0; i < kKeysAtOnce; ++i) total += d < kPadded ? sums[i][d] : counts[i];
    out[d] = total;
  }
}

// Grid of Hkv x B; kSlices threads add up a channel, each its chunks in their order.
constexpr int kSlices = 8;
template <int kPadded>
__global__ void __launch_bounds__(kPadded* kSlices) mean_kernel(Sequences all, QuantisedKeys keys) {
  const int head = static_cast<int>(blockIdx.x % keys.heads),
            b = static_cast<int>(blockIdx.x / keys.heads);
  const int chunks = mean_chunks(all.seqlen_k);
  const float* partial =
      keys.partial + (std::int64_t{head} * all.batch + b) * chunks * (kPadded + 1);
  const int channel = threadIdx.x % kPadded, slice = threadIdx.x / kPadded;
  double sum = 0, count = 0;
#pragma unroll 4
  for (int i = slice; i < chunks; i += kSlices) {
    sum += partial[i * (kPadded + 1) + channel];
    count += partial[i * (kPadded + 1) + kPadded];
  }
  __shared__ double sums[kSlices][kPadded], counts[kSlices];
  sums[slice][channel] = sum;
  if (channel == 0) counts[slice] = count;
  __syncthreads();
  if (slice > 0) return;
  for (int i = 1; i < kSlices; ++i) {
    sum += sums[i][channel];
    count += counts[i];
  }
  keys.mean[(std::int64_t{head} * all.batch + b) * kPadded + channel] =
      count > 0 ? static_cast<float>(sum / count) : 0.0f;
}

// Grid of key blocks of the longest sequence x Hkv x B.
template <DType kType, int kPadded, int kBlock>
__global__ void __launch_bounds__(kThreads) quantise_kernel(Sequences all, QuantisedKeys keys) {
  constexpr int kChunks = kPadded / 8, kKeysAtOnce = kThreads / kChunks;
  constexpr int kPasses = (kBlock + kKeysAtOnce - 1) / kKeysAtOnce;
  const auto [x, head, b] =
      Cell(static_cast<int>(layout::ceil_div(all.seqlen_k, kBlock)), keys.heads);
  const Sequence s = sequence_at(all, b);
  const std::int64_t first = std::int64_t{x} * kBlock;
  if (first >= s.seqlen_k) return;
  const int chunk = threadIdx.x % kChunks;
  float mean[8];
#pragma unroll
  for (int d = 0; d < 8; ++d)
    mean[d] = keys.mean[(std::int64_t{head} * all.batch + b) * kPadded + 8 * chunk + d];

  uint4 packed[kPasses];
  float largest = 0;
  bool finite = true;
#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int i = pass * kKeysAtOnce + static_cast<int>(threadIdx.x) / kChunks;
    const std::int64_t key = first + i;
    const bool live = i < kBlock && key >= s.live.begin && key < s.live.end;
    packed[pass] = load_chunk<kType>(keys, all, b, head, s, key, chunk, live);
    if (!live || 8 * chunk >= keys.head_dim) continue;
    const Channels<kType> k(packed[pass]);
#pragma unroll
    for (int d = 0; d < 8; ++d) {
      const float centred = fabsf(k.value[d] - mean[d]);
      finite &= centred < INFINITY;
      largest = fmaxf(largest, centred);
    }
  }
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2)
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
  __shared__ float warp_largest[kThreads / 32];
  if (threadIdx.x % 32 == 0) warp_largest[threadIdx.x / 32] = largest;
  finite = __syncthreads_and(finite);
  for (int w = 0; w < kThreads / 32; ++w) largest = fmaxf(largest, warp_largest[w]);
  float scale = __fdiv_rn(largest, 127.0f);
  if (scale == 0) scale = 1;
  if (threadIdx.x == 0)
    keys.scale[head * keys.total_blocks + s.first_block + x] = finite ? scale : NAN;

#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
    const int i = pass * kKeysAtOnce + static_cast<int>(threadIdx.x) / kChunks;
    const std::int64_t key = first + i;
    if (i >= kBlock || key >= s.seqlen_k) continue;
    const bool live = key >= s.live.begin && key < s.live.end && 8 * chunk < keys.head_dim;
    const Channels<kType> k(packed[pass]);
    tile::Codes codes = {};
    if (live && finite) {
      float centred[8];
#pragma unroll
      for (int d = 0; d < 8; ++d) centred[d] = k.value[d] - mean[d];
      codes = tile::quantise(centred, scale);
    }
    std::int8_t* at = keys.codes + (head * keys.rows + s.first_row_k + key) * kPadded + 8 * chunk;
    *reinterpret_cast<uint2*>(at) = make_uint2(codes.word[0], codes.word[1]);
  }
}

template <DType kType, int kPadded>
Status launch(const Sequences& all, const QuantisedKeys& keys, cudaStream_t stream) {
  const auto cells = static_cast<unsigned>(keys.heads) * static_cast<unsigned>(all.batch);
  const auto chunks = static_cast<unsigned>(mean_chunks(all.seqlen_k));
  sum_keys_kernel<kType, kPadded><<<chunks * cells, kThreads, 0, stream>>>(all, keys);
  if (Status status = launch_status("sum_keys"); !status.ok()) return status;
  mean_kernel<kPadded><<<cells, kPadded * kSlices, 0, stream>>>(all, keys);
  if (Status status = launch_status("mean"); !status.ok()) return status;
  const unsigned grid = static_cast<unsigned>(layout::ceil_div(all.seqlen_k, all.block)) * cells;
  if (all.block == 128)
    quantise_kernel<kType, kPadded, 128><<<grid, kThreads, 0, stream>>>(all, keys);
  else if (all.block == 192)
    quantise_kernel<kType, kPadded, 192><<<grid, kThreads, 0, stream>>>(all, keys);
  else
    return {Code::kInternal, "quantise_keys: block " + std::to_string(all.block)};
  return launch_status("quantise_keys");
}

}  // namespace

Status quantise_keys(const Sequences& all, const QuantisedKeys& keys, cudaStream_t stream) {
  const bool fp16 = keys.dtype == DType::kF16;
  if (keys.padded_dim == 64)
    return fp16 ? launch<DType::kF16, 64>(all, keys, stream)
                : launch<DType::kBF16, 64>(all, keys, stream);
  return fp16 ? launch<DType::kF16, 128>(all, keys, stream)
              : launch<DType::kBF16, 128>(all, keys, stream);
}

}  // namespace twofour::cuda
