"""Figures of the report, as inline SVG or PNG."""

from __future__ import annotations

import base64
import io
from typing import Any

import torch
from torch import Tensor

from . import _extras
from ._fidelity import Fidelity
from .ops import Trace

_INK, _GRID = "#222222", "#dddddd"
_COLOURS = {
    "sdpa": "#555555",
    "dense": "#7f7f7f",
    "score": "#1f77b4",
    "int8": "#2ca02c",
    "dual": "#d62728",
    "refined": "#9467bd",
}
# What became of a pair: the attention map's second panel.
_FATES = ("not live", "unpruned block", "kept", "kept, recomputed exactly", "pruned", "dropped")
_FATE_COLOURS = ("#ffffff", "#b8c4d0", "#1f77b4", "#9467bd", "#f4b183", "#d62728")


def _pyplot() -> Any:
    with _extras.needs("report"):
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.edgecolor": _INK, "svg.hashsalt": "twofour"})
    return plt


def _inline(figure: Any, kind: str, title: str) -> str:
    """The figure as an <img> whose data is in the page."""
    out = io.BytesIO()
    # Without a date the same figures give the same file.
    metadata = {"Date": None} if kind == "svg" else None
    figure.savefig(out, format=kind, bbox_inches="tight", dpi=110, metadata=metadata)
    _pyplot().close(figure)
    mime = "image/svg+xml" if kind == "svg" else "image/png"
    data = base64.b64encode(out.getvalue()).decode()
    return f'<img alt="{title}" src="data:{mime};base64,{data}">'


def quality(results: dict[str, Any]) -> str:
    """Perplexity by mode, beside its KL."""
    plt = _pyplot()
    names = list(results)
    colours = [_COLOURS.get(name, "#17becf") for name in names]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.8), layout="constrained")
    changes = [results[name].ppl_change_pct for name in names]
    left.bar(names, changes, color=colours)
    left.axhline(0, color=_INK, linewidth=0.8)
    left.margins(y=0.15)
    left.set_ylabel("change of perplexity, %")
    labels = [f"{results[name].ppl:.2f}" for name in names]
    left.bar_label(left.containers[0], labels=labels, fontsize=8)
    right.bar(names, [results[name].kl for name in names], color=colours)
    right.set_ylabel("KL against sdpa, nats per token")
    for axes in (left, right):
        axes.grid(axis="y", color=_GRID)
        axes.set_axisbelow(True)
        axes.tick_params(axis="x", rotation=20)
    return _inline(figure, "svg", "perplexity and KL by mode")


def layers_and_heads(fidelity: dict[str, Fidelity]) -> str:
    """Heat maps: relative output error and kept mass, one column a mode."""
    plt = _pyplot()
    # An exact mode would be two empty panels.
    names = [n for n, f in fidelity.items() if float(f.error.max()) > 1e-4] or list(fidelity)
    figure, axes = plt.subplots(
        2, len(names), figsize=(1.2 + 2.0 * len(names), 6.4), squeeze=False, sharey=True
    )
    worst = max(float(f.error.max()) for f in fidelity.values())
    least = min(float(f.kept_mass.min()) for f in fidelity.values())
    for column, name in enumerate(names):
        found = fidelity[name]
        rows = (
            (found.error, "magma_r", 0.0, worst),
            (found.kept_mass, "viridis", min(least, 0.99), 1.0),
        )
        for row, (values, colours, low, high) in enumerate(rows):
            plot = axes[row][column]
            image = plot.imshow(
                values.numpy(), aspect="auto", cmap=colours, vmin=low, vmax=high, origin="lower"
            )
            plot.set_xlabel("head" if row else "")
            if row == 0:
                plot.set_title(name)
            if column == 0:
                plot.set_ylabel("output error\nlayer" if row == 0 else "kept mass\nlayer")
            if column == len(names) - 1:
                figure.colorbar(image, ax=list(axes[row]), fraction=0.05, pad=0.02)
    return _inline(figure, "svg", "error and kept mass by layer and head")


def fates(traced: Trace, head: int, live: Tensor, block: int) -> Tensor:
    """What became of each pair of one head, as an index into `_FATES`; uint8 [R,N]."""
    rows, keys = live.shape
    key = torch.arange(keys)
    half = 2 * (key // block) + ((key % (block // 2)) >= block // 4).long()
    unit = traced.unit[head][:, half]  # 0 plain, 1 pruned, 2 refined, 3 dropped
    kept = traced.kept[head]
    out = torch.full((rows, keys), 4, dtype=torch.uint8)
    out[unit == 3] = 5
    out[kept & (unit == 1)] = 2
    out[kept & (unit == 2)] = 3
    out[unit == 0] = 1
    out[~live] = 0
    return out


def attention_map(weights: Tensor, what: Tensor, title: str) -> str:
    """One head's attention and what was pruned of it.

    Args:
        weights: exact softmax weights [R,N].
        what: `fates`, [R,N].
    """
    plt = _pyplot()
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.patches import Patch

    figure, (top, bottom) = plt.subplots(2, 1, figsize=(9, 4.2), sharex=True)
    logs = weights.clamp(min=1e-7).log10().numpy()
    image = top.imshow(logs, aspect="auto", cmap="magma", vmin=-6, vmax=0, interpolation="nearest")
    top.set_title(title)
    figure.colorbar(image, ax=[top, bottom], label="log10 attention weight", fraction=0.03)
    colours = ListedColormap(_FATE_COLOURS)
    norm = BoundaryNorm(range(len(_FATES) + 1), len(_FATES))
    bottom.imshow(what.numpy(), aspect="auto", cmap=colours, norm=norm, interpolation="nearest")
    bottom.set_xlabel("key")
    for axes in (top, bottom):
        axes.set_ylabel("row of the sample")
    present = set(what.unique().tolist())
    handles = [
        Patch(facecolor=_FATE_COLOURS[i], edgecolor=_INK, label=name)
        for i, name in enumerate(_FATES)
        if i in present
    ]
    bottom.legend(
        handles=handles, ncols=len(handles), fontsize=7, loc="upper center", frameon=False,
        bbox_to_anchor=(0.5, -0.3),
    )  # fmt: skip
    return _inline(figure, "png", title)
