"""Finds the basis in which a model's Query is pruned, from a text the model reads.

    python -m twofour.calibrate --model DIR --text FILE --out FILE --kind balanced

Runs the model densely over the first tokens of the text, gathers the second moments of the rotated
queries and keys of every layer, and derives the basis (docs/semantics.md, rule 5).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import _basis, _cli, _extras, models, text
from .calibration import KINDS, Calibration, LayerCalibration
from .errors import InvalidArgumentError

#: Below this, second moments of 64 or 128 channels are mostly noise.
MIN_TOKENS = 4096
DEFAULT_TOKENS = 32768
DEFAULT_WINDOW = 8192

_KINDS = {
    "balanced": _basis.balanced,
    "permutation": _basis.permutation,
    "identity": _basis.identity,
}


def tokenize(tokenizer: Any, words: str, wanted: int | None = None) -> Tensor:
    """The text as int64 token ids [T], without special tokens; at least `wanted` if there are.

    Tokenizing a long book takes as long as reading its first chapters; when only the first
    `wanted` tokens matter, a prefix of generous length is enough.
    """
    if wanted is not None:
        words = words[: 16 * wanted + 4096]
    ids = tokenizer(words, add_special_tokens=False, verbose=False)["input_ids"]
    return torch.tensor(ids, dtype=torch.long)


def calibrate(
    model: Any,
    tokens: Tensor,
    *,
    kind: str = "balanced",
    window: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Calibration:
    """Derives a calibration from tokens; the model is left as it was.

    Args:
        model: a causal language model of transformers, in eval mode.
        tokens: int64 [T], T >= 4,096; read in windows, each from an empty context.
        kind: "balanced", "permutation" or "identity".
        window: tokens a window; the last one may be shorter. By default 8,192, or what the model
            was made for.
        progress: called with a line of text before each window.

    Raises:
        InvalidArgumentError: too few tokens, an unknown kind, windows that are longer than the
            model's context, or a head_dim that has no groups.
    """
    from . import hf

    if kind not in _KINDS:
        raise InvalidArgumentError(f"kind: expected {', '.join(KINDS)}, got {kind!r}")
    if tokens.dim() != 1 or tokens.numel() < MIN_TOKENS:
        raise InvalidArgumentError(
            f"calibration text: expected at least {MIN_TOKENS} tokens, got {tokens.numel()}"
        )
    if window is None:
        window = min(DEFAULT_WINDOW, models.position_limit(model) or DEFAULT_WINDOW)
    models.check_window(model, min(window, tokens.numel()))
    shapes = {i: hf.head_shape(module) for i, module in hf.attention_modules(model).items()}
    if len(set(shapes.values())) != 1 or next(iter(shapes.values()))[2] % 4:
        raise InvalidArgumentError(
            "calibration: expected layers of one shape with head_dim a multiple of 4, got "
            f"(heads_q, heads_kv, head_dim) {sorted(set(shapes.values()))}"
        )
    moments = {layer: _basis.Moments(*shape) for layer, shape in shapes.items()}

    def gather(layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> None:
        moments[layer].add(q, k)

    pieces = tokens.split(window)
    with hf.temporarily(model, mode=hf.SDPA), torch.no_grad(), hf.record(model, gather):
        for index, piece in enumerate(pieces):
            progress(f"calibrating: window {index + 1} of {len(pieces)}, {piece.numel()} tokens")
            model.base_model(piece[None].to(model.device), use_cache=False)
    layers = [_layer(m, _KINDS[kind]) for _, m in sorted(moments.items())]
    return Calibration(models.name_of(model), kind, next(iter(shapes.values()))[0], tuple(layers))


def _layer(moments: _basis.Moments, basis: Callable) -> LayerCalibration:
    cov, second = moments.cov_k(), moments.second_q()
    if not bool(cov.isfinite().all() and second.isfinite().all()):
        raise InvalidArgumentError("calibration: the model gave non-finite queries or keys")
    heads = [basis(cov[h], second[h]) for h in range(cov.size(0))]
    t_q, t_k, w = (torch.stack(part).float().contiguous() for part in zip(*heads, strict=True))
    return LayerCalibration(t_q, t_k, w)


def _main(argv: Sequence[str]) -> None:
    parser = _cli.Parser(prog="twofour.calibrate", description=__doc__.splitlines()[0])
    _cli.add_source(parser)
    parser.add_argument("--out", required=True, help="calibration file to write (.safetensors)")
    parser.add_argument("--kind", default="balanced", choices=KINDS)
    tokens = _cli.count(MIN_TOKENS, 1 << 24)
    parser.add_argument("--tokens", type=tokens, default=DEFAULT_TOKENS, help="tokens to read")
    window = _cli.count(64, 1 << 20)
    parser.add_argument(
        "--window", type=window, help=f"default {DEFAULT_WINDOW}, or all the model takes"
    )
    options = parser.parse_args(argv)
    _extras.require("hf")
    if not Path(options.out).resolve().parent.is_dir():
        raise InvalidArgumentError(f"--out: no such directory: {Path(options.out).parent}")
    if Path(options.out).is_dir():
        raise InvalidArgumentError(f"--out: expected a file to write, got a folder: {options.out}")
    with _cli.progress() as show:
        show("reading the text")
        words = text.read(options.text)
        show("loading the model")
        model, tokenizer = models.load(options.model, device=options.device)
        ids = tokenize(tokenizer, words, options.tokens)[: options.tokens]
        found = calibrate(model, ids, kind=options.kind, window=options.window, progress=show)
        found.save(options.out)
    print(f"{options.out}: {found.kind} basis of {found.model}, {ids.numel()} tokens")


if __name__ == "__main__":
    sys.exit(_cli.run("twofour.calibrate", _main, None))
