"""Inputs of the benchmarks: random ones, and what a real model computes on a real text.

Speed does not depend on the values, with one exception: how many units `refined` recomputes (and
`drop` skips). So that mode is judged on captured activations.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
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
    seqlen: int,
    head_dim: int,
    heads: int,
    kv_heads: int,
    score_std: float,
    batch: int = 1,
    device: torch.device | None = None,
) -> Problem:
    """Unit normal K and V, Q scaled so that scores have the given standard deviation."""
    torch.manual_seed(0)
    q = torch.randn(batch, heads, seqlen, head_dim, device=device) * score_std
    k, v = (torch.randn(batch, kv_heads, seqlen, head_dim, device=device) for _ in range(2))
    # A random orthogonal basis costs what a calibrated one costs.
    basis = torch.linalg.qr(torch.randn(kv_heads, head_dim, head_dim, device=device))[0]
    basis = basis.contiguous()
    return Problem(q, k, v, Basis(basis, basis.clone()))


def force_refined(problem: Problem, share: float, block: int) -> Problem:
    """The problem with keys so planted that `refined` recomputes this share of the pruned units.

    Scores must have a standard deviation of about 1. Queries get a component along one direction,
    channel 0 of the (orthogonal) basis, which pruning never removes. Key 0, in the first block and
    so in a plain one, points along it and gives every row a maximum of about 20 nats, out of reach
    for the other keys; a copy of key 0 in a unit reaches the maximum again.
    """
    q, k, v, basis = problem
    head_dim, keys = k.size(3), k.size(2)
    if basis is None:
        direction = torch.eye(head_dim, device=k.device)[0].expand(k.size(1), -1)  # [Hkv,D]
    else:
        direction = basis.t_q[:, :, 0].to(k)
    strong = direction * (20.0 * head_dim**0.5) ** 0.5
    q = q + strong.repeat_interleave(q.size(1) // k.size(1), dim=0)[:, None]
    # Unit u is half-block u % 2 of block u // 2, whose first key is a quarter of a block further.
    units = range(2 * (keys // block))
    chosen = [u for u in units if int((u + 1) * share) > int(u * share)]
    planted = [0, *(u // 2 * block + u % 2 * (block // 4) for u in chosen)]
    k = k.clone()
    k[:, :, planted] = strong[:, None]
    return Problem(q, k, v, basis)


def save(path: Path, problems: Sequence[Problem], dtype: torch.dtype) -> None:
    """Writes safetensors: q, k, v and the basis t_q, t_k, w of problem i as `layers.{i}.q` ..."""
    from safetensors.torch import save_file

    tensors = {}
    for index, (*qkv, basis) in enumerate(problems):
        found = {name: t.to(dtype) for name, t in zip("qkv", qkv, strict=True)}
        if basis is not None:
            found |= {name: getattr(basis, name) for name in ("t_q", "t_k", "w")}
        tensors |= {
            f"layers.{index}.{name}": t.contiguous() for name, t in found.items() if t is not None
        }
    save_file(tensors, path)


def load(path: Path) -> list[Problem]:
    """Reads what `save` wrote, or any .npz or .safetensors with q, k, v of four axes [B,H,M,D].

    Names may have a prefix ("layers.3.q"); each prefix is one problem, in the order of the file.

    Raises:
        ValueError: what is missing or has another shape.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    if path.suffix == ".npz":
        import numpy

        with numpy.load(path) as file:
            tensors = {name: torch.from_numpy(file[name]) for name in file.files}
    elif path.suffix == ".safetensors":
        from safetensors.torch import load_file

        tensors = load_file(path)
    else:
        raise ValueError(f"{path}: expected .npz or .safetensors")
    # Numbers in names sort as numbers: layers.2 before layers.10.
    prefixes = sorted(
        {name[:-1] for name in tensors if name == "q" or name.endswith(".q")},
        key=lambda prefix: [(len(part), part) for part in prefix.split(".")],
    )
    if not prefixes:
        raise ValueError(f"{path}: expected tensors q, k and v, got {', '.join(tensors)}")
    problems = []
    for prefix in prefixes:
        if missing := [name for name in "kv" if prefix + name not in tensors]:
            raise ValueError(f"{path}: {prefix}{missing[0]} is missing beside {prefix}q")
        q, k, v = (tensors[prefix + name] for name in "qkv")
        if q.dim() != 4 or k.shape != v.shape or q.shape[0::3] != k.shape[0::3]:
            shapes = ", ".join(str(list(t.shape)) for t in (q, k, v))
            raise ValueError(f"{path}: {prefix}q, k, v: expected [B,H,M,D], got {shapes}")
        t_q, t_k, w = (tensors.get(prefix + name) for name in ("t_q", "t_k", "w"))
        basis = None if t_q is None or t_k is None else Basis(t_q, t_k, w)
        problems.append(Problem(q, k, v, basis))
    return problems


def captured_problems(seqlen: int, layers: Sequence[int] = LAYERS) -> list[Problem]:
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
        if layer in layers:
            found[layer] = Problem(*(t.contiguous() for t in (q, k, v)), basis.layers[layer])

    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(hf.temporarily(model, mode=hf.SDPA))
        stack.enter_context(hf.record(model, keep))
        model.base_model(ids[skip : skip + seqlen][None], use_cache=False)
    if missing := [layer for layer in layers if layer not in found]:
        raise ValueError(f"layers: the model has no layer {missing[0]}")
    return [found[layer] for layer in layers]


def main() -> None:
    """Captures a real model's activations into a file for the benchmarks on another machine."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("file", type=Path, help="written: FILE.safetensors")
    parser.add_argument("--seqlen", type=int, default=8192)
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS)
    parser.add_argument("--dtype", choices=("fp16", "bf16", "fp32"), default="fp16")
    options = parser.parse_args()
    dtypes = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
    problems = captured_problems(options.seqlen, options.layers)
    save(options.file, problems, dtypes[options.dtype])


if __name__ == "__main__":
    main()
