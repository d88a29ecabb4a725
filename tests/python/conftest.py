"""Shared inputs and comparisons of the Python tests."""

import math
import os
from types import SimpleNamespace

import hypothesis
import pytest
import torch

import twofour

os.environ["TWOFOUR_TUNE_FILE"] = "off"  # plans go by the model, not by times of this machine

hypothesis.settings.register_profile("default", deadline=None, derandomize=True)
hypothesis.settings.load_profile("default")

REFERENCE = "attention.ref"
# Largest error allowed against a wider computation of the same thing, for values around 1: a few
# units in the last place of the output type.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def make_qkv(b=1, m=64, n=None, hq=2, hkv=None, d=64, dv=None, dtype=torch.float32, std=1.0):
    """q [B,M,Hq,D], k [B,N,Hkv,D], v [B,N,Hkv,Dv]; scores get about std."""
    n = m if n is None else n
    hkv = hq if hkv is None else hkv
    dv = d if dv is None else dv
    q = torch.randn(b, m, hq, d) * std
    k = torch.randn(b, n, hkv, d)
    v = torch.randn(b, n, hkv, dv)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def live_pairs(m, n, causal=False, align="bottom_right", window=None):
    """bool [M,N] by the definition of docs/semantics.md, rule 1."""
    row = torch.arange(m)[:, None]
    position = row + (n - m) if causal and align == "bottom_right" else row
    key = torch.arange(n)[None, :]
    live = torch.ones(m, n, dtype=torch.bool)
    if causal:
        live &= key <= position
    left, right = window or (-1, -1)
    if left >= 0:
        live &= key >= position - left
    if right >= 0:
        live &= key <= position + right
    return live


def exact_attention(q, k, v, live=None, scale=None):
    """(o [B,M,Hq,Dv], lse [B,Hq,M]) in fp64 by the formula; live broadcasts to [B,Hq,M,N]."""
    group = q.size(2) // k.size(2)
    qd = q.double().transpose(1, 2)
    kd = k.double().repeat_interleave(group, dim=2).transpose(1, 2)
    vd = v.double().repeat_interleave(group, dim=2).transpose(1, 2)
    scores = qd @ kd.transpose(-1, -2) * (1 / math.sqrt(q.size(-1)) if scale is None else scale)
    if live is not None:
        scores = scores.masked_fill(~live, -math.inf)
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse.masked_fill(lse == -math.inf, 0.0)[..., None])
    return (weights @ vd).transpose(1, 2), lse


def assert_close(got, want, tolerance):
    """Equal within tolerance relative to the larger of 1 and the value; infinities must agree."""
    assert got.shape == want.shape
    got, want = got.double(), want.double()
    finite = torch.isfinite(want)
    assert torch.equal(torch.isfinite(got), finite), "finite where the expected is not, or reverse"
    assert torch.equal(got[~finite], want[~finite])
    error = ((got - want).abs() / want.abs().clamp(min=1.0))[finite]
    assert error.numel() == 0 or error.max() <= tolerance, f"off by {error.max():.3g}"


def balanced_calibration(hkv, d, seed=1):
    """A random well-conditioned change of basis with its transposed inverse."""
    generator = torch.Generator().manual_seed(seed)
    t = torch.linalg.qr(torch.randn(hkv, d, d, generator=generator, dtype=torch.float64))[0]
    t = t * torch.logspace(-0.3, 0.3, d, dtype=torch.float64)
    return SimpleNamespace(
        t_q=t.float().contiguous(),
        t_k=torch.linalg.inv(t).transpose(-1, -2).float().contiguous(),
        w=torch.rand(hkv, d, generator=generator) + 0.5,
    )


def fast_kernels():
    """Ids of every row but the reference."""
    return [kernel for kernel in twofour.kernels() if kernel != REFERENCE]
