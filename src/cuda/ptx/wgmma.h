// wgmma: the warpgroup-level matrix product of sm_90a, dense and 2:4 sparse, one wrapper per
// combination of operand kinds. D is 64 x N in fp32 (s32 for int8), B always in shared memory.
//
// Source: PTX ISA, "wgmma.mma_async" and "wgmma.mma_async.sp". Layouts: src/layout/wgmma.h,
// metadata.h, shared_tile.h. `accumulate` false overwrites D.
#pragma once

#include <cstdint>

#include "twofour/tensor.h"

namespace twofour::cuda::ptx {

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most kPending of this thread's groups are unfinished.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// The registers of D as asm text and as operands; those after D are numbered from kN / 2 on.
#define TWOFOUR_D16 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"
#define TWOFOUR_D24                                                                        \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23}"
#define TWOFOUR_D32                                                                        \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define TWOFOUR_D48                                                                        \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "  \
  "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}"
#define TWOFOUR_D64                                                                        \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "  \
  "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "  \
  "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#define TWOFOUR_R4(c, d, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define TWOFOUR_R16(c, d, i) \
  TWOFOUR_R4(c, d, i), TWOFOUR_R4(c, d, i + 4), TWOFOUR_R4(c, d, i + 8), TWOFOUR_R4(c, d, i + 12)
#define TWOFOUR_OUT16(c, d) TWOFOUR_R16(c, d, 0)
#define TWOFOUR_OUT24(c, d) TWOFOUR_R16(c, d, 0), TWOFOUR_R4(c, d, 16), TWOFOUR_R4(c, d, 20)
#define TWOFOUR_OUT32(c, d) TWOFOUR_R16(c, d, 0), TWOFOUR_R16(c, d, 16)
#define TWOFOUR_OUT48(c, d) TWOFOUR_OUT32(c, d), TWOFOUR_R16(c, d, 32)
#define TWOFOUR_OUT64(c, d) TWOFOUR_OUT48(c, d), TWOFOUR_R16(c, d, 48)

// N, its register count and the numbers of the operands that follow D.
#define TWOFOUR_FOR_N(X)                                     \
  X(32, 16, "%16", "%17", "%18", "%19", "%20", "%21", "%22") \
  X(48, 24, "%24", "%25", "%26", "%27", "%28", "%29", "%30") \
  X(64, 32, "%32", "%33", "%34", "%35", "%36", "%37", "%38") \
  X(96, 48, "%48", "%49", "%50", "%51", "%52", "%53", "%54") \
  X(128, 64, "%64", "%65", "%66", "%67", "%68", "%69", "%70")

#define TWOFOUR_PREDICATE(operand) "{\n.reg .pred p;\nsetp.ne.b32 p, " operand ", 0;\n"

/// D (+)= A B; both in shared memory, K-major.
template <DType kType, int kN>
struct WgmmaShared;
/// D (+)= A B; A of 64 x 16 in registers, B MN-major (transposed) in shared memory.
template <DType kType, int kN>
struct WgmmaRegisters;
/// D (+)= A B; A 2:4 sparse of 64 x 32 in shared memory (kept elements, K-major), B K-major.
template <DType kType, int kN>
struct WgmmaSparseShared;
/// D (+)= A B; A 2:4 sparse of 64 x 32 in registers (kept elements), B MN-major.
template <DType kType, int kN>
struct WgmmaSparseRegisters;

#define TWOFOUR_F "+f"
#define TWOFOUR_I "+r"

#define TWOFOUR_DEFINE_F16(TYPE, NAME, N, R, o0, o1, o2, o3, o4, o5, o6)                           \
  template <>                                                                                      \
  struct WgmmaShared<TYPE, N> {                                                                    \
    static __device__ __forceinline__ void run(float (&d)[R], std::uint64_t a, std::uint64_t b,    \
                                               bool accumulate) {                                  \
      asm volatile(TWOFOUR_PREDICATE(o2) "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME    \
                                         "." NAME " " TWOFOUR_D##R ", " o0 ", " o1                 \
                                                                   ", p, 1, 1, 0, 0;\n}\n"         \
                   : TWOFOUR_OUT##R(TWOFOUR_F, d)                                                  \
                   : "l"(a), "l"(b), "r"(int(accumulate)));                                        \
    }                                                                                              \
  };                                                                                               \
  template <>                                                                                      \
  struct WgmmaRegisters<TYPE, N> {                                                                 \
    static __device__ __forceinline__ void run(float (&d)[R], const std::uint32_t* a,              \
                                               std::uint64_t b, bool accumulate) {                 \
      asm volatile(TWOFOUR_PREDICATE(o5) "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME    \
                                         "." NAME " " TWOFOUR_D##R                                 \
                   ", {" o0 ", " o1 ", " o2 ", " o3 "}, " o4 ", p, 1, 1, 1;\n}\n"                  \
                   : TWOFOUR_OUT##R(TWOFOUR_F, d)                                                  \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)));    \
    }                                                                                              \
  };                                                                                               \
  template <>                                                                                      \
  struct WgmmaSparseShared<TYPE, N> {                                                              \
    template <int kSelector>                                                                       \
    static __device__ __forceinline__ void run(float (&d)[R], std::uint64_t a, std::uint64_t b,    \
                                               std::uint32_t metadata, bool accumulate) {          \
      asm volatile(TWOFOUR_PREDICATE(o4) "wgmma.mma_async.sp.sync.aligned.m64n" #N "k32.f32." NAME \
                                         "." NAME " " TWOFOUR_D##R ", " o0 ", " o1 ", " o2 ", " o3 \
                                                                   ", p, 1, 1, 0, 0;\n}\n"         \
                   : TWOFOUR_OUT##R(TWOFOUR_F, d)                                                  \
                   : "l"(a), "l"(b), "r"(metadata), "n"(kSelector), "r"(int(accumulate)));         \
    }                                                                                              \
  };                                                                                               \
  template <>                                                                                      \
  struct WgmmaSparseRegisters<TYPE, N> {                                                           \
    template <int kSelector>                                                                       \
    static __device__ __forceinline__ void run(float (&d)[R], const std::uint32_t* a,              \
                                               std::uint64_t b, std::uint32_t metadata) {          \
      asm volatile(                                                                                \
          "wgmma.mma_async.sp.sync.aligned.m64n" #N "k32.f32." NAME "." NAME " " TWOFOUR_D##R      \
          ", {" o0 ", " o1 ", " o2 ", " o3 "}, " o4 ", " o5 ", " o6 ", 1, 1, 1, 1;\n"              \
          : TWOFOUR_OUT##R(TWOFOUR_F, d)                                                           \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(metadata), "n"(kSelector));    \
    }                                                                                              \
  };

#define TWOFOUR_DEFINE_INT8(N, R, o0, o1, o2, o3, o4, o5, o6)                                      \
  template <>                                                                                      \
  struct WgmmaShared<DType::kI8, N> {                                                              \
    static __device__ __forceinline__ void run(std::int32_t (&d)[R], std::uint64_t a,              \
                                               std::uint64_t b, bool accumulate) {                 \
      asm volatile(TWOFOUR_PREDICATE(o2) "wgmma.mma_async.sync.aligned.m64n" #N                    \
                                         "k32.s32.s8.s8 " TWOFOUR_D##R ", " o0 ", " o1 ", p;\n}\n" \
                   : TWOFOUR_OUT##R(TWOFOUR_I, d)                                                  \
                   : "l"(a), "l"(b), "r"(int(accumulate)));                                        \
    }                                                                                              \
  };

#define TWOFOUR_DEFINE_N(N, ...)                           \
  TWOFOUR_DEFINE_F16(DType::kF16, "f16", N, __VA_ARGS__)   \
  TWOFOUR_DEFINE_F16(DType::kBF16, "bf16", N, __VA_ARGS__) \
  TWOFOUR_DEFINE_INT8(N, __VA_ARGS__)

TWOFOUR_FOR_N(TWOFOUR_DEFINE_N)

#undef TWOFOUR_DEFINE_N
#undef TWOFOUR_DEFINE_INT8
#undef TWOFOUR_DEFINE_F16
#undef TWOFOUR_I
#undef TWOFOUR_F
#undef TWOFOUR_PREDICATE
#undef TWOFOUR_FOR_N
#undef TWOFOUR_OUT64
#undef TWOFOUR_OUT48
#undef TWOFOUR_OUT32
#undef TWOFOUR_OUT24
#undef TWOFOUR_OUT16
#undef TWOFOUR_R16
#undef TWOFOUR_R4
#undef TWOFOUR_D64
#undef TWOFOUR_D48
#undef TWOFOUR_D32
#undef TWOFOUR_D24
#undef TWOFOUR_D16

}  // namespace twofour::cuda::ptx
