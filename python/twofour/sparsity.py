"""What is pruned, as one value with one canonical string."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from . import _library  # noqa: F401  (registers the operators used below)
from .errors import InvalidArgumentError, reraise

#: The presets, from exact to most pruned.
MODES = ("dense", "score", "int8", "dual", "refined")


@dataclass(frozen=True)
class Sparsity:
    """QK product, score pattern, block and the units around them.

    The rules, the canonical string and its parser are those of the C++ library
    (docs/semantics.md); this class only carries the fields.

    Args:
        qk: "exact", "nm24" (two of every four channels of the Query) or "int8".
        score: "none", "pair", "nm24_strided" or "nm24_adjacent".
        block: keys in a key block, a multiple of 64; 0 chooses 128 for head_dim <= 64, else 192.
        sink_blocks: first live key blocks of a row block that stay unpruned.
        local_blocks: key blocks below the diagonal ones that stay unpruned.
        refine: nats; units whose maximum comes this close to the running one are recomputed
            exactly. Only with qk="nm24".
        drop: nats; units that stay this far below the running maximum are skipped.

    Raises:
        InvalidArgumentError: a field out of range, with the range.
    """

    qk: str = "exact"
    score: str = "none"
    block: int = 0
    sink_blocks: int = 0
    local_blocks: int = 0
    refine: float | None = None
    drop: float | None = None
    _text: str = field(init=False, repr=False, compare=False, default="")

    def __post_init__(self) -> None:
        try:
            text = torch.ops.twofour.format_sparsity(
                self.qk,
                self.score,
                self.block,
                self.sink_blocks,
                self.local_blocks,
                self.refine,
                self.drop,
            )
        except RuntimeError as error:
            reraise(error)
        object.__setattr__(self, "_text", text)

    @staticmethod
    def parse(text: str, head_dim: int = 0) -> Sparsity:
        """Reads a mode name or a canonical string, such as "nm24/pair128/s1/l1/r2".

        With `head_dim`, a block length left open is filled in.
        """
        if not isinstance(text, str):
            raise InvalidArgumentError(
                f"sparsity: expected a string, got {type(text).__name__} {text!r}"
            )
        try:
            return Sparsity(*torch.ops.twofour.parse_sparsity(text, head_dim))
        except RuntimeError as error:
            reraise(error)

    def resolved(self, head_dim: int) -> Sparsity:
        """The same with the block length that is used for this head_dim."""
        return Sparsity.parse(self._text, head_dim)

    @property
    def needs_calibration(self) -> bool:
        """Whether a calibration improves this (the pruned Query)."""
        return self.qk == "nm24"

    def __str__(self) -> str:
        return self._text


def sparsity_text(mode: str | Sparsity) -> str:
    """What the operators take: a mode name, a canonical string or "auto", not yet checked."""
    if isinstance(mode, Sparsity):
        return mode._text
    if isinstance(mode, str):
        return mode
    raise InvalidArgumentError(
        f'mode: expected "auto", one of {", ".join(MODES)}, a sparsity string or a '
        f"twofour.Sparsity, got {type(mode).__name__}"
    )
