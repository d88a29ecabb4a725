// Highway set-up shared by the kernel files: which instruction sets are built, and the table that
// finds a set's functions. Include before <hwy/foreach_target.h>.
//
// Built on x86: SSE4, AVX2, AVX3 (AVX-512 as of Skylake). On aarch64: NEON. Left out: sets that add
// nothing here (VNNI is used through one asm statement and tested for separately), and SVE, whose
// vectors cannot be kept in arrays.
#pragma once

#ifndef HWY_DISABLED_TARGETS
// By bit number, since older Highway versions do not name them all: 0-7 everything wider than AVX3,
// 12 SSSE3, 14 SSE2, 24-27 SVE. On x86 CMakeLists.txt gives the same, less what was not asked for.
#define HWY_DISABLED_TARGETS (0xFFLL | (1LL << 12) | (1LL << 14) | (0xFLL << 24))
#endif

#include <hwy/detect_targets.h>

#if defined(HWY_AVX3) && (HWY_TARGETS & HWY_AVX3)
#define TWOFOUR_CASE_AVX3(table) \
  case HWY_AVX3:                 \
    return &N_AVX3::table;
#else
#define TWOFOUR_CASE_AVX3(table)
#endif
#if defined(HWY_AVX2) && (HWY_TARGETS & HWY_AVX2)
#define TWOFOUR_CASE_AVX2(table) \
  case HWY_AVX2:                 \
    return &N_AVX2::table;
#else
#define TWOFOUR_CASE_AVX2(table)
#endif
#if defined(HWY_SSE4) && (HWY_TARGETS & HWY_SSE4)
#define TWOFOUR_CASE_SSE4(table) \
  case HWY_SSE4:                 \
    return &N_SSE4::table;
#else
#define TWOFOUR_CASE_SSE4(table)
#endif
#if defined(HWY_NEON) && (HWY_TARGETS & HWY_NEON)
#define TWOFOUR_CASE_NEON(table) \
  case HWY_NEON:                 \
    return &N_NEON::table;
#else
#define TWOFOUR_CASE_NEON(table)
#endif

/// Body of `const Ops* f(std::int64_t target)`: the table of that instruction set, or null.
#define TWOFOUR_FIND_TABLE(target, table) \
  switch (target) {                       \
    TWOFOUR_CASE_AVX3(table)              \
    TWOFOUR_CASE_AVX2(table)              \
    TWOFOUR_CASE_SSE4(table)              \
    TWOFOUR_CASE_NEON(table)              \
    default:                              \
      return nullptr;                     \
  }
