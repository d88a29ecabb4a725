// K as the CPU kernels read it: per key block four quarter panels, transposed.
//
// A panel holds one quarter of a block (W = block / 4 keys), so that a half-block, which is
// quarters h and h + 2, is two contiguous pieces that fit the first-level cache:
//   fp32:  [quarter][D][W]          k, or k' with a transform, or int8 codes as floats
//   int8:  [quarter][D/4][W][4], then -128 * (sum of codes) as int32 [quarter][W]
// Keys past the end of a sequence are zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/convert.h"
#include "cpu/geometry.h"
#include "cpu/matmul.h"
#include "cpu/targets.h"

namespace twofour::cpu {

/// The functions of one instruction set.
struct Ops {
  const MatmulOps* matmul;
  const ConvertOps* convert;
  bool vnni;
};

inline Ops ops_of(const Target& target) {
  return {matmul_ops(target.bit), convert_ops(target.bit), target.vnni};
}

/// Prepared keys of a whole call, in the workspace.
struct KeyPanels {
  bool int8 = false;  // codes with scales
  bool vnni = false;  // packed for the 8-bit dot product, else fp32 panels
  int block = 0;
  std::int64_t head_dim = 0;
  std::int64_t blocks = 0;  // of all sequences
  std::int64_t batch = 0;
  char* panels = nullptr;        // [Hkv, blocks, panel_bytes]
  float* scale = nullptr;        // int8: [Hkv, blocks]
  float* mean = nullptr;         // int8: [Hkv, B, D]
  std::uint8_t* live = nullptr;  // int8 with a mask: [Hkv, blocks * block]

  std::size_t panel_bytes() const {
    const std::size_t keys = static_cast<std::size_t>(block);
    const std::size_t dim = static_cast<std::size_t>(head_dim);
    return vnni ? keys * dim + keys * sizeof(std::int32_t) : keys * dim * sizeof(float);
  }
  char* panel(std::int64_t head, std::int64_t index) const {
    return panels + static_cast<std::size_t>(head * blocks + index) * panel_bytes();
  }
  const float* quarter(std::int64_t head, std::int64_t index, int q) const {
    return reinterpret_cast<const float*>(panel(head, index)) + q * head_dim * (block / 4);
  }
  const std::int8_t* codes(std::int64_t head, std::int64_t index, int q) const {
    return reinterpret_cast<const std::int8_t*>(panel(head, index)) + q * head_dim * (block / 4);
  }
  const std::int32_t* bias(std::int64_t head, std::int64_t index, int q) const {
    return reinterpret_cast<const std::int32_t*>(panel(head, index) + head_dim * block) +
           q * (block / 4);
  }
};

/// Bytes of scratch that prepare_block needs.
std::size_t prepare_scratch_bytes(const KeyPanels& keys);

/// int8: the mean over the finite live keys of sequence b for one KV head, and with a mask the
/// liveness of its keys. To be called for every (b, head) before prepare_block. `scratch` as there.
void prepare_mean(const KeyPanels& keys, const Ops& ops, const AttentionProblem& problem,
                  const AttentionArgs& args, const Sequence& sequence, std::int64_t b,
                  std::int64_t head, void* scratch);

/// int8: quantises key block `index` of sequence b. Writes its scale into keys.scale and returns
/// its codes [keys in the block, D], which lie in `scratch`.
const std::int8_t* quantise_block(const KeyPanels& keys, const Ops& ops,
                                  const AttentionProblem& problem, const AttentionArgs& args,
                                  const Sequence& sequence, std::int64_t b, std::int64_t head,
                                  std::int64_t index, void* scratch);

/// Writes the panels of key block `index` of sequence b.
/// `t_k`: [D, D] with row e = column e of T^-T, or null.
void prepare_block(const KeyPanels& keys, const Ops& ops, const AttentionProblem& problem,
                   const AttentionArgs& args, const Sequence& sequence, std::int64_t b,
                   std::int64_t head, std::int64_t index, const float* t_k, void* scratch);

}  // namespace twofour::cpu
