"""Inputs of the benchmarks: random ones, and what a real model computes on a real text.

Speed does not depend on the values, with one exception: how many units `refined` recomputes (and
`drop` skips). So that mode is judged on captured activations.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor

#: Layers of the captured model that are timed: early to late.
LAYERS = (2, 9, 16, 23)
#: Tokens read for the calibration of captured inputs.
CALIBRATION_TOKENS = 8192


class Basis(NamedTuple):
    """What ``twofour.attention(calibration=...)`` takes."""

    t_q: Tensor  # [Hkv,D,D]
    t_k: Tensor  # [Hkv,D,D]
    w: Tensor | None = None


class Problem(NamedTuple):
    """One attention call, PyTorch's order of axes."""

    q: Tensor  # [1,Hq,M,D]
    k: Tensor  # [1,Hkv,M,D]
    v: Tensor  # [1,Hkv,M,D]
    basis: Any

    def expanded(self) -> tuple[Tensor, Tensor, Tensor]:
        """With K and V repeated for every query head, which is what SDPA is fastest with."""
        group = self.q.size(1) // self.k.size(1)
        if group == 1:
            return self.q, self.k, self.v
        return self.q, *(t.repeat_interleave(group, dim=1) for t in (self.k, self.v))


def random_problem(
    seqlen: int, head_dim: int, heads: int, kv_heads: int, score_std: float
) -> Problem:
    """Unit normal K and V, Q scaled so that scores have the given standard deviation."""
    torch.manual_seed(0)
    q = torch.randn(1, heads, seqlen, head_dim) * score_std
    k, v = (torch.randn(1, kv_heads, seqlen, head_dim) for _ in range(2))
    # A random orthogonal basis costs what a calibrated one costs.
    basis = torch.linalg.qr(torch.randn(kv_heads, head_dim, head_dim))[0].contiguous()
    return Problem(q, k, v, Basis(basis, basis.clone()))


def captured_problems(seqlen: int) -> list[Problem]:
    """Post-rotary Q, K and V of SmolLM2-135M (9/3 heads, head_dim 64) on Jane Austen's novels.

    The window starts after the tokens that calibration reads, as in `twofour.eval`. Model and text
    are fetched the first time.
    """
    from twofour import calibrate, hf, models, text

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    say("loading the model and the text whose activations are timed")
    model, tokenizer = models.load(None, device="cpu")
    skip = calibrate.DEFAULT_TOKENS
    ids = calibrate.tokenize(tokenizer, text.read(None), skip + seqlen)
    if ids.numel() < skip + seqlen:
        raise ValueError(f"the text has {ids.numel()} tokens, expected {skip + seqlen}")
    basis = calibrate.calibrate(model, ids[:CALIBRATION_TOKENS], progress=say)
    found: dict[int, Problem] = {}

    def keep(layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> None:
        if layer in LAYERS:
            found[layer] = Problem(*(t.contiguous() for t in (q, k, v)), basis.layers[layer])

    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(hf.temporarily(model, mode=hf.SDPA))
        stack.enter_context(hf.record(model, keep))
        model.base_model(ids[skip : skip + seqlen][None], use_cache=False)
    return [found[layer] for layer in LAYERS]
