"""From keyword arguments to the operators' argument list; every check that needs Python."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ._devices import cuda_index, cuda_info
from .errors import InvalidArgumentError, UnsupportedError
from .sparsity import Sparsity, sparsity_text

Window = tuple[int | None, int | None]

_LARGEST_SCALE = torch.finfo(torch.float32).max
_DTYPE_NAMES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float64: "fp64",
}


class Calibrated(Protocol):
    """What `calibration=` needs: the change of basis of one layer."""

    t_q: Tensor  # fp32 [Hkv, D, D]: T
    t_k: Tensor  # fp32 [Hkv, D, D]: the transposed inverse of T
    w: Tensor | None  # fp32 [Hkv, D], > 0


def _check_tensor(name: str, tensor: Any, device: torch.device | None = None) -> None:
    if not isinstance(tensor, Tensor):
        raise InvalidArgumentError(f"{name}: expected a tensor, got {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise InvalidArgumentError(f"{name}: expected a strided tensor, got {tensor.layout}")
    if device is not None and tensor.device != device:
        raise InvalidArgumentError(
            f"{name}: expected device {device} as for q, got {tensor.device}"
        )


def _check_device(device: torch.device) -> None:
    kind = device.type
    if kind not in ("cpu", "cuda", "meta"):
        raise UnsupportedError(
            f"device: expected cpu or cuda, got {device}; twofour has no {kind} kernels"
        )
    # Not while torch.compile traces, which cannot look into it; the operator says the same later.
    if kind == "cuda" and not torch.compiler.is_compiling():
        why_not = cuda_info(cuda_index(device))[3]
        if why_not:
            raise UnsupportedError(f"device: expected cpu, got {device}; {why_not}")


def longest_sequence(cu_seqlens: Tensor, total: int, given: int, name: str) -> int:
    """The longest packed sequence of side `name`, or what the caller says it is (-1: nothing).

    Reads the offsets and checks them as the operator does on the CPU.
    """
    if cu_seqlens.dtype != torch.int32 or cu_seqlens.dim() != 1 or not cu_seqlens.numel():
        dtype = str(cu_seqlens.dtype).removeprefix("torch.")
        raise InvalidArgumentError(
            f"cu_seqlens_{name}: expected an int32 vector of batch + 1 offsets, got "
            f"{dtype} {list(cu_seqlens.shape)}"
        )
    if not cu_seqlens.is_contiguous():
        raise InvalidArgumentError(
            f"cu_seqlens_{name}: expected a contiguous vector, got one with stride "
            f"{cu_seqlens.stride(0)}"
        )
    if cu_seqlens.device.type == "meta":
        if given < 0:
            raise InvalidArgumentError(
                f"max_seqlen_{name}: expected a length, since cu_seqlens_{name} is a meta tensor"
            )
        return given
    cu_seqlens = cu_seqlens.cpu()
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


def _longest_on_cuda(cu_seqlens: Tensor, total: int, given: int | None, name: str) -> int:
    """As longest_sequence, for offsets that only the kernels see: read here if nobody says."""
    if given is not None:
        return given
    if torch.compiler.is_compiling() or (
        torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    ):
        raise InvalidArgumentError(
            f"max_seqlen_{name}: expected the longest sequence, since cu_seqlens_{name} is on a "
            "CUDA device and cannot be read under torch.compile or graph capture, got none"
        )
    return longest_sequence(cu_seqlens, total, -1, name)


def _check_grad(tensors: dict[str, Tensor | None]) -> None:
    if forward_ad._current_level >= 0:
        for name, tensor in tensors.items():
            if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
                raise UnsupportedError(
                    f"{name}: expected a tensor without a tangent, since twofour has no "
                    "forward-mode derivative yet"
                )
    if not torch.is_grad_enabled():
        return
    for name, tensor in tensors.items():
        if tensor is not None and tensor.requires_grad:
            raise UnsupportedError(
                f"{name}: expected a tensor that does not require grad, since twofour has no "
                "backward yet; call under torch.no_grad() or detach it"
            )


def _refuse_ranks(q: Tensor, k: Tensor, v: Tensor, packed: bool, layout: str) -> NoReturn:
    """Names the first of three tensors whose rank is wrong."""
    if packed:
        rank, form = 3, "[tokens, heads, dim] with cu_seqlens"
    else:
        rank = 4
        form = f"[batch, {'heads, length' if layout == 'bhmd' else 'length, heads'}, dim]"
    name, tensor = next((name, t) for name, t in (("q", q), ("k", k), ("v", v)) if t.dim() != rank)
    raise InvalidArgumentError(f"{name}: expected {form}, got {list(tensor.shape)}")


def _refuse(dropout_p: float, softcap: float | None, sinks: Any, bias: Any) -> None:
    """What other attention functions take and this one would have to ignore."""
    if dropout_p:
        raise UnsupportedError(
            f"dropout_p: expected 0, got {dropout_p}; dropout does not exist yet"
        )
    if softcap:
        raise UnsupportedError(f"softcap: expected none, got {softcap}; it does not exist yet")
    if sinks is not None:
        raise UnsupportedError("sinks: expected none; sink logits do not exist yet")
    if bias is not None:
        raise UnsupportedError("bias: expected none; an additive bias does not exist yet")


def _window(window: Window | None) -> tuple[int, int]:
    if window is None:
        return -1, -1
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise InvalidArgumentError(f"window: expected (left, right) or None, got {window!r}")
    left, right = (-1 if side is None else side for side in window)
    for side in (left, right):
        if isinstance(side, (bool, float, str)) or (isinstance(side, int) and side >= 2**63):
            raise InvalidArgumentError(f"window: expected two whole numbers, got {window!r}")
    return left, right


def _mask(mask: Tensor | None, q: Tensor, k: Tensor, packed: bool) -> Tensor | None:
    """The mask expanded without a copy to [B, Hq, M, N]; q and k are [B, M, H, D]."""
    if mask is None:
        return None
    _check_tensor("mask", mask, q.device)
    if mask.dtype != torch.bool:
        raise UnsupportedError(
            f"mask: expected bool (true = may attend), got {mask.dtype}; an additive mask does not "
            "exist yet"
        )
    if packed:
        raise UnsupportedError("mask: expected none with cu_seqlens; packed masks do not exist yet")
    want = (q.size(0), q.size(2), q.size(1), k.size(1))
    got = tuple(mask.shape)
    padded = (1,) * (4 - len(got)) + got
    if len(got) > 4 or any(g != w and g != 1 for g, w in zip(padded, want, strict=True)):
        raise InvalidArgumentError(
            f"mask: expected a shape that broadcasts to [batch, heads, length, keys] = "
            f"{list(want)}, got {list(got)}"
        )
    return mask.expand(want)


def _scale(scale: Any) -> float | None:
    if scale is None:
        return None
    try:
        if isinstance(scale, (str, bytes)) or (isinstance(scale, Tensor) and scale.numel() != 1):
            raise TypeError
        number = float(scale)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgumentError(f"scale: expected a number, got {scale!r}") from None
    if not torch.compiler.is_compiling() and not abs(number) <= _LARGEST_SCALE:
        raise InvalidArgumentError(f"scale: expected a finite fp32 number, got {number}")
    return number


def _causal(causal: Any) -> bool:
    if isinstance(causal, bool):
        return causal
    one = not isinstance(causal, Tensor) or causal.numel() == 1
    if not one or isinstance(causal, (str, bytes)) or causal not in (0, 1):
        raise InvalidArgumentError(f"causal: expected True or False, got {causal!r}")
    return bool(causal)


def _longest(name: str, given: Any, packed: bool) -> int | None:
    """max_seqlen_q or max_seqlen_k as given."""
    if given is None:
        return None
    if isinstance(given, (bool, float, str)):
        raise InvalidArgumentError(f"max_seqlen_{name}: expected a whole number, got {given!r}")
    if not packed:
        raise InvalidArgumentError(
            f"max_seqlen_{name}: expected none without cu_seqlens_{name}, got {given!r}"
        )
    if not torch.compiler.is_compiling() and given < 0:
        raise InvalidArgumentError(f"max_seqlen_{name}: expected a length >= 0, got {given}")
    return given


def _check_meta(q: Tensor, k: Tensor, v: Tensor) -> None:
    """What the operator refuses where there is memory."""
    packed = q.dim() == 3
    keys = (*(() if packed else q.shape[:1]), *k.shape[-3:-1])
    check_operand("k", k, q, (*keys, q.size(-1)))
    check_operand("v", v, q, (*keys, v.size(-1)))
    if not k.size(-2) or q.size(-2) % k.size(-2):
        raise InvalidArgumentError(
            f"heads_q: expected a multiple of heads_kv = {k.size(-2)}, got {q.size(-2)}"
        )


def dtype_name(dtype: torch.dtype) -> str:
    """As the C++ library writes it."""
    return _DTYPE_NAMES.get(dtype) or str(dtype).removeprefix("torch.")


def check_operand(name: str, tensor: Tensor, q: Tensor, shape: tuple[int, ...]) -> None:
    """What the operator checks when it runs."""
    if tensor.dtype != q.dtype:
        raise InvalidArgumentError(
            f"{name}: expected {dtype_name(q.dtype)}, got {dtype_name(tensor.dtype)}"
        )
    if tensor.shape != shape:
        raise InvalidArgumentError(
            f"{name}: expected shape {list(shape)}, got {list(tensor.shape)}"
        )


def check_options(function: str, options: Iterable[str]) -> None:
    """Python's own error for a keyword that `function` does not take, under its own name."""
    known = inspect.signature(operator_arguments).parameters
    for name in options:
        if name not in known:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def _transform(calibration: Calibrated | None, q: Tensor) -> tuple[Tensor | None, ...]:
    """T, T^-T and w."""
    if calibration is None:
        return None, None, None
    if not all(hasattr(calibration, name) for name in ("t_q", "t_k", "w")):
        raise InvalidArgumentError(
            "calibration: expected the basis of one layer, an object with t_q, t_k and w such as "
            f"Calibration.load(path).layers[0], got {type(calibration).__name__}"
        )
    t_q, t_k, w = calibration.t_q, calibration.t_k, calibration.w
    for name, tensor in (("t_q", t_q), ("t_k", t_k), ("w", w)):
        if tensor is None and name == "w":
            continue
        _check_tensor(f"calibration.{name}", tensor, q.device)
        if not tensor.is_contiguous():
            raise InvalidArgumentError(
                f"calibration.{name}: expected a contiguous tensor, got strides {tensor.stride()}"
            )
    return t_q, t_k, w


