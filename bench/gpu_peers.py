"""The other attention kernels that stand beside twofour in the GPU benchmark.

FlashAttention-3 comes from its Python package (`flash_attn_interface`) or from a shared library
with this C function, which enqueues the forward pass on `stream`:

    int fa3_forward(const void* q, const void* k, const void* v, void* o, float* lse,
                    int batch, int seqlen_q, int seqlen_k, int heads_q, int heads_kv, int head_dim,
                    const long long* q_strides, const long long* k_strides,
                    const long long* v_strides, const long long* o_strides,
                    float scale, int causal, int is_bf16, int* semaphore, void* stream);

Strides are in elements, in the order batch, row, head; the last axis is dense. `lse` is
[batch, heads_q, seqlen_q]. `semaphore` is one int in device memory, zero when the call starts
(causal only). The result is 0, or the error. The library may leave symbols of libcuda open.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from inputs import Problem
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

#: (problem, causal) -> o [B,Hq,M,D]
Forward = Callable[[Problem, bool], Tensor]


def sdpa(backend: SDPBackend) -> Forward:
    """torch's SDPA with this backend and no other."""

    def forward(problem: Problem, causal: bool) -> Tensor:
        q, k, v = problem[:3]
        grouped = q.size(1) != k.size(1)
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

    return forward


def flex() -> Forward:
    """torch's FlexAttention, compiled; a causal mask as its block mask."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)
    masks = {}

    def forward(problem: Problem, causal: bool) -> Tensor:
        q, k, v = problem[:3]
        shape = q.size(2), k.size(2)
        if causal and shape not in masks:
            masks[shape] = create_block_mask(
                lambda b, h, row, key: row >= key, None, None, *shape, device=q.device
            )
        return compiled(
            q, k, v, block_mask=masks[shape] if causal else None,
            enable_gqa=q.size(1) != k.size(1),
        )  # fmt: skip

    return forward


def fa3_package() -> Forward:
    """Raises ImportError where the package is missing."""
    function = importlib.import_module("flash_attn_interface").flash_attn_func

    def forward(problem: Problem, causal: bool) -> Tensor:
        o = function(*(t.transpose(1, 2) for t in problem[:3]), causal=causal)
        # Some versions return (o, lse).
        return (o[0] if isinstance(o, tuple) else o).transpose(1, 2)

    return forward


def fa3_library(path: str | os.PathLike) -> Forward:
    """The C function above.

    Raises:
        OSError: the library cannot be loaded.
    """
    ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    function = ctypes.CDLL(str(Path(path).resolve())).fa3_forward
    integer, pointer = ctypes.c_int, ctypes.c_void_p
    function.restype = integer
    function.argtypes = [
        *[pointer] * 5, *[integer] * 6, *[ctypes.POINTER(ctypes.c_longlong)] * 4,
        ctypes.c_float, integer, integer, pointer, pointer,
    ]  # fmt: skip

    def strides(t: Tensor) -> ctypes.Array:
        return (ctypes.c_longlong * 3)(t.stride(0), t.stride(2), t.stride(1))

    def forward(problem: Problem, causal: bool) -> Tensor:
        q, k, v = problem[:3]
        batch, heads, rows, head_dim = q.shape
        if any(t.stride(-1) != 1 for t in (q, k, v)):
            raise ValueError("fa3: expected a dense last axis")
        o = torch.empty_like(q)
        lse = torch.empty(batch, heads, rows, dtype=torch.float32, device=q.device)
        semaphore = (torch.zeros if causal else torch.empty)(1, dtype=torch.int32, device=q.device)
        error = function(
            *(t.data_ptr() for t in (q, k, v, o, lse)),
            batch, rows, k.size(2), heads, k.size(1), head_dim,
            *(strides(t) for t in (q, k, v, o)),
            head_dim**-0.5, causal, q.dtype == torch.bfloat16, semaphore.data_ptr(),
            torch.cuda.current_stream().cuda_stream,
        )  # fmt: skip
        if error:
            raise RuntimeError(f"fa3: error {error} for head_dim {head_dim}")
        return o

    return forward


def find(names: list[str], fa3: Path | None) -> tuple[dict[str, Forward], dict[str, str]]:
    """The peers of these names, and why the others are missing."""
    makers: dict[str, Callable[[], Forward]] = {
        "fa2": lambda: sdpa(SDPBackend.FLASH_ATTENTION),
        "cudnn": lambda: sdpa(SDPBackend.CUDNN_ATTENTION),
        "fa3": lambda: fa3_library(fa3) if fa3 else fa3_package(),
        "flex": flex,
    }
    found: dict[str, Forward] = {}
    missing = {}
    for name in names:
        try:
            found[name] = makers[name]()
        except (ImportError, OSError) as error:
            missing[name] = str(error)
    return found, missing


NAMES = ("fa2", "cudnn", "fa3", "flex")
