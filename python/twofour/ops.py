"""Attention as a torch operator, and what belongs beside it: trace, merge, fake kernels."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _library  # noqa: F401  (registers the operators used below)
from ._arguments import (
    Arguments,
    Calibrated,
    Window,
    check_options,
    dtype_name,
    operator_arguments,
)
from .errors import InvalidArgumentError, UncalibratedWarning, reraise
from .sparsity import Sparsity

#: Names of the five int64 values of `return_stats`, in order.
STATS_FIELDS = ("units", "refined", "dropped", "pruned_pairs", "live_pairs")

_warned: set[str] = set()

# What torch's own autograd kernels of Python operators enter; without it calls are only slower.
_below_autograd = getattr(torch._C, "_AutoDispatchBelowAutograd", contextlib.nullcontext)


class Trace(NamedTuple):
    """What a run computed and what it decided.

    Rows are numbered as in memory: b * M + i, or the token when packed.
    """

    o: Tensor
    lse: Tensor
    kept: Tensor  # bool [Hq, rows, N]: the pair is live, survived, and was not dropped
    unit: Tensor  # uint8 [Hq, rows, half-blocks]: 0 plain, 1 pruned, 2 refined, 3 dropped


def _warn_uncalibrated(sparsity: str, t_q: Tensor | None) -> None:
    """Once per process and sparsity."""
    if t_q is not None or sparsity in _warned:
        return
    if sparsity in ("dual", "refined") or sparsity.startswith("nm24"):
        _warned.add(sparsity)
        warnings.warn(
            f"{sparsity} without calibration prunes the Query in its natural channel order, which "
            "costs more quality than a calibrated one; pass calibration=",
            UncalibratedWarning,
            stacklevel=4,
        )


def _run(op: Any, arguments: Arguments) -> Any:
    if torch.compiler.is_compiling():
        return op(*arguments)  # the fake kernel warns; the error keeps its text in a RuntimeError
    _warn_uncalibrated(arguments.sparsity, arguments.t_q)
    try:
        # Only a calibration can still need a gradient, which the operator's autograd kernel then
        # refuses. It is in Python and costs more than everything else here.
        if arguments.t_q is not None and torch.is_grad_enabled():
            return op(*arguments)
        with _below_autograd():
            return op(*arguments)
    except RuntimeError as error:
        reraise(error)


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Under torch.autocast one dtype for all, as SDPA gets it: rotary embeddings leave fp32."""
    if not isinstance(tensors[0], Tensor):
        return tensors  # refused by name later
    device = tensors[0].device.type
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return tensors
    if not all(isinstance(t, Tensor) for t in tensors):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    floats = (torch.float32, torch.float16, torch.bfloat16)
    return tuple(t.to(dtype) if t.dtype in floats else t for t in tensors)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mode: str | Sparsity = "auto",
    causal: bool = False,
    align: str = "bottom_right",
    window: Window | None = None,
    scale: float | None = None,
    mask: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    calibration: Calibrated | None = None,
    layout: str = "bmhd",
    dropout_p: float = 0.0,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
    return_lse: bool = False,
    return_stats: bool = False,
    kernel: str = "",
) -> Any:
    """softmax(scale * q kᵀ) v with run-time sparsity, as docs/semantics.md defines it.

    Args:
        q: [B, M, Hq, D], or [T, Hq, D] with cu_seqlens; fp32, fp16 or bf16. Any strides; a tensor
            whose last stride is not 1 is copied, on CUDA also one whose address or other strides
            are no multiples of 16 bytes. On CUDA the call is in the order of the current stream.
        k, v: [B, N, Hkv, D] and [B, N, Hkv, Dv]; Hkv divides Hq.
        mode: "dense", "score", "int8", "dual", "refined", a canonical string such as
            "int8/pair128/s1/l0", a `Sparsity`, or "auto": the first of int8 and score that can run,
            else dense; always dense below 1,024 keys or 64 rows (packed: of the longest sequence).
            It never prunes the Query, whose quality needs a calibration.
        causal: key j is seen from position p when j <= p.
        align: where row i of a causal sequence sits: "bottom_right" at i + N - M, as for a KV
            cache, or "top_left" at i.
        window: (left, right): keys p - left .. p + right are seen; None or -1 leaves a side open.
        scale: of the scores; 1/sqrt(D) by default.
        mask: bool, true where a pair may attend; any shape that broadcasts to [B, Hq, M, N],
            whatever the layout.
        cu_seqlens_q, cu_seqlens_k: int32 [B + 1], ascending from 0: packed sequences.
        max_seqlen_q, max_seqlen_k: the longest of them, if known. On CUDA, whose kernels read the
            offsets unchecked, a missing one is read here, with a check and a wait for the device;
            under torch.compile and graph capture both must be given.
        calibration: an object with t_q, t_k [Hkv, D, D] and w [Hkv, D] or None (fp32, contiguous);
            read by the modes with a pruned Query. That t_k is the transposed inverse of t_q is
            checked by `Calibration.load`, not here at every call.
        layout: "bmhd", or "bhmd" for PyTorch's order of q, k, v and the output.
        dropout_p, softcap, sinks, bias: refused unless off; they do not exist yet.
        return_lse: also the log-sum-exp of each row, natural logarithm, fp32 [B, Hq, M] or [Hq, T].
        return_stats: also int64 [5], named by `STATS_FIELDS`: units, refined and dropped units,
            pairs in pruned blocks, live pairs.
        kernel: force this kernel id (`twofour.kernels()`); "" chooses by cost.

    Returns:
        The output, shaped like q with Dv channels; with return_lse or return_stats a tuple.

    Raises:
        InvalidArgumentError (a ValueError): arguments that contradict each other.
        UnsupportedError (a NotImplementedError): nothing here can serve the request, and why.
        NotFoundError (a LookupError): no such kernel.
    """
    q, k, v = _autocast(q, k, v)
    arguments = operator_arguments(
        q,
        k,
        v,
        mode=mode,
        causal=causal,
        align=align,
        window=window,
        scale=scale,
        mask=mask,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        calibration=calibration,
        layout=layout,
        dropout_p=dropout_p,
        softcap=softcap,
        sinks=sinks,
        bias=bias,
        kernel=kernel,
    )
    o, lse, stats = _run(torch.ops.twofour.attention.default, arguments)
    if layout == "bhmd":
        o = o.transpose(1, 2)
    if not (return_lse or return_stats):
        return o
    return (o, *((lse,) if return_lse else ()), *((stats,) if return_stats else ()))


