"""Next-token quality of several hidden states against a reference, a few rows at a time.

Full-vocabulary logits of a whole window would take gigabytes; hidden states are small, so logits
are made from them chunk by chunk, the reference's once for all modes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .errors import UnsupportedError

_CHUNK = 256


@dataclass
class Quality:
    """Sums over windows, and the figures they give."""

    nll: float = 0.0  # nats, over `predictions`
    predictions: int = 0
    excess: float = 0.0  # of the nll over the reference's, token by token
    excess_square: float = 0.0
    divergence: float = 0.0  # nats, over `positions`
    same_top1: int = 0
    positions: int = 0

    @property
    def ppl(self) -> float:
        """Perplexity of the text."""
        return math.exp(self.nll / self.predictions)

    @property
    def excess_error(self) -> float:
        """Standard error of the mean excess, nats; NaN for a single token.

        Of paired tokens, taken as independent: in a real text they are not quite, so a difference
        of two of these is the least that may mean something.
        """
        n = self.predictions
        if n < 2:
            return math.nan
        variance = (self.excess_square - self.excess**2 / n) / (n - 1)
        return math.sqrt(max(variance, 0.0) / n)

    @property
    def kl(self) -> float:
        """KL(reference || this) of the next-token distribution, mean per token, nats."""
        return max(self.divergence / self.positions, 0.0)  # rounding may leave it just below

    @property
    def top1_pct(self) -> float:
        """Share of positions whose most likely token is the reference's, percent."""
        return 100.0 * self.same_top1 / self.positions


def output_head(model: Any, tokens: Tensor) -> Callable[[Tensor], Tensor]:
    """The function from last hidden states [T,hidden] to logits [T,vocabulary].

    Raises:
        UnsupportedError: the model does more than one linear layer there (say, soft-capping).
    """
    head = model.get_output_embeddings()
    if head is None:
        raise UnsupportedError(f"model: {type(model).__name__} has no output embeddings")
    probe = tokens[None, :8]
    want = model(probe, use_cache=False).logits
    got = head(model.base_model(probe, use_cache=False).last_hidden_state)
    if got.shape != want.shape or not torch.allclose(got, want, rtol=1e-3, atol=1e-3):
        raise UnsupportedError(
            f"model: {type(model).__name__} changes its logits after the output embeddings, which "
            "the evaluation does not do yet"
        )
    return head


def add_window(
    head: Callable[[Tensor], Tensor],
    tokens: Tensor,
    reference: Tensor,
    hidden: dict[str, Tensor],
    into: dict[str, Quality],
    reference_into: Quality,
) -> None:
    """Adds one window to the sums.

    Args:
        tokens: int64 [T].
        reference: hidden states of the reference, [T,hidden].
        hidden: the same of each mode.
        into, reference_into: where the sums go.
    """
    count = tokens.numel()
    for begin in range(0, count, _CHUNK):
        rows = slice(begin, min(begin + _CHUNK, count))
        targets = tokens[begin + 1 : rows.stop + 1]
        log_p = head(reference[rows]).float().log_softmax(-1)
        top = log_p.argmax(-1)
        expected = _add_nll(reference_into, log_p, targets)
        reference_into.positions += top.numel()
        reference_into.same_top1 += top.numel()
        p = log_p.exp()
        for name, states in hidden.items():
            log_q = head(states[rows]).float().log_softmax(-1)
            quality = into[name]
            excess = expected - _add_nll(quality, log_q, targets)
            quality.excess += float(excess.sum())
            quality.excess_square += float(excess.square().sum())
            quality.positions += top.numel()
            quality.same_top1 += int((log_q.argmax(-1) == top).sum())
            # The difference first: both terms alone are a thousand times the result.
            quality.divergence += float(log_q.sub_(log_p).mul_(p).sum(-1).double().sum().neg())


def _add_nll(quality: Quality, log_q: Tensor, targets: Tensor) -> Tensor:
    """Adds to the sums; returns the log-probabilities of the targets, fp64."""
    picked = log_q[: targets.numel()].gather(1, targets[:, None]).double()
    quality.nll -= float(picked.sum())
    quality.predictions += targets.numel()
    return picked
