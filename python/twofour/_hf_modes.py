"""Modes per layer and head: from what the user wrote to one mode for every query head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import InvalidArgumentError
from .sparsity import Sparsity

#: Leaves a head, layer or model to torch's scaled_dot_product_attention.
SDPA = "sdpa"
AUTO = "auto"

Mode = str | Sparsity
#: One mode; or a list with an entry per layer; or {layer or (layer, head): mode, "default": mode};
#: or a function of the layer. A layer's entry is one mode or a list with an entry per query head.
Modes = Mode | Sequence[Any] | Mapping[Any, Any] | Callable[[int], Any]


def _one(mode: Any, where: str, head_dim: int) -> str:
    if isinstance(mode, str) and mode in (SDPA, AUTO):
        return mode
    if not isinstance(mode, (str, Sparsity)):
        raise InvalidArgumentError(
            f'mode{where}: expected "auto", "sdpa", a mode name, a sparsity string or a '
            f"twofour.Sparsity, got {mode!r}"
        )
    try:
        parsed = Sparsity.parse(mode) if isinstance(mode, str) else mode
        return str(parsed.resolved(head_dim))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"mode{where}: {error}") from None


def _layer(entry: Any, layer: int, heads: int, head_dim: int) -> tuple[str, ...]:
    where = f" of layer {layer}"
    if isinstance(entry, (list, tuple)):
        if len(entry) != heads:
            raise InvalidArgumentError(
                f"mode{where}: expected one entry for each of {heads} query heads, got {len(entry)}"
            )
        return tuple(_one(m, f"{where}, head {h}", head_dim) for h, m in enumerate(entry))
    return (_one(entry, where, head_dim),) * heads


def _mapping(modes: Mapping, layers: int, layer: int, heads: int, head_dim: int) -> tuple[str, ...]:
    for key in modes:
        index = key if isinstance(key, tuple) else (key, 0)
        whole = len(index) == 2 and all(isinstance(i, int) for i in index)
        if key != "default" and not (whole and 0 <= index[0] < layers and 0 <= index[1] < heads):
            raise InvalidArgumentError(
                f'mode: expected keys "default", a layer in 0..{layers - 1} or (layer, head) with '
                f"head in 0..{heads - 1}, got {key!r}"
            )
    out = list(_layer(modes.get(layer, modes.get("default", AUTO)), layer, heads, head_dim))
    for head in range(heads):
        if (layer, head) in modes:
            out[head] = _one(modes[layer, head], f" of layer {layer}, head {head}", head_dim)
    return tuple(out)


def head_modes(modes: Modes, layers: int, layer: int, heads: int, head_dim: int) -> tuple[str, ...]:
    """The canonical string ("auto", "sdpa") of each query head of one layer.

    Raises:
        InvalidArgumentError: says which entry was not understood.
    """
    if isinstance(modes, (str, Sparsity)):
        return _layer(modes, layer, heads, head_dim)
    if callable(modes):
        return _layer(modes(layer), layer, heads, head_dim)
    if isinstance(modes, Mapping):
        return _mapping(modes, layers, layer, heads, head_dim)
    if not isinstance(modes, (list, tuple)) or len(modes) != layers:
        got = f"{len(modes)}" if isinstance(modes, (list, tuple)) else f"{modes!r}"
        raise InvalidArgumentError(
            f"mode: expected one mode, or one entry for each of {layers} layers, got {got}"
        )
    return _layer(modes[layer], layer, heads, head_dim)


@dataclass(frozen=True)
class Run:
    """Query heads q_begin .. q_end - 1 over KV heads kv_begin .. kv_end - 1, all in one mode."""

    mode: str
    q_begin: int
    q_end: int
    kv_begin: int
    kv_end: int


def head_runs(modes: tuple[str, ...], heads_kv: int) -> list[Run]:
    """The fewest calls that serve every head: whole groups side by side, or parts of one group."""
    group = len(modes) // heads_kv
    runs: list[Run] = []
    for kv in range(heads_kv):
        begin = kv * group
        while begin < (kv + 1) * group:
            end = begin + 1
            while end < (kv + 1) * group and modes[end] == modes[begin]:
                end += 1
            last = runs[-1] if runs else None
            whole = end - begin == group
            if whole and last and last.mode == modes[begin] and _is_whole(last, group):
                runs[-1] = Run(last.mode, last.q_begin, end, last.kv_begin, kv + 1)
            else:
                runs.append(Run(modes[begin], begin, end, kv, kv + 1))
            begin = end
    return runs


def _is_whole(run: Run, group: int) -> bool:
    return run.q_end - run.q_begin == (run.kv_end - run.kv_begin) * group