def trace(q: Tensor, k: Tensor, v: Tensor, *, layout: str = "bmhd", **options: Any) -> Trace:
    """`attention` by a debugging kernel that also writes out what it kept, refined and dropped.

    Slow, and Hq * rows * N bytes large. Options and errors as for `attention`, without return_lse
    and return_stats.
    """
    check_options("trace", options)
    arguments = operator_arguments(q, k, v, layout=layout, **options)
    o, lse, kept, unit = _run(torch.ops.twofour.trace.default, arguments)
    return Trace(o.transpose(1, 2) if layout == "bhmd" else o, lse, kept, unit)


def merge(
    o1: Tensor, lse1: Tensor, o2: Tensor, lse2: Tensor, layout: str = "bmhd"
) -> tuple[Tensor, Tensor]:
    """Attention over the union of two disjoint sets of keys, from the results over each.

    Args:
        o1, o2: [B, M, H, Dv] ([B, H, M, Dv] with layout "bhmd"), or packed [T, H, Dv].
        lse1, lse2: fp32 [B, H, M], or packed [H, T], as `attention` returns them.

    Returns:
        (o, lse) in the same forms, computed in fp32; rows without a key in either stay 0 and -inf.
    """
    for name, tensor in (("o1", o1), ("lse1", lse1), ("o2", o2), ("lse2", lse2)):
        if not isinstance(tensor, Tensor):
            raise InvalidArgumentError(f"{name}: expected a tensor, got {type(tensor).__name__}")
        want = torch.float32 if name.startswith("lse") else o1.dtype
        if tensor.dtype != want or not tensor.is_floating_point():
            raise InvalidArgumentError(
                f"{name}: expected {dtype_name(want) if want.is_floating_point else 'a float'}, "
                f"got {dtype_name(tensor.dtype)}"
            )
        if tensor.device != o1.device:
            raise InvalidArgumentError(
                f"{name}: expected device {o1.device} as for o1, got {tensor.device}"
            )
    if o1.shape != o2.shape or lse1.shape != lse2.shape or lse1.dim() != o1.dim() - 1:
        raise InvalidArgumentError(
            "merge: expected two outputs and two lse of the same shapes, got "
            f"{list(o1.shape)}, {list(o2.shape)}, {list(lse1.shape)}, {list(lse2.shape)}"
        )
    if layout not in ("bmhd", "bhmd"):
        raise InvalidArgumentError(f"layout: expected bmhd or bhmd, got {layout!r}")
    per_row = lse1.shape if layout == "bhmd" else lse1.transpose(-1, -2).shape
    if per_row != o1.shape[:-1]:
        raise InvalidArgumentError(
            f"merge: expected an lse value for each row of o {list(o1.shape)} in layout {layout}, "
            f"got lse {list(lse1.shape)}"
        )
    lse = torch.logaddexp(lse1, lse2)
    # exp(-inf - -inf) is NaN; such a row has no keys, and its outputs are 0 with any finite weight.
    reference = lse.masked_fill(lse == -torch.inf, 0.0)

    def weight(part: Tensor) -> Tensor:
        weights = torch.exp(part - reference)
        return (weights if layout == "bhmd" else weights.transpose(-1, -2)).unsqueeze(-1)

    o = weight(lse1) * o1.float() + weight(lse2) * o2.float()
    return o.to(o1.dtype), lse


