"""Errors that stand beside the speeds: against exact attention, and against the same sparsity."""

from __future__ import annotations

import math
from typing import Any

import torch
from inputs import Problem
from torch import Tensor

#: Heads and rows of a problem that are compared with exact attention.
SAMPLED_HEADS, SAMPLED_ROWS = 4, 64
#: Tokens and KV heads on which the reference replays a sparsity: it takes seconds, in fp64.
REFERENCE_LENGTH, REFERENCE_HEADS = 1024, 1
REFERENCE = "attention.ref"


def relative(got: Tensor, want: Tensor) -> float:
    """Frobenius norm of the difference over that of the expected; inf or nan show as they are."""
    want = want.double()
    return float((got.double() - want).norm() / want.norm())


def sample(size: int, count: int) -> list[int]:
    """Up to `count` indices spread over the whole range, both ends included."""
    if size <= count:
        return list(range(size))
    return [round(i * (size - 1) / (count - 1)) for i in range(count)]


def sample_rows(size: int) -> list[int]:
    """Middles of equal parts, and the last row.

    Not the first: a causal row of few keys is large and nearly exact, and would rule the norm.
    """
    if size <= SAMPLED_ROWS:
        return list(range(size))
    middles = [(2 * i + 1) * size // (2 * SAMPLED_ROWS) for i in range(SAMPLED_ROWS - 1)]
    return [*middles, size - 1]


def exact_rows(problem: Problem, causal: bool, batch: int, head: int, rows: list[int]) -> Tensor:
    """Attention of some rows by the formula in fp64; [rows,D]."""
    q, k, v = problem[:3]
    group = q.size(1) // k.size(1)
    key, value = (t[batch, head // group].double() for t in (k, v))
    scores = q[batch, head, rows].double() @ key.T / math.sqrt(q.size(3))
    if causal:
        at = torch.tensor(rows, device=q.device)[:, None] + k.size(2) - q.size(2)
        scores.masked_fill_(torch.arange(k.size(2), device=q.device) > at, -math.inf)
    return scores.softmax(-1) @ value


def exact_error(o: Tensor, problem: Problem, causal: bool) -> float:
    """Relative error of a sample of heads and rows against exact attention.

    Args:
        o: [B,Hq,M,D]
    """
    rows = sample_rows(o.size(2))
    places = [(b, h) for b in sample(o.size(0), 2) for h in sample(o.size(1), SAMPLED_HEADS)]
    want = torch.stack([exact_rows(problem, causal, b, h, rows) for b, h in places])
    return relative(torch.stack([o[b, h, rows] for b, h in places]), want)


def reduced(problem: Problem) -> Problem:
    """The first tokens of the first heads of the first sequence."""
    q, k, v, basis = problem
    group = q.size(1) // k.size(1)
    heads = min(REFERENCE_HEADS, k.size(1))
    q = q[:1, : heads * group, :REFERENCE_LENGTH]
    k, v = (t[:1, :heads, :REFERENCE_LENGTH] for t in (k, v))
    if basis is not None:
        basis = type(basis)(*(None if t is None else t[:heads].contiguous() for t in basis))
    return Problem(q, k, v, basis)


def same_error(problem: Problem, options: dict[str, Any]) -> float:
    """Relative error of a reduced problem against the fp64 reference with the same sparsity.

    Near ties may be decided either way, so this bounds the rounding error from above;
    `twofour verify` replays each decision.

    Args:
        options: of twofour.attention, without calibration: the problem's basis is used.
    """
    import twofour

    part = reduced(problem)
    options = options | {"layout": "bhmd"}
    got = twofour.attention(*part[:3], calibration=part.basis, **options)
    # In fp32 the reference does not round its output. A transform rounds to the type of its input.
    dtype = torch.float32 if part.basis is None else part.q.dtype
    basis = part.basis
    if basis is not None:
        basis = type(basis)(*(None if t is None else t.cpu() for t in basis))
    q, k, v = (t.cpu().to(dtype) for t in part[:3])
    want = twofour.attention(q, k, v, calibration=basis, kernel=REFERENCE, **options)
    return relative(got.cpu(), want)
