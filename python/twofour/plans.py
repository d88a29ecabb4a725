"""What can run here and what would: available(), kernels(), explain()."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _library  # noqa: F401  (registers the operators used below)
from ._arguments import (
    check_operand,
    check_options,
    dtype_name,
    longest_sequence,
    operator_arguments,
)
from ._devices import cuda_index, cuda_info
from .errors import InvalidArgumentError, reraise

_DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


class Availability(NamedTuple):
    """Whether a kind of device can be used, and the device found or the reason why not."""

    available: bool
    detail: str


@dataclass(frozen=True)
class Explanation:
    """A plan: what was chosen, and the printout of every kernel with its cost or its refusal."""

    sparsity: str
    kernel: str
    text: str

    def __str__(self) -> str:
        return self.text


def available() -> dict[str, Availability]:
    """For each kind of device: can this build use it on this machine? Runs no kernel.

    Looks at the first CUDA device, which initialises the CUDA driver: a process that forks later
    cannot use CUDA in its children.
    """
    name, arch, threads, why_not = torch.ops.twofour.cpu_info()
    cpu = Availability(not why_not, why_not or f"{name}, {arch}, {threads} threads")
    name, arch, multiprocessors, why_not = cuda_info(0)
    cuda = Availability(
        not why_not, why_not or f"{name}, {arch}, {multiprocessors} multiprocessors"
    )
    return {"cpu": cpu, "cuda": cuda}


def kernels() -> list[str]:
    """The ids of every kernel in this build, in order of preference; the reference is last."""
    return torch.ops.twofour.kernels().split("\n")


def _place(q: Tensor, device: torch.device | str | None) -> torch.device:
    """Where the plan is for."""
    if device is None:
        return torch.device("cpu") if q.device.type == "meta" else q.device
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError):
        place = None
    if place is None or place.type not in ("cpu", "cuda"):
        raise InvalidArgumentError(f"device: expected cpu or cuda, got {device}")
    return place


def explain(
    q: Tensor | None = None,
    k: Tensor | None = None,
    v: Tensor | None = None,
    *,
    device: torch.device | str | None = None,
    **options: Any,
) -> Explanation:
    """The plan that `attention` would follow for these arguments; tensors may be on "meta".

    device: "cpu" or "cuda:0", where they would be; by default where q is, the CPU for "meta".

    Options and errors as for `attention`, without return_lse and return_stats: a refusal names
    every kernel tried and why.
    """
    if q is None or k is None or v is None:
        raise InvalidArgumentError(
            "explain: expected q, k and v, whose shapes decide; tensors on the meta device do"
        )
    check_options("explain", options)
    # Nothing is computed, so nothing needs a derivative either.
    given = operator_arguments(
        *(t.detach() if isinstance(t, Tensor) else t for t in (q, k, v)), **options
    )
    q, k, v = given.q, given.k, given.v
    place = _place(q, device)
    if q.dtype not in _DTYPES:
        raise InvalidArgumentError(f"q: expected fp32, fp16 or bf16, got {dtype_name(q.dtype)}")
    packed = given.cu_seqlens_q is not None
    keys = (*(() if packed else q.shape[:1]), *k.shape[-3:-1])
    check_operand("k", k, q, (*keys, q.size(-1)))
    check_operand("v", v, q, (*keys, v.size(-1)))
    if packed:
        seqlen_q = longest_sequence(given.cu_seqlens_q, q.size(0), given.max_seqlen_q, "q")
        seqlen_k = longest_sequence(given.cu_seqlens_k, k.size(0), given.max_seqlen_k, "k")
        batch = given.cu_seqlens_q.numel() - 1
        if given.cu_seqlens_k.numel() - 1 != batch:
            raise InvalidArgumentError(
                f"cu_seqlens_k: expected {batch + 1} offsets like cu_seqlens_q, got "
                f"{given.cu_seqlens_k.numel()}"
            )
    else:
        batch, seqlen_q, seqlen_k = q.size(0), q.size(1), k.size(1)
    try:
        return Explanation(
            *torch.ops.twofour.explain(
                _DTYPES[q.dtype],
                batch,
                q.size(-2),
                k.size(-2),
                q.size(-1),
                v.size(-1),
                seqlen_q,
                seqlen_k,
                packed,
                q.size(0) if packed else 0,
                k.size(0) if packed else 0,
                given.causal,
                given.top_left,
                given.window_left,
                given.window_right,
                given.mask is not None,
                given.t_q is not None,
                given.sparsity,
                given.kernel,
                cuda_index(place) if place.type == "cuda" else -1,
            )
        )
    except RuntimeError as error:
        reraise(error)