def _fake_outputs(q: Tensor, v: Tensor, packed: bool) -> tuple[Tensor, Tensor]:
    o = q.new_empty((*q.shape[:-1], v.size(-1)))
    lse_shape = (q.size(1), q.size(0)) if packed else (q.size(0), q.size(2), q.size(1))
    return o, q.new_empty(lse_shape, dtype=torch.float32)


@torch.library.register_fake("twofour::attention")
def _attention_fake(q, k, v, mask, cu_seqlens_q, cu_seqlens_k, t_q, t_k, w, sparsity, *_rest):
    _warn_uncalibrated(sparsity, t_q)
    o, lse = _fake_outputs(q, v, cu_seqlens_q is not None)
    return o, lse, q.new_empty((len(STATS_FIELDS),), dtype=torch.int64)


@torch.library.register_fake("twofour::trace")
def _trace_fake(
    q, k, v, mask, cu_seqlens_q, cu_seqlens_k, t_q, t_k, w, sparsity, causal, top_left, window_left,
    window_right, scale, max_seqlen_q, max_seqlen_k, kernel,
):  # fmt: skip
    o, lse = _fake_outputs(q, v, cu_seqlens_q is not None)
    rows, heads = q.shape[:-2].numel(), q.size(-2)
    if cu_seqlens_k is None:
        keys = k.size(1)
    elif max_seqlen_k >= 0:
        keys = max_seqlen_k
    else:
        keys = torch.library.get_ctx().new_dynamic_size()
    block = Sparsity.parse("dense" if sparsity == "auto" else sparsity, q.size(-1)).block
    half_blocks = 2 * ((keys + block - 1) // block)
    kept = q.new_empty((heads, rows, keys), dtype=torch.bool)
    return o, lse, kept, q.new_empty((heads, rows, half_blocks), dtype=torch.uint8)


def _refuse_backward(ctx: Any, *_gradients: Any) -> Any:
    raise NotImplementedError("twofour has no backward yet; call under torch.no_grad()")


torch.library.register_autograd("twofour::attention", _refuse_backward)
torch.library.register_autograd("twofour::trace", _refuse_backward)
