// A compiled kernel and what a launch of it needs. The table of all rows is in attention.cc alone:
// a part that saw it would compile every row.
#pragma once

#include "cuda/sm90/config.h"

namespace twofour::cuda::sm90 {

struct Compiled {
  const void* kernel = nullptr;  // attention_kernel<row>
  int shared_bytes = 0;
};

template <int kRow>
Compiled compiled_row();  // attention.cu

}  // namespace twofour::cuda::sm90
