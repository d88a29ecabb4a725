/* twofour for C (C99) and for everything that speaks C: attention with run-time 2:4 sparsity.
 *
 *   twofour_attention_problem problem;
 *   twofour_attention_problem_init(&problem);      always: sets struct_size and the defaults
 *   problem.seqlen_q = problem.seqlen_k = 4096; ...
 *   twofour_plan* plan = NULL;
 *   if (twofour_plan_create(&problem, NULL, &plan) != TWOFOUR_OK) puts(twofour_last_error());
 *
 * Stable ABI: functions are never removed or changed, codes and enumerators keep their numbers, and
 * a descriptor with a struct_size only ever grows at its end. A library accepts a descriptor of an
 * older header (what is missing takes its default) and one of a newer header whose new fields are
 * zero. Functions are thread-safe; no C++ exception leaves them.
 *
 * What is computed: docs/semantics.md. Strides count elements and are 64-bit. */
#ifndef TWOFOUR_TWOFOUR_H
#define TWOFOUR_TWOFOUR_H

#include <stddef.h>
#include <stdint.h>

#include "twofour/export.h"
#include "twofour/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Names as C libraries have them. NOLINTBEGIN(readability-identifier-naming) */

/* Why a call failed; the numbers of twofour::Code. */
typedef enum twofour_code {
  TWOFOUR_OK = 0,
  TWOFOUR_INVALID_ARGUMENT = 1,
  TWOFOUR_UNSUPPORTED = 2,
  TWOFOUR_NOT_FOUND = 3,
  TWOFOUR_IO = 4,
  TWOFOUR_CORRUPT = 5,
  TWOFOUR_OUT_OF_MEMORY = 6,
  TWOFOUR_INTERNAL = 7
} twofour_code;

/* Element types; the numbers of twofour::DType. */
enum {
  TWOFOUR_FP32 = 0,
  TWOFOUR_FP16 = 1,
  TWOFOUR_BF16 = 2,
  TWOFOUR_FP64 = 3,
  TWOFOUR_INT8 = 4,
  TWOFOUR_UINT8 = 5,
  TWOFOUR_BOOL = 6,
  TWOFOUR_INT32 = 7,
  TWOFOUR_INT64 = 8
};

/* Where row i of a causal sequence sits: at i + (N - M), as for a KV cache, or at i. */
enum { TWOFOUR_BOTTOM_RIGHT = 0, TWOFOUR_TOP_LEFT = 1 };

enum { TWOFOUR_CPU = 0, TWOFOUR_CUDA = 1 };

enum { TWOFOUR_MAX_RANK = 5 };

/* TWOFOUR_VERSION_NUMBER of the library that runs, and the same as "0.1.0". */
TWOFOUR_API int twofour_version(void);
TWOFOUR_API const char* twofour_version_string(void);

/* "ok", "invalid_argument", ... */
TWOFOUR_API const char* twofour_code_name(twofour_code code);

/* One line for people about the last call of this thread that failed: what was expected and what
 * came. "" when none has. Valid until this thread's next failure. */
TWOFOUR_API const char* twofour_last_error(void);

/* A strided view of the caller's memory. This struct never grows. */
typedef struct twofour_tensor {
  void* data; /* inputs are only read */
  int32_t dtype;
  int32_t rank;
  int64_t shape[TWOFOUR_MAX_RANK];
  int64_t stride[TWOFOUR_MAX_RANK]; /* in elements; may be 0 */
} twofour_tensor;

/* A dense row-major view: shape holds `rank` extents. A rank outside 0..TWOFOUR_MAX_RANK gives a
 * view that every call refuses. */
TWOFOUR_API twofour_tensor twofour_contiguous(const void* data, int32_t dtype, int32_t rank,
                                              const int64_t* shape);

