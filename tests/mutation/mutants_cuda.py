"""Planted races in the CUDA kernels, which their runs on the host must notice."""

from mutant import Mutant

_SCORES = """\
      ptx::wgmma_wait<1>();
      this->release_key();
      words"""
_VALUES = """\
      ptx::wgmma_wait<0>();
      this->release_value();
    }
    take(prob, words, received, x, sum);
"""
_VALUES_LATE = """\
      take(prob, words, received, x, sum);
      ptx::wgmma_wait<0>();
      this->release_value();
    }
"""
_QUERY = """\
    ptx::named_barrier_sync(kBarrierWarpgroup + warpgroup, 128);
    row = 64"""
_EMPTY = """\
    ptx::mbarrier_wait(shared + S::empty(fill.stage), fill.parity ^ 1);
"""


def _race(name: str, file: str, old: str, new: str, binary: str, tests: str) -> Mutant:
    return Mutant("cuda", name, f"src/cuda/{file}", old, new, binary, tests)


_WGMMA = ("test_cuda_wgmma_kernel64", "CudaWgmmaKernel.Head64")
_MMA = ("test_cuda_mma_kernel64", "CudaMmaKernel.Head64")

MUTANTS: list[Mutant] = [
    _race(
        "scores are read before their product has ended",
        "sm90/row_block.h",
        _SCORES,
        _SCORES.replace("      ptx::wgmma_wait<1>();\n", ""),
        *_WGMMA,
    ),
    _race(
        "an operand is overwritten while its product runs",
        "sm90/row_block.h",
        _VALUES,
        _VALUES_LATE,
        *_WGMMA,
    ),
    _race(
        "queries are multiplied before all warps have stored them",
        "sm90/row_block.h",
        _QUERY,
        "    row = 64",
        *_WGMMA,
    ),
    _race(
        "a stage is filled before all warps have left it",
        "sm80/pipeline.h",
        _EMPTY,
        "",
        *_MMA,
    ),
]
