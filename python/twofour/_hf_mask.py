"""Causal masks for Hugging Face models that are described, not stored.

transformers asks a mask function for a boolean [B,1,M,N] tensor before the first layer. Nearly
always it is causal, perhaps with a window and padding, which the kernels know by arithmetic; the
tensor would be the one M·N object of the whole forward pass. `CausalMask` is that tensor without
its memory. Any torch operation on it sees (and then stores) the real thing, so a model that edits
its mask stays right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from transformers.masking_utils import causal_mask_function, prepare_padding_mask, sdpa_mask

from ._hf_pack import Packing, packing_of


class CausalMask(Tensor):
    """Boolean [B,1,M,N], true where row i (position q_offset + i) may attend key kv_offset + j.

    Attributes:
        q_offset, kv_offset: positions of the first row and of the first key.
        window: keys from position - window + 1 on are live; None is no window.
        padding: bool [B,N], false for padded keys; None is no padding.
    """

    @staticmethod
    def __new__(
        cls,
        shape: tuple[int, int, int, int],
        q_offset: int,
        kv_offset: int,
        window: int | None,
        padding: Tensor | None,
        device: torch.device,
    ) -> CausalMask:
        mask = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)
        mask.q_offset, mask.kv_offset = q_offset, kv_offset
        mask.window, mask.padding = window, padding
        mask._stored = mask._packing = None
        return mask

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def plain(value: Any) -> Any:
            return value.stored() if isinstance(value, CausalMask) else value

        return func(*tree_map(plain, args), **tree_map(plain, kwargs or {}))

    def stored(self) -> Tensor:
        """The ordinary boolean tensor; made once."""
        if self._stored is None:
            rows = torch.arange(self.shape[2], device=self.device)[:, None] + self.q_offset
            keys = torch.arange(self.shape[3], device=self.device)[None, :] + self.kv_offset
            live = keys <= rows
            if self.window is not None:
                live &= keys > rows - self.window
            live = live.expand(self.shape)
            if self.padding is not None:
                live = live & self.padding[:, None, None, :]
            self._stored = live
        return self._stored

    def packing(self, seen: int, rows: int) -> Packing | None:
        """Of the first `seen` keys, with padding; found once for all layers."""
        if self._packing is None or self._packing[0] != (seen, rows):
            found = packing_of(self.padding[:, :seen], rows, self.window is not None)
            self._packing = (seen, rows), found
        return self._packing[1]

    def __repr__(self) -> str:
        return (
            f"CausalMask({tuple(self.shape)}, q_offset={self.q_offset}, "
            f"kv_offset={self.kv_offset}, window={self.window}, padded={self.padding is not None})"
        )


def _is_window(
    mask_function: Callable, batch: int, q_offset: int, rows: int, window: int, device: Any
) -> bool:
    """Whether a mask function of transformers is `q - window < key <= q`, asked at both edges.

    ``local_size`` comes both with sliding windows and with chunked attention; the functions are
    closures, so their values at the edges of every row tell them apart.
    """
    sequence = torch.arange(batch, device=device)[:, None]
    head = torch.zeros((), dtype=torch.long, device=device)
    position = torch.arange(rows, device=device)[None, :] + q_offset

    def at(key: Tensor) -> Tensor:
        return mask_function(sequence, head, position, key)

    oldest = position - window + 1
    edges = at(position) & ~at(position + 1) & at(oldest) & ~at(oldest - 1)
    return bool(edges.all())


def causal_or_stored_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> Tensor | None:
    """The mask function registered with transformers for ``attn_implementation="twofour"``.

    Returns None for a plain causal mask over as many keys as rows and for one row that sees every
    key (the attention function then relies on ``is_causal`` as sdpa does), a `CausalMask` for every
    other causal or windowed mask, with or without padding, and what ``sdpa_mask`` returns for all
    else (custom and bidirectional masks, packed sequences, tracing).
    """

    def as_sdpa() -> Tensor | None:
        return sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            local_size=local_size,
            allow_is_causal_skip=allow_is_causal_skip,
            device=device,
            **kwargs,
        )

    # Values are read below, which a traced graph must not do.
    if not allow_is_causal_skip or torch.compiler.is_compiling() or torch.jit.is_tracing():
        return as_sdpa()
    first = int(q_offset)
    window = None
    if local_size is not None:
        if not _is_window(mask_function, batch_size, first, q_length, local_size, device):
            return as_sdpa()
        if first + q_length - local_size > kv_offset:  # else no row's window ends inside the keys
            window = local_size
    elif mask_function is not causal_mask_function:
        return as_sdpa()
    padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None:
        padding = padding[:, kv_offset : kv_offset + kv_length]
        # Keys after the last row's position are dead anyway: a static cache marks them as padded.
        seen = max(0, min(kv_length, first + q_length - kv_offset))
        if bool(padding[:, :seen].all()):
            padding = None
    aligned = first + q_length == kv_offset + kv_length and q_length in (1, kv_length)
    if padding is None and window is None and aligned:
        return None
    shape = (batch_size, 1, q_length, kv_length)
    return CausalMask(shape, first, kv_offset, window, padding, torch.device(device))