/* Everything that decides which kernel runs and how much workspace it needs. */
typedef struct twofour_attention_problem {
  size_t struct_size;
  const char* sparsity; /* a mode ("refined") or a canonical string ("nm24/pair128/s1/l1/r2");
                           NULL: "dense" */
  int64_t batch;        /* sequences */
  int64_t heads_q;      /* a multiple of heads_kv */
  int64_t heads_kv;
  int64_t head_dim;   /* of Q and K */
  int64_t head_dim_v; /* of V and O */
  int64_t seqlen_q;   /* M; with packed, the longest */
  int64_t seqlen_k;   /* N; with packed, the longest */
  int64_t total_q;    /* rows of packed Q; ignored otherwise */
  int64_t total_k;
  int64_t window_left; /* keys p - left .. p + right are live; -1 (the default): open */
  int64_t window_right;
  int32_t dtype;          /* of Q, K, V and O: TWOFOUR_FP32, _FP16 or _BF16 */
  int32_t packed;         /* [T,H,D] with cu_seqlens instead of [B,M,H,D] */
  int32_t causal;         /* booleans are 0 or not 0 */
  int32_t align;          /* TWOFOUR_BOTTOM_RIGHT or TWOFOUR_TOP_LEFT; read only with causal */
  int32_t has_mask;       /* a boolean mask will be given; not with packed */
  int32_t has_transform;  /* a key transform will be given; only read by nm24 */
  int32_t has_prepared_k; /* a prepared K will be given; only read by int8 */
  int32_t has_scale;      /* 0: scale is 1/sqrt(head_dim) */
  float scale;
  int32_t reserved; /* 0 */
} twofour_attention_problem;

/* dense, fp32, one sequence, one head of 64, no keys, open window. */
TWOFOUR_API void twofour_attention_problem_init(twofour_attention_problem* problem);

/* A basis per KV head: q' = q t_q, k' = k t_k with t_k = t_q^-T, and the weights by which the
 * channels of q' are compared. */
typedef struct twofour_key_transform {
  size_t struct_size; /* sizeof(twofour_key_transform) */
  int64_t heads_kv;
  int64_t head_dim;
  const float* t_q; /* [Hkv,D,D] */
  const float* t_k; /* [Hkv,D,D] */
  const float* w;   /* [Hkv,D], > 0; NULL: all 1 */
} twofour_key_transform;

/* Units are 64 positions by half a key block; only those in pruned blocks count. */
typedef struct twofour_attention_stats {
  size_t struct_size; /* sizeof(twofour_attention_stats) */
  int64_t units;
  int64_t refined;
  int64_t dropped;
  int64_t pruned_pairs; /* (query, key) pairs in pruned blocks */
  int64_t live_pairs;
} twofour_attention_stats;

/* K as int8 codes, scales and means, for use in many calls. */
typedef struct twofour_prepared_k twofour_prepared_k;

/* The memory of one call. Start from all zeros with struct_size set. For a plan on a CUDA device
 * all of it, and what a transform points to, is memory that device can use and the host never
 * reads; base addresses and strides other than the last of q, k, v and o are multiples of 16 bytes.
 */
typedef struct twofour_attention_args {
  size_t struct_size;
  twofour_tensor q;    /* [B,M,Hq,D], packed [Tq,Hq,D]; last axis of stride 1 */
  twofour_tensor k;    /* [B,N,Hkv,D], packed [Tk,Hkv,D] */
  twofour_tensor v;    /* [B,N,Hkv,Dv], packed [Tk,Hkv,Dv] */
  twofour_tensor o;    /* [B,M,Hq,Dv], packed [Tq,Hq,Dv]; overlaps nothing else */
  twofour_tensor lse;  /* fp32 natural log [B,Hq,M], packed [Hq,Tq]; NULL data: not wanted */
  twofour_tensor mask; /* TWOFOUR_BOOL [B,Hq,M,N], 1 = live; strides may be 0 */
  const int32_t* cu_seqlens_q;            /* [B+1], ascending from 0; NULL without packed */
  const int32_t* cu_seqlens_k;            /* [B+1] */
  const twofour_key_transform* transform; /* nm24: NULL is identity */
  const twofour_prepared_k* prepared_k;   /* int8: NULL computes it in the workspace */
  twofour_attention_stats* stats;         /* NULL, or written on success; CPU only */
  int64_t* device_stats; /* CUDA only: NULL, or the five counts of stats in their order, written in
                            the order of the stream */
} twofour_attention_args;

TWOFOUR_API void twofour_attention_args_init(twofour_attention_args* args);

/* plan + run in one call with its own workspace, where q lies: on the CPU or on the default stream
 * of a CUDA device; done on return. Shapes, dtype, has_mask, has_transform and
 * has_prepared_k are taken from `args` (packed: batch, seqlen_q and seqlen_k from `problem`). */
TWOFOUR_API twofour_code twofour_attention(const twofour_attention_problem* problem,
                                           const twofour_attention_args* args);

