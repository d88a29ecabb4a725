"""What can run here and what would: available(), kernels(), explain()."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _library  # noqa: F401  (registers the operators used below)
from ._arguments import operator_arguments
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
    """For each kind of device: can this build use it on this machine? Runs no kernel."""
    name, arch, threads, why_not = torch.ops.twofour.cpu_info()
    cpu = Availability(not why_not, why_not or f"{name}, {arch}, {threads} threads")
    return {"cpu": cpu, "cuda": Availability(False, "this build of twofour has no CUDA kernels")}


def kernels() -> list[str]:
    """The ids of every kernel in this build, in order of preference; the reference is last."""
    return torch.ops.twofour.kernels().split("\n")


def _longest(cu_seqlens: Tensor, given: int, name: str) -> int:
    if given >= 0:
        return given
    if cu_seqlens.device.type == "meta":
        raise InvalidArgumentError(f"{name}: expected a length, since cu_seqlens is a meta tensor")
    return max(int(cu_seqlens.diff().max()) if cu_seqlens.numel() > 1 else 0, 0)


def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mode: Any = "auto",
    causal: bool = False,
    align: str = "bottom_right",
    window: Any = None,
    mask: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    calibration: Any = None,
    layout: str = "bmhd",
    kernel: str = "",
) -> Explanation:
    """The plan that `attention` would follow for these arguments; tensors may be on "meta".

    Errors as for `attention`: a refusal names every kernel tried and why.
    """
    arguments = operator_arguments(
        q.detach(),
        k.detach(),
        v.detach(),
        mode=mode,
        causal=causal,
        align=align,
        window=window,
        scale=None,
        mask=mask,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        calibration=calibration,
        layout=layout,
        dropout_p=0.0,
        softcap=None,
        sinks=None,
        bias=None,
        kernel=kernel,
    )
    q, k, v = arguments[:3]
    if q.dtype not in _DTYPES:
        raise InvalidArgumentError(f"q: expected fp32, fp16 or bf16, got {q.dtype}")
    packed = cu_seqlens_q is not None
    if packed:
        batch = cu_seqlens_q.numel() - 1
        seqlen_q = _longest(cu_seqlens_q, arguments[15], "max_seqlen_q")
        seqlen_k = _longest(cu_seqlens_k, arguments[16], "max_seqlen_k")
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
                arguments[10],
                arguments[11],
                arguments[12],
                arguments[13],
                mask is not None,
                calibration is not None,
                arguments[9],
                kernel,
            )
        )
    except RuntimeError as error:
        reraise(error)
