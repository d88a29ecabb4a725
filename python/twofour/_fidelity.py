"""What each layer and head loses by itself: output error and kept softmax mass, on sampled rows.

The model runs densely; at each layer its queries, keys and values go through every mode's tracing
kernel too. So the figures isolate a layer: nothing of an earlier layer's error is in them.

Sampling: of the first window, `samples` whole row blocks (192 rows), one in the middle of each of
as many equal parts of the window, with the keys up to their last row. Rows, and so the mean, are
spread evenly over the window. With int8 the mean and scales of K are those of these keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .calibration import Calibration
from .ops import trace

ROW_BLOCK = 192


@dataclass(frozen=True)
class Fidelity:
    """Of one mode; fp64 [layers,Hq]."""

    error: Tensor  # |o - exact| / |exact|, Frobenius norms over the sampled rows
    kept_mass: Tensor  # mean over the sampled rows of the softmax mass on kept keys


def sampled_rows(length: int, samples: int) -> list[tuple[int, int]]:
    """Row ranges [begin, end) of the sample."""
    blocks = length // ROW_BLOCK
    if blocks == 0:
        return [(0, length)]
    samples = min(samples, blocks)
    chosen = [int((i + 0.5) * blocks / samples) for i in range(samples)]
    return [(b * ROW_BLOCK, (b + 1) * ROW_BLOCK) for b in chosen]


def exact_rows(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> tuple[Tensor, Tensor]:
    """Softmax weights [Hq,R,N] and outputs [Hq,R,Dv] of causal rows at the end of the keys, fp32.

    Args:
        q: [Hq,R,D], the last R positions.
        k, v: [Hkv,N,D], [Hkv,N,Dv].
    """
    group = q.size(0) // k.size(0)
    scale = 1 / math.sqrt(q.size(-1)) if scale is None else scale
    keys = k.float().repeat_interleave(group, 0)
    scores = (q.float() * scale) @ keys.mT
    rows, count = scores.shape[-2:]
    position = torch.arange(rows, device=q.device)[:, None] + (count - rows)
    scores.masked_fill_(torch.arange(count, device=q.device) > position, -torch.inf)
    weights = scores.softmax(-1)
    return weights, weights @ v.float().repeat_interleave(group, 0)


class Sampler:
    """An ``on_attention`` for `twofour.hf.record`; B = 1, causal, no padding."""

    def __init__(self, modes: dict[str, str], calibration: Calibration | None, samples: int):
        self._modes = modes  # name -> sparsity
        self._calibration = calibration
        self._samples = samples
        self._sums: dict[str, dict[int, list[Tensor]]] = {name: {} for name in modes}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> None:
        calibration = None
        if self._calibration is not None:
            calibration = self._calibration.layers[len(self._seen())].to(q.device)
        for begin, end in sampled_rows(q.size(2), self._samples):
            qs, ks, vs = q[:, :, begin:end], k[:, :, :end], v[:, :, :end]
            weights, exact = exact_rows(qs[0], ks[0], vs[0], scale)
            for name, sparsity in self._modes.items():
                traced = trace(
                    qs, ks, vs, mode=sparsity, causal=True, scale=scale, layout="bhmd",
                    calibration=calibration,
                )  # fmt: skip
                difference = (traced.o[0].float() - exact).double()
                mass = weights.masked_fill(~traced.kept, 0).sum(-1).double().sum(-1)
                rows = torch.full_like(mass, end - begin)
                square = exact.double().square().sum((1, 2))
                part = [difference.square().sum((1, 2)), square, mass, rows]
                sums = self._sums[name].setdefault(layer, [torch.zeros_like(t) for t in part])
                for total, new in zip(sums, part, strict=True):
                    total += new

    def _seen(self) -> list[int]:
        """Layers finished before this one: their order gives the index into the calibration."""
        return list(next(iter(self._sums.values()), {}))

    def result(self) -> dict[str, Fidelity]:
        """By mode name."""
        out = {}
        for name, by_layer in self._sums.items():
            error, square, mass, rows = (
                torch.stack([by_layer[layer][i] for layer in sorted(by_layer)]).cpu()
                for i in range(4)
            )
            tiny = torch.finfo(torch.float64).tiny
            out[name] = Fidelity((error / square.clamp(min=tiny)).sqrt(), mass / rows)
        return out