/* An immutable decision; one plan may run in many threads at once, each with its own workspace. */
typedef struct twofour_plan twofour_plan;

/* Chooses a kernel on the CPU: `kernel_id`, or the cheapest for NULL. On failure *plan is NULL.
 * TWOFOUR_INVALID_ARGUMENT for a contradictory problem, TWOFOUR_UNSUPPORTED naming every kernel and
 * why it was refused, TWOFOUR_NOT_FOUND for an unknown kernel_id. */
TWOFOUR_API twofour_code twofour_plan_create(const twofour_attention_problem* problem,
                                             const char* kernel_id, twofour_plan** plan);

/* The same on the CUDA device of that index. TWOFOUR_UNSUPPORTED or TWOFOUR_NOT_FOUND also when
 * there is no such device, driver or build. */
TWOFOUR_API twofour_code twofour_plan_create_cuda(const twofour_attention_problem* problem,
                                                  int32_t index, const char* kernel_id,
                                                  twofour_plan** plan);
TWOFOUR_API void twofour_plan_destroy(twofour_plan* plan); /* NULL is fine */

/* Strings live as long as the plan. For a NULL plan: "" and 0. */
TWOFOUR_API const char* twofour_plan_kernel_id(const twofour_plan* plan);
TWOFOUR_API const char* twofour_plan_sparsity(const twofour_plan* plan); /* canonical, resolved */
TWOFOUR_API const char* twofour_plan_explain(const twofour_plan* plan);  /* a table of kernels */
TWOFOUR_API size_t twofour_plan_workspace_bytes(const twofour_plan* plan);

/* Checks the arguments, then launches on `stream`: a cudaStream_t of the plan's device, NULL being
 * its default stream; NULL on the CPU. A run on CUDA does not wait for its result. When the
 * arguments are refused nothing has been written. */
TWOFOUR_API twofour_code twofour_plan_run(const twofour_plan* plan,
                                          const twofour_attention_args* args, void* workspace,
                                          size_t workspace_bytes, void* stream);

/* The prepared K of args->k, for int8 problems; q is read only for its shape. */
TWOFOUR_API twofour_code twofour_prepare_k(const twofour_attention_problem* problem,
                                           const twofour_attention_args* args,
                                           twofour_prepared_k** prepared_k);
TWOFOUR_API void twofour_prepared_k_destroy(twofour_prepared_k* prepared_k); /* NULL is fine */

/* Reads a mode or a canonical string and writes the canonical string, NUL-terminated, to `out` of
 * `capacity` bytes (96 are always enough). */
TWOFOUR_API twofour_code twofour_sparsity_canonical(const char* text, char* out, size_t capacity);

typedef struct twofour_device_info {
  size_t struct_size; /* sizeof(twofour_device_info) */
  int32_t kind;       /* TWOFOUR_CPU or TWOFOUR_CUDA */
  int32_t index;
  int32_t threads; /* that a run uses; 1 on CUDA */
  int32_t reserved;
  double peak_gflops;    /* modelled: fp32 of all threads; on CUDA dense fp16 of the Tensor Cores */
  char name[128];        /* "AMD EPYC 9654", "NVIDIA H200", cut where longer */
  char arch[32];         /* instruction set used: "avx3_dl", "avx2", "sm_90", ... */
  int64_t shared_memory; /* CUDA: bytes that one block can have; 0 on the CPU */
  int32_t multiprocessors; /* CUDA: of the device; 0 on the CPU */
  int32_t reserved2;
} twofour_device_info;

/* The CPU as plans see it. Set info->struct_size first. */
TWOFOUR_API twofour_code twofour_cpu_device(twofour_device_info* info);

/* CUDA devices that this process sees, with or without kernels for them; 0 without CUDA. */
TWOFOUR_API int32_t twofour_cuda_device_count(void);

/* The CUDA device of that index as plans see it. TWOFOUR_UNSUPPORTED when this build has no CUDA
 * kernels, none for its architecture, or there is no driver; TWOFOUR_NOT_FOUND when there is no
 * such device. Set info->struct_size first. */
TWOFOUR_API twofour_code twofour_cuda_device(int32_t index, twofour_device_info* info);

/* NOLINTEND(readability-identifier-naming) */

#ifdef __cplusplus
}
#endif

#endif