class Arguments(NamedTuple):
    """The arguments of twofour::attention and twofour::trace, in their order."""

    q: Tensor  # [B,M,Hq,D] or packed [Tq,Hq,D], whatever the caller's layout
    k: Tensor  # [B,N,Hkv,D], [Tk,Hkv,D]
    v: Tensor  # [B,N,Hkv,Dv], [Tk,Hkv,Dv]
    mask: Tensor | None  # bool [B,Hq,M,N]
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    t_q: Tensor | None
    t_k: Tensor | None
    w: Tensor | None
    sparsity: str
    causal: bool
    top_left: bool
    window_left: int
    window_right: int
    scale: float | None
    max_seqlen_q: int  # -1: not given
    max_seqlen_k: int
    kernel: str


def operator_arguments(
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
    sinks: Any = None,
    bias: Any = None,
    kernel: str = "",
) -> Arguments:
    """Checks what `twofour.attention` takes, and turns it into what the operators take."""
    _check_tensor("q", q)
    device = q.device
    _check_tensor("k", k, device)
    _check_tensor("v", v, device)
    _check_device(device)
    _refuse(dropout_p, softcap, sinks, bias)
    if align not in ("bottom_right", "top_left"):
        raise InvalidArgumentError(f"align: expected bottom_right or top_left, got {align!r}")
    if layout not in ("bmhd", "bhmd"):
        raise InvalidArgumentError(f"layout: expected bmhd or bhmd, got {layout!r}")

    packed = cu_seqlens_q is not None or cu_seqlens_k is not None
    if packed:
        if cu_seqlens_q is None or cu_seqlens_k is None:
            raise InvalidArgumentError("cu_seqlens_q and cu_seqlens_k: expected both or neither")
        _check_tensor("cu_seqlens_q", cu_seqlens_q, device)
        _check_tensor("cu_seqlens_k", cu_seqlens_k, device)
        if layout != "bmhd":
            raise InvalidArgumentError("layout: expected bmhd with cu_seqlens, got bhmd")
    if not q.dim() == k.dim() == v.dim() == (3 if packed else 4):
        _refuse_ranks(q, k, v, packed, layout)
    if layout == "bhmd":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    max_seqlen_q = _longest("q", max_seqlen_q, packed)
    max_seqlen_k = _longest("k", max_seqlen_k, packed)
    if device.type == "meta":
        _check_meta(q, k, v)
    if packed and device.type == "cuda":
        max_seqlen_q = _longest_on_cuda(cu_seqlens_q, q.size(0), max_seqlen_q, "q")
        max_seqlen_k = _longest_on_cuda(cu_seqlens_k, k.size(0), max_seqlen_k, "k")
    t_q, t_k, w = _transform(calibration, q)
    _check_grad({"q": q, "k": k, "v": v})
    left, right = _window(window)
    return Arguments(
        q,
        k,
        v,
        _mask(mask, q, k, packed),
        cu_seqlens_q,
        cu_seqlens_k,
        t_q,
        t_k,
        w,
        sparsity_text(mode),
        _causal(causal),
        align == "top_left",
        left,
        right,
        _scale(scale),
        -1 if max_seqlen_q is None else max_seqlen_q,
        -1 if max_seqlen_k is None else max_seqlen_k,
        kernel,
    )
