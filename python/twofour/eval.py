"""What an attention mode costs a language model in quality, and what it gains in time.

    python -m twofour.eval --model DIR --text FILE --modes dense,score,int8,dual,refined \
        --tokens 8192 --windows 4 --calibration FILE --json

The reference is torch's scaled_dot_product_attention in the same model, read through the same hook.
Windows of `tokens` tokens follow one another in the text, each from an empty context, after the
first `skip` tokens (by default 32,768, which are left to calibration). Figures of a mode:

- ``ppl``, ``ppl_change_pct``: perplexity over all windows, and its change against the reference;
  ``ppl_change_se_pct``: standard error of that change, from the paired differences of the tokens;
- ``kl``: KL(reference || mode) of the next-token distribution over the whole vocabulary, in nats,
  mean over all positions; ``top1_pct``: share of positions with the same most likely token;
- ``kept_mass``: mean over rows, heads and layers of the exact softmax mass on the keys kept, on
  sampled row blocks (`twofour._fidelity` says which);
- ``refined_share``, ``dropped_share``: of the units of pruned blocks, over everything that ran;
- ``attention_s``: seconds inside the attention function, all layers, median over windows;
  ``prefill_s``: the whole forward pass up to the last hidden states, likewise.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from . import _cli, _extras, _metrics, models, text
from ._fidelity import Fidelity, Sampler
from ._hf_modes import SDPA
from .calibrate import DEFAULT_TOKENS, tokenize
from .calibration import Calibration
from .errors import InvalidArgumentError
from .sparsity import MODES, Sparsity

#: The reference's name among the modes.
REFERENCE = SDPA
#: Row blocks per layer for kept mass and error.
SAMPLES = 4
#: Fewer tokens than this are said to be few.
FEW_TOKENS = 4096


@dataclass
class ModeResult:
    """One row of the table. `kept_mass`, `error` and `mass` are None for the reference."""

    sparsity: str
    ppl: float
    ppl_change_pct: float
    kl: float
    top1_pct: float
    kept_mass: float
    refined_share: float
    dropped_share: float
    attention_s: float
    prefill_s: float
    ppl_change_se_pct: float

    def figures(self) -> dict[str, Any]:
        """The machine-readable fields; JSON has no NaN, so what was not measured is None."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in dataclasses.asdict(self).items()
        }


@dataclass
class Evaluation:
    """Results by mode, the reference (``"sdpa"``) first."""

    model: str
    tokens: int  # in a window
    windows: int
    skip: int
    modes: dict[str, ModeResult]
    fidelity: dict[str, Fidelity] = field(repr=False)
    calibration: str | None = None  # its kind
    text: str | None = None  # its name
    device: str = "cpu"  # where the model ran

    def ratio(self, mode: str, name: str) -> float:
        """Reference time over the mode's: above 1 is faster. `name` is a field ending in _s."""
        return getattr(self.modes[REFERENCE], name) / getattr(self.modes[mode], name)

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values; per layer and head as nested lists."""
        out = {"model": self.model, "tokens": self.tokens, "windows": self.windows}
        out |= {"skip": self.skip, "calibration": self.calibration, "text": self.text}
        out |= {"machine": machine(self.device), "versions": versions(), "modes": {}}
        for name, result in self.modes.items():
            row = result.figures()
            row["attention_ratio"] = self.ratio(name, "attention_s")
            row["prefill_ratio"] = self.ratio(name, "prefill_s")
            if name in self.fidelity:
                row["layer_head_error"] = self.fidelity[name].error.tolist()
                row["layer_head_kept_mass"] = self.fidelity[name].kept_mass.tolist()
            out["modes"][name] = row
        return out


def machine(device: str = "cpu") -> dict[str, Any]:
    """The machine, as reports name it; with a GPU when that is where the model ran."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            name = next(line.split(":", 1)[1].strip() for line in file if "model name" in line)
    except (OSError, StopIteration):
        pass
    found = {"cpu": name, "threads": torch.get_num_threads(), "system": platform.platform()}
    from .plans import available

    found["cpu_target"] = available()["cpu"].detail
    if device.startswith("cuda"):
        found["gpu"] = torch.cuda.get_device_name(device)
    return found


