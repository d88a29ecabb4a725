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


def _name(dtype: torch.dtype) -> str:
    """As the C++ library writes it."""
    if dtype == torch.float64:
        return "fp64"
    return _DTYPES.get(dtype) or str(dtype).removeprefix("torch.")


def _check_operand(name: str, tensor: Tensor, q: Tensor, shape: tuple[int, ...]) -> None:
    """What the operator checks when it runs."""
    if tensor.dtype != q.dtype:
        raise InvalidArgumentError(f"{name}: expected {_name(q.dtype)}, got {_name(tensor.dtype)}")
    if tensor.shape != shape:
        raise InvalidArgumentError(
            f"{name}: expected shape {list(shape)}, got {list(tensor.shape)}"
        )


def _longest(cu_seqlens: Tensor, total: int, given: int, name: str) -> int:
    """The longest packed sequence, or what the caller says it is; checked as by the operator."""
    if cu_seqlens.dtype != torch.int32 or cu_seqlens.dim() != 1 or not cu_seqlens.numel():
        raise InvalidArgumentError(
            f"cu_seqlens_{name}: expected an int32 vector of batch + 1 offsets, got "
            f"{_name(cu_seqlens.dtype)} {list(cu_seqlens.shape)}"
        )
    if cu_seqlens.device.type == "meta":
        if given < 0:
            raise InvalidArgumentError(
                f"max_seqlen_{name}: expected a length, since cu_seqlens_{name} is a meta tensor"
            )
        return given
    lengths = cu_seqlens.diff()
    if int(cu_seqlens[0]) != 0 or int(cu_seqlens[-1]) != total or bool((lengths < 0).any()):
        raise InvalidArgumentError(
            f"cu_seqlens_{name}: expected offsets that ascend from 0 to {total}, the tokens of "
            f"{name}, got {cu_seqlens.tolist()}"
        )
    found = int(lengths.max()) if lengths.numel() else 0
    if 0 <= given < found:
        raise InvalidArgumentError(
            f"max_seqlen_{name}: expected at least {found}, the longest sequence, got {given}"
        )
    return found if given < 0 else given


def explain(
    q: Tensor | None = None,
    k: Tensor | None = None,
    v: Tensor | None = None,
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
    if q is None or k is None or v is None:
        raise InvalidArgumentError(
            "explain: expected q, k and v, whose shapes decide; tensors on the meta device do"
        )
    arguments = operator_arguments(
        *(t.detach() if isinstance(t, Tensor) else t for t in (q, k, v)),
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
        raise InvalidArgumentError(f"q: expected fp32, fp16 or bf16, got {_name(q.dtype)}")
    packed = cu_seqlens_q is not None
    keys = (*(() if packed else q.shape[:1]), *k.shape[-3:-1])
    _check_operand("k", k, q, (*keys, q.size(-1)))
    _check_operand("v", v, q, (*keys, v.size(-1)))
    if packed:
        seqlen_q = _longest(cu_seqlens_q, q.size(0), arguments[15], "q")
        seqlen_k = _longest(cu_seqlens_k, k.size(0), arguments[16], "k")
        batch = cu_seqlens_q.numel() - 1
        if cu_seqlens_k.numel() - 1 != batch:
            raise InvalidArgumentError(
                f"cu_seqlens_k: expected {batch + 1} offsets like cu_seqlens_q, got "
                f"{cu_seqlens_k.numel()}"
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
