"""report.html and report.json from an evaluation.

The page is one file: figures are inside it, and nothing is loaded from elsewhere.
"""

from __future__ import annotations

import html
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import _files, _plots
from ._fidelity import ROW_BLOCK, exact_rows
from .calibration import Calibration
from .eval import REFERENCE, Evaluation, caution, machine, seconds, versions
from .ops import trace
from .sparsity import Sparsity

_MAP_KEYS = 1536  # keys of the attention map: a pixel for every second one

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#222;max-width:1000px;margin:2em auto;padding:0 1em}
h1{font-size:1.6em}h2{font-size:1.2em;margin-top:2em}img{max-width:100%}
table{border-collapse:collapse;font-size:.87em}th,td{padding:.3em .6em;text-align:right}
th{border-bottom:2px solid #222}td{border-bottom:1px solid #ddd}
th:first-child,td:first-child,th:nth-child(2),td:nth-child(2){text-align:left}
blockquote{margin:.5em 0;padding:.5em 1em;background:#f5f5f5;white-space:pre-wrap}
code{font-size:.95em}.note{color:#555;font-size:.9em}
"""


@dataclass(frozen=True)
class Continuation:
    """A greedy continuation of the same prompt."""

    mode: str
    text: str


def report_json(evaluation: Evaluation) -> dict[str, Any]:
    """The machine-readable figures."""
    return {
        "tokens": evaluation.tokens * evaluation.windows,
        "model": evaluation.model,
        "windows": evaluation.windows,
        "skip": evaluation.skip,
        "calibration": evaluation.calibration,
        "text": evaluation.text,
        "machine": machine(evaluation.device),
        "versions": versions(),
        "modes": {name: result.figures() for name, result in evaluation.modes.items()},
    }


def attention_map(
    model: Any,
    tokens: torch.Tensor,
    calibration: Calibration | None,
    mode: str = "refined",
    layer: int | None = None,
    head: int | None = None,
) -> str:
    """The map of one layer and head over the last row block of a prefix; an <img>.

    Args:
        tokens: int64 [T]; the first 1,536 at most are read.
        layer: default the one in the middle.
        head: default the one whose units were decided most differently.
    """
    from . import hf

    modules = hf.attention_modules(model)
    layer = sorted(modules)[len(modules) // 2] if layer is None else layer
    found: dict[str, Any] = {}

    def catch(at: int, q: Any, k: Any, v: Any, scale: float | None) -> None:
        if at != layer:
            return
        rows = min(ROW_BLOCK, q.size(2))
        weights, _ = exact_rows(q[0, :, -rows:], k[0], v[0], scale)
        index = sorted(modules).index(layer)
        basis = calibration.layers[index].to(q.device) if calibration is not None else None
        found["trace"] = trace(
            q[:, :, -rows:], k, v, mode=mode, causal=True, scale=scale, layout="bhmd",
            calibration=basis,
        )  # fmt: skip
        found["weights"] = weights.cpu()
        found["block"] = Sparsity.parse(mode, q.size(-1)).block

    count = min(_MAP_KEYS, tokens.numel())
    count -= count % ROW_BLOCK if count > ROW_BLOCK else 0
    with torch.no_grad(), hf.temporarily(model, mode=hf.SDPA), hf.record(model, catch):
        model.base_model(tokens[None, :count].to(model.device), use_cache=False)
    traced = found["trace"]._replace(kept=found["trace"].kept.cpu(), unit=found["trace"].unit.cpu())
    if head is None:
        refined = (traced.unit == 2).sum((1, 2)) / (traced.unit > 0).sum((1, 2)).clamp(min=1)
        head = int((refined - 0.5).abs().argmin())
    weights = found["weights"][head]
    rows, keys = weights.shape
    live = torch.arange(keys)[None, :] <= torch.arange(rows)[:, None] + (keys - rows)
    what = _plots.fates(traced, head, live, found["block"])
    return _plots.attention_map(
        weights, what, f"layer {layer}, head {head}: positions {keys - rows} to {keys - 1}, {mode}"
    )


def _cells(evaluation: Evaluation) -> str:
    names = (
        "mode", "sparsity", "perplexity", "change", "KL", "top-1", "kept mass", "refined",
        "attention", "ratio", "prefill", "ratio",
    )  # fmt: skip
    rows = ["<tr>" + "".join(f"<th>{name}</th>" for name in names) + "</tr>"]
    for name, r in evaluation.modes.items():
        cells = [
            "sdpa (torch)" if name == REFERENCE else name,
            f"<code>{r.sparsity}</code>",
            f"{r.ppl:.3f}",
            f"{r.ppl_change_pct:+.2f} %",
            f"{r.kl:.5f}",
            f"{r.top1_pct:.2f} %",
            f"{100 * r.kept_mass:.2f} %" if math.isfinite(r.kept_mass) else "",
            f"{100 * r.refined_share:.1f} %" if "/r" in r.sparsity else "",
            seconds(r.attention_s),
            f"{evaluation.ratio(name, 'attention_s'):.2f}x",
            seconds(r.prefill_s),
            f"{evaluation.ratio(name, 'prefill_s'):.2f}x",
        ]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return f"<table>{''.join(rows)}</table>"


def page(
    evaluation: Evaluation,
    prompt: str = "",
    continuations: list[Continuation] | None = None,
    map_image: str = "",
) -> str:
    """The report as one HTML page."""
    where, few = machine(evaluation.device), caution(evaluation)
    parts = [
        "<h1>twofour: what 2:4 attention costs and gains</h1>",
        f"<p>{html.escape(evaluation.model)}, {evaluation.windows} window(s) of "
        f"{evaluation.tokens} tokens of {html.escape(evaluation.text or 'a text')} after the first "
        f"{evaluation.skip}. Calibration: "
        f"{html.escape(evaluation.calibration or 'none')}. "
        f"{html.escape(where.get('gpu') or where['cpu'])}, {where['threads']} threads, "
        + ", ".join(f"{k} {v}" for k, v in versions().items())
        + ".</p>",
        _cells(evaluation),
        *([f"<p><b>{html.escape(few)}</b></p>"] if few else []),
        '<p class="note">Perplexity, KL and top-1 are against torch\'s '
        "scaled_dot_product_attention in the same model. Kept mass is the exact softmax mass on "
        "the keys kept, on sampled row blocks. Ratios above 1 are faster.</p>",
        "<h2>Quality by mode</h2>",
        _plots.quality(evaluation.modes),
    ]
    if evaluation.fidelity:
        parts += [
            "<h2>Layer by layer, head by head</h2>",
            _plots.layers_and_heads(evaluation.fidelity),
            '<p class="note">Each layer by itself, from the dense model\'s activations: relative '
            "error of the attention output, and softmax mass on the keys kept.</p>",
        ]
    if map_image:
        parts += ["<h2>What was pruned</h2>", map_image]
    if continuations:
        parts += [
            "<h2>Greedy continuation</h2>",
            f"<blockquote>… {html.escape(prompt)}</blockquote>",
        ]
        for item in continuations:
            name, words = html.escape(item.mode), html.escape(item.text)
            parts.append(f"<p><b>{name}</b></p><blockquote>{words}</blockquote>")
    body = "\n".join(parts)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>twofour report</title>'
        f"<style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def write(
    folder: Path,
    evaluation: Evaluation,
    prompt: str = "",
    continuations: list[Continuation] | None = None,
    map_image: str = "",
) -> tuple[Path, Path]:
    """Writes report.html and report.json, each atomically; returns their paths.

    Raises:
        IoError: the folder cannot be written.
    """
    document = page(evaluation, prompt, continuations, map_image)
    figures = json.dumps(report_json(evaluation), indent=1, allow_nan=False) + "\n"
    paths = folder / "report.html", folder / "report.json"
    _files.write_text(paths[0], document)
    _files.write_text(paths[1], figures)
    return paths
