"""The demonstration: a real model reads a real book, with each attention mode.

    python -m twofour.demo [--tokens N] [--text FILE] [--model DIR] [--out DIR]

Prints one table and a short greedy continuation, and writes report.html and report.json.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from . import _cli, _demo_words, _extras, _files, calibrate, eval, models, report, text
from ._greedy import continuation
from .calibration import Calibration
from .errors import InvalidArgumentError, TwofourError
from .sparsity import MODES

#: Enough for a basis; the rest of the first 32,768 tokens are left unread at this size.
CALIBRATION_TOKENS = 8192
_PROMPT, _NEW_TOKENS = 1536, 48


def calibration_for(
    model: Any, tokens: Tensor, window: int, kept: bool, progress: Callable[[str], None]
) -> Calibration:
    """Calibrates, or reads the calibration of an earlier run on the same tokens.

    Args:
        kept: whether the weights are known to be the same ones each time, so that the result may
            be kept in the cache.
    """
    if not kept:
        return calibrate.calibrate(model, tokens, window=window, progress=progress)
    key = hashlib.sha256(tokens.numpy().tobytes() + f"{window}".encode()).hexdigest()[:16]
    path = _files.cache_dir() / f"{models.name_of(model)}-{key}.calibration.safetensors"
    if path.is_file():
        try:
            found = Calibration.load(path)
            # A damaged or older file is made again; that it fits is checked when it is used.
            if found.model == models.name_of(model):
                return found
        except TwofourError:
            path.unlink()
    found = calibrate.calibrate(model, tokens, window=window, progress=progress)
    found.save(path)
    return found


def _layout(available: int, window: int) -> tuple[int, int]:
    """Tokens read for calibration, and tokens skipped before the evaluated window.

    The measured protocol calibrates within the first 32,768 tokens and evaluates after them; a
    shorter text gives what it has, and the two never overlap.
    """
    skip = calibrate.DEFAULT_TOKENS
    if available < skip + window:
        skip = available - window
    if skip < calibrate.MIN_TOKENS:
        raise InvalidArgumentError(
            f"text: expected at least {calibrate.MIN_TOKENS + window} tokens "
            f"({calibrate.MIN_TOKENS} for calibration, {window} to evaluate), got {available}"
        )
    wanted = calibrate.DEFAULT_TOKENS if window >= 8192 else CALIBRATION_TOKENS
    return min(skip, max(wanted, calibrate.MIN_TOKENS)), skip


def _main(argv: Sequence[str]) -> None:
    options = _demo_words.parse(argv)
    _extras.require("hf", "report")
    with _files.folder(options.out, "--out") as out:
        _report(options, out)


def _report(options: argparse.Namespace, out: Path) -> None:
    """Everything after the command line is understood."""
    from . import hf

    window = options.tokens
    with _cli.progress() as show:
        show("reading the text (fetched the first time)")
        words = text.read(options.text)
        show("loading the model (fetched the first time)")
        model, tokenizer = models.load(options.model, device=options.device)
        need = calibrate.DEFAULT_TOKENS + window * options.windows
        ids = calibrate.tokenize(tokenizer, words, need)
        read, skip = _layout(ids.numel(), window * options.windows)
        basis = calibration_for(model, ids[:read], min(window, read), options.model is None, show)
        found = eval.evaluate(
            model,
            ids,
            MODES,
            window=window,
            windows=options.windows,
            skip=skip,
            calibration=basis,
            samples=2,
            text_name=text.name_of(options.text),
            progress=show,
        )
        prompt = ids[skip : skip + min(_PROMPT, window)]
        texts = []
        for mode in ("dense", "refined"):
            show(f"greedy continuation: {mode}")
            with hf.temporarily(model, mode=mode, calibration=basis):
                words = continuation(model, tokenizer, prompt, _NEW_TOKENS)
            texts.append(report.Continuation(mode, words))
        show("drawing the report")
        image = report.attention_map(model, ids[skip : skip + window], basis)
        tail = tokenizer.decode(prompt[-60:])
        page, figures = report.write(out, found, tail, texts, image)
    print(eval.table(found))
    if few := eval.caution(found):
        print(few)
    print(f"\n{found.model}, {found.windows} x {found.tokens} tokens; ratios above 1 are faster")
    print(f"\nprompt: … {tail}")
    for item in texts:
        print(f"\n{item.mode}: {item.text}")
    print(f"\n{page}\n{figures}")


if __name__ == "__main__":
    sys.exit(_cli.run("twofour.demo", _main, None))
