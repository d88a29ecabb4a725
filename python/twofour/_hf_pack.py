"""Padded batches as packed sequences, for kernels that take no mask.

The padded keys of a causal batch are dead for every row, and the padded rows are read by nobody.
Without both, what is left of a sequence are rows that sit at its last keys: a packed call with
bottom-right alignment, which also gives a sequence the bits it has alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Packing(NamedTuple):
    """Which rows and keys of a batch are real."""

    rows: Tensor  # int64 [Tq], b * M + i
    keys: Tensor  # int64 [Tk], b * N + j
    cu_seqlens_q: Tensor  # int32 [B + 1]
    cu_seqlens_k: Tensor  # int32 [B + 1]
    max_seqlen_q: int
    max_seqlen_k: int

    def options(self) -> dict[str, Any]:
        """Arguments of `twofour.attention`."""
        return {name: value for name, value in self._asdict().items() if "seqlen" in name}

    def unpack(self, packed: Tensor, batch: int, rows: int) -> Tensor:
        """[Tq,H,D] as [B,M,H,D], with 0 in padded rows."""
        out = packed.new_zeros((batch * rows, *packed.shape[1:]))
        out[self.rows] = packed
        return out.unflatten(0, (batch, rows))


def packing_of(padding: Tensor, rows: int, window: bool) -> Packing | None:
    """The packing of a batch whose last `rows` keys are its rows; reads lengths, so it waits.

    Args:
        padding: bool [B,N], false for padded keys.
        window: whether distances between keys matter; then None for padding between real keys.
    """
    if window:
        starts = padding[:, 1:] & ~padding[:, :-1]
        if bool((starts.sum(1) + padding[:, 0] > 1).any()):
            return None
    real_rows = padding[:, padding.size(1) - rows :]
    counts = torch.stack((real_rows.sum(1), padding.sum(1)))
    longest = counts.max(1).values.tolist()
    zero = counts.new_zeros((2, 1))
    offsets = torch.cat((zero, counts.cumsum(1)), dim=1).int()
    return Packing(
        real_rows.flatten().nonzero().squeeze(1),
        padding.flatten().nonzero().squeeze(1),
        offsets[0].contiguous(),
        offsets[1].contiguous(),
        *longest,
    )
