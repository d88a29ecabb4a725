// Tensor Core instructions emulated from per-lane registers, so that a kernel's register code can
// be tested on a machine without a GPU.
//
// Every function takes exactly what the instruction takes: 32-bit registers by lane, accumulators
// by lane, metadata words, the sparsity selector, and for wgmma a shared memory and the 64-bit
// descriptor. Products of 16-bit elements are exact in double; the sum of one instruction is
// formed in double and rounded once to fp32. Hardware aligns and truncates the same products to
// fewer bits, in an order NVIDIA does not state. Compared with an H200 on random registers: bit
// for bit equal on small integers, where both are exact, and on s8; on normal values within one
// unit in the last place of the largest partial sum. s32 sums wrap modulo 2^32, as without
// .satfinite.
//
// Sources: PTX ISA, "mma", "mma.sp" (::ordered_metadata), "wgmma.mma_async",
// "wgmma.mma_async.sp". Layouts: src/layout. Errors are kInvalidArgument, with the output
// untouched: a dtype that is not fp16 or bf16, a selector out of range, metadata that hardware
// calls undefined behaviour, a wgmma N out of range, an operand outside the shared memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "layout/shared_tile.h"
#include "twofour/status.h"
#include "twofour/tensor.h"

namespace twofour::ref {

/// Registers of a warp (or warpgroup), [lane][register].
template <class T, int kRegisters, int kLanes = 32>
using Lanes = std::array<std::array<T, kRegisters>, kLanes>;

/// One 32-bit metadata word per lane; lanes that the selector does not name are not read.
using Metadata = std::array<std::uint32_t, 32>;
using WarpgroupMetadata = std::array<std::uint32_t, 128>;

/// D = A B + C, mma.sync.m16n8k16 with fp16 or bf16 operands and fp32 accumulators.
Status mma_m16n8k16(Lanes<float, 4>& d, const Lanes<std::uint32_t, 4>& a,
                    const Lanes<std::uint32_t, 2>& b, const Lanes<float, 4>& c, DType dtype);

/// D = A B + C, mma.sync.m16n8k32 with s8 operands and s32 accumulators.
Status mma_m16n8k32_s8(Lanes<std::int32_t, 4>& d, const Lanes<std::uint32_t, 4>& a,
                       const Lanes<std::uint32_t, 2>& b, const Lanes<std::int32_t, 4>& c);

/// D = A B + C, mma.sp::ordered_metadata.m16n8k32 with fp16 or bf16; selector 0 or 1.
Status mma_sp_m16n8k32(Lanes<float, 4>& d, const Lanes<std::uint32_t, 4>& a,
                       const Lanes<std::uint32_t, 4>& b, const Lanes<float, 4>& c,
                       const Metadata& metadata, int selector, DType dtype);

/// D = A B + C, mma.sp::ordered_metadata.m16n8k64 with s8; selector 0.
Status mma_sp_m16n8k64_s8(Lanes<std::int32_t, 4>& d, const Lanes<std::uint32_t, 4>& a,
                          const Lanes<std::uint32_t, 4>& b, const Lanes<std::int32_t, 4>& c,
                          const Metadata& metadata, int selector);

/// The B operand of wgmma: a window of shared memory that starts at address 0, and a descriptor
/// into it. `mn_major` is the instruction's imm-trans-b (16-bit types only).
struct SharedOperand {
  std::span<const std::byte> memory;
  std::uint64_t descriptor = 0;
  bool mn_major = false;
};

/// D = A B + scale_d D, wgmma.mma_async.m64nNk16 with A in registers, fp16 or bf16 operands.
/// D is [128, N / 2] by lane and register; N is 2 * d.size() / 128, a multiple of 8 in 8..256.
Status wgmma_m64k16(std::span<float> d, const Lanes<std::uint32_t, 4, 128>& a,
                    const SharedOperand& b, bool scale_d, DType dtype);

/// D = A B + scale_d D, wgmma.mma_async.m64nNk32 with A in registers and s8 operands.
Status wgmma_m64k32_s8(std::span<std::int32_t> d, const Lanes<std::uint32_t, 4, 128>& a,
                       const SharedOperand& b, bool scale_d);

/// D = A B + scale_d D, wgmma.mma_async.sp.m64nNk32 with A in registers; selector 0 or 1.
Status wgmma_sp_m64k32(std::span<float> d, const Lanes<std::uint32_t, 4, 128>& a,
                       const SharedOperand& b, const WarpgroupMetadata& metadata, int selector,
                       bool scale_d, DType dtype);

}  // namespace twofour::ref