def versions() -> dict[str, str]:
    """Versions of what computed the figures."""
    import transformers

    from . import __version__

    return {
        "twofour": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


@dataclass
class _Timing:
    attention: list[float] = field(default_factory=list)
    prefill: list[float] = field(default_factory=list)
    units: int = 0
    refined: int = 0
    dropped: int = 0


def _forward(model: Any, window: Tensor, timing: _Timing | None) -> Tensor:
    """Last hidden states [T,hidden] of a window."""
    from . import hf

    with hf.record(model) as seen:
        start = time.perf_counter()
        out = model.base_model(window[None], use_cache=False).last_hidden_state[0]
        hf.synchronize(out)
        seconds = time.perf_counter() - start
    if timing is not None:
        timing.attention.append(seen.seconds)
        timing.prefill.append(seconds)
        timing.units += seen.units
        timing.refined += seen.refined
        timing.dropped += seen.dropped
    return out


def evaluate(
    model: Any,
    tokens: Tensor,
    modes: Sequence[str] = MODES,
    *,
    window: int = 8192,
    windows: int = 1,
    skip: int = 0,
    calibration: Calibration | str | os.PathLike | None = None,
    samples: int = SAMPLES,
    text_name: str | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Evaluation:
    """Evaluates modes on a text; the model is left as it was.

    Args:
        model: a causal language model of transformers, in eval mode, on its device.
        tokens: int64 [T].
        modes: mode names or canonical sparsity strings; the reference need not be named.
        window, windows, skip: see the module's text.
        calibration: for the modes with a pruned Query.
        samples: row blocks per layer for kept mass and per-head error; 0 leaves them out (NaN).
        text_name: what the tokens are of, for the reports.
        progress: called with a line of text before each step.

    Raises:
        InvalidArgumentError: too few tokens, a window longer than the model's context, an unknown
            mode, or a calibration of another model.
    """
    from . import hf

    need = skip + window * windows
    if tokens.numel() < need or window < 2 or windows < 1:
        raise InvalidArgumentError(
            f"text: expected at least {need} tokens ({skip} skipped, then {windows} windows of "
            f"{window}), got {tokens.numel()}"
        )
    models.check_window(model, window)
    shapes = {hf.head_shape(module) for module in hf.attention_modules(model).values()}
    head_dim = max(shape[2] for shape in shapes)
    names = [name for name in dict.fromkeys(modes) if name != REFERENCE]
    sparsity = {name: str(Sparsity.parse(name, head_dim)) for name in names}
    if calibration is not None and not isinstance(calibration, Calibration):
        calibration = Calibration.load(calibration)
    pieces = tokens[skip:need].to(model.device).split(window)

    timing = {name: _Timing() for name in (REFERENCE, *names)}
    quality = {name: _metrics.Quality() for name in (REFERENCE, *names)}
    fidelity: dict[str, Fidelity] = {}
    with torch.no_grad(), warnings.catch_warnings(), hf.temporarily(model, mode=REFERENCE):
        # The figures are what these warn of.
        warnings.simplefilter("ignore", hf.ApproximateWarning)
        head = _metrics.output_head(model, pieces[0])
        _forward(model, pieces[0][:512], None)  # first calls pay for threads and pages
        for index, piece in enumerate(pieces):
            hidden = {}
            for name in (REFERENCE, *names):
                progress(f"window {index + 1} of {windows}: {name}, {window} tokens")
                hf.enable(model, mode=sparsity.get(name, REFERENCE), calibration=calibration)
                hidden[name] = _forward(model, piece, timing[name])
            progress(f"window {index + 1} of {windows}: comparing next-token distributions")
            reference = hidden.pop(REFERENCE)
            _metrics.add_window(head, piece, reference, hidden, quality, quality[REFERENCE])
        if samples and sparsity:
            progress(f"error and kept mass of each layer and head, {samples} row blocks")
            sampler = Sampler(sparsity, calibration, samples)
            hf.enable(model, mode=REFERENCE)
            with hf.record(model, sampler):
                model.base_model(pieces[0][None], use_cache=False)
            fidelity = sampler.result()
    results = {}
    base = quality[REFERENCE].ppl
    for name in (REFERENCE, *names):
        measured, times = quality[name], timing[name]
        kept = float(fidelity[name].kept_mass.mean()) if name in fidelity else float("nan")
        results[name] = ModeResult(
            sparsity=sparsity.get(name, str(Sparsity.parse("dense"))),
            ppl=measured.ppl,
            ppl_change_pct=100 * (measured.ppl / base - 1),
            kl=measured.kl,
            top1_pct=measured.top1_pct,
            kept_mass=1.0 if name == REFERENCE else kept,
            refined_share=times.refined / max(times.units, 1),
            dropped_share=times.dropped / max(times.units, 1),
            attention_s=statistics.median(times.attention),
            prefill_s=statistics.median(times.prefill),
            ppl_change_se_pct=100 * measured.ppl / base * measured.excess_error,
        )
    kind = calibration.kind if calibration is not None else None
    name = models.name_of(model)
    device = str(model.device)
    return Evaluation(name, window, windows, skip, results, fidelity, kind, text_name, device)


def seconds(time: float) -> str:
    """A duration for people."""
    return f"{time:.2f} s" if time >= 1 else f"{1e3 * time:.1f} ms"


def table(evaluation: Evaluation) -> str:
    """The results as text, a line for each mode."""
    head = (
        f"{'mode':<14}{'sparsity':<24}{'ppl':>9}{'change':>9}{'KL':>9}{'top-1':>8}{'kept':>8}"
        f"{'refined':>9}{'attention':>17}{'prefill':>17}"
    )
    lines = [head, "-" * len(head)]
    for name, r in evaluation.modes.items():
        attention, prefill = (evaluation.ratio(name, f) for f in ("attention_s", "prefill_s"))
        kept = f"{100 * r.kept_mass:.2f}%" if math.isfinite(r.kept_mass) else "-"
        refined = f"{100 * r.refined_share:.1f} %" if "/r" in r.sparsity else "-"
        lines.append(
            f"{'sdpa (torch)' if name == REFERENCE else name:<14}{r.sparsity:<24}{r.ppl:>9.3f}"
            f"{r.ppl_change_pct:>+8.2f}%{r.kl:>9.5f}{r.top1_pct:>7.2f}%{kept:>8}"
            f"{refined:>9}{seconds(r.attention_s):>11} {attention:>5.2f}x"
            f"{seconds(r.prefill_s):>11} {prefill:>5.2f}x"
        )
    return "\n".join(lines)


def caution(evaluation: Evaluation) -> str:
    """A line that says how far to trust figures of few tokens; empty when there are enough."""
    count = evaluation.tokens * evaluation.windows
    if count >= FEW_TOKENS:
        return ""
    errors = [
        f"{name} {result.ppl_change_se_pct:.2f} %"
        for name, result in evaluation.modes.items()
        if name != REFERENCE
    ]
    line = f"caution: {count} tokens are few"
    if errors:
        line += f", and differences may be noise; standard error of the change: {', '.join(errors)}"
    return line


def _main(argv: Sequence[str]) -> None:
    parser = _cli.Parser(prog="twofour.eval", description=__doc__.splitlines()[0])
    _cli.add_source(parser)
    window = _cli.count(2, 1 << 20)
    parser.add_argument("--tokens", type=window, default=8192, help="tokens in a window")
    windows = _cli.count(1, 1 << 16)
    parser.add_argument("--windows", type=windows, default=1, help="number of windows")
    skip = _cli.count(0, 1 << 24)
    parser.add_argument("--skip", type=skip, default=DEFAULT_TOKENS, help="tokens left out first")
    samples = _cli.count(0, 1 << 16)
    parser.add_argument("--samples", type=samples, default=SAMPLES, help="row blocks per layer")
    _cli.add_modes(parser)
    options = parser.parse_args(argv)
    names = _cli.modes_of(parser, options)
    _extras.require("hf")
    calibration = Calibration.load(options.calibration) if options.calibration else None
    with _cli.progress() as show:
        show("reading the text")
        words = text.read(options.text)
        show("loading the model")
        model, tokenizer = models.load(options.model, device=options.device)
        need = options.skip + options.tokens * options.windows
        result = evaluate(
            model,
            tokenize(tokenizer, words, need),
            names,
            window=options.tokens,
            windows=options.windows,
            skip=options.skip,
            calibration=calibration,
            samples=options.samples,
            text_name=text.name_of(options.text),
            progress=show,
        )
    print(json.dumps(result.as_json(), indent=1) if options.json else table(result))
    if few := caution(result):
        print(few, file=sys.stderr if options.json else sys.stdout)


if __name__ == "__main__":
    sys.exit(_cli.run("twofour.eval", _main, None))
