"""What the GPU benchmark writes: rows of a CSV file, a table of ratios and a plot."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from common import write_atomically

REGIMES = ("burst", "sustained")
_COLOURS = {
    "fa2": "#8c8c8c", "cudnn": "#4d4d4d", "fa3": "#000000", "flex": "#bcbd22",
    "dense": "#ff7f0e", "score": "#1f77b4", "int8": "#2ca02c", "dual": "#d62728",
    "refined": "#9467bd",
}  # fmt: skip


@dataclass
class Row:
    """One contender in one regime on one shape; the names are those of the columns.

    Rates are dense-equivalent TFLOPS: what the full attention would have taken, over the time. A
    value that was not measured is None, an empty field.
    """

    date: str
    kernel: str  # a peer's name, or twofour's kernel id
    mode: str  # empty for a peer
    sparsity: str  # canonical string, empty for a peer
    dtype: str
    head_dim: int
    causal: int
    B: int
    Hq: int
    Hkv: int
    M: int
    N: int
    regime: str
    tflops: float
    tflops_fa2: float | None
    tflops_cudnn: float | None
    tflops_fa3: float | None
    err_same: float | None
    err_exact: float | None
    commit: str
    tflops_min: float
    tflops_max: float
    inputs: str  # random, forced (units made to be refined), or the name of a file
    transform: str
    launch: str  # raw or graph
    refined_share: float | None
    dropped_share: float | None
    clock_mhz: int | None
    power_w: int | None

    @property
    def label(self) -> str:
        return self.mode or self.kernel

    def ratio(self, peer: str) -> float | None:
        base = getattr(self, f"tflops_{peer}")
        return self.tflops / base if base else None


COLUMNS = [field.name for field in fields(Row)]


def flops(batch: int, heads: int, rows: int, keys: int, head_dim: int, causal: bool) -> float:
    """Of dense attention: two products of two operations per multiply-add, half of it if causal."""
    return 4.0 * batch * heads * rows * keys * head_dim / (2 if causal else 1)


def cell(value: float | int | str | None) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def csv_text(rows: list[Row], header: bool) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if header:
        writer.writerow(COLUMNS)
    writer.writerows([cell(value) for value in asdict(row).values()] for row in rows)
    return out.getvalue()


def check_columns(path: Path) -> None:
    """Rows of another version of this benchmark are not mixed with these.

    Raises:
        ValueError: the file has other columns.
    """
    if not path.exists():
        return
    with path.open(newline="") as file:
        found = next(csv.reader(file), [])
    if found != COLUMNS:
        raise ValueError(
            f"{path}: expected the columns {','.join(COLUMNS)}, got {','.join(found) or 'none'}; "
            "move the file away or choose another with --out"
        )


def append(path: Path, rows: list[Row]) -> None:
    """Adds rows to the file; a stopped run leaves it whole."""
    check_columns(path)
    old = path.read_text() if path.exists() else ""
    write_atomically(path, old + csv_text(rows, header=not old))


def table(rows: list[Row]) -> str:
    """twofour's rows with their ratios to each peer, burst / sustained."""
    peers = ("cudnn", "fa3", "fa2")
    lines = [
        f"{'dtype':5} {'D':>3} {'mask':6} {'B x N':>10} {'mode':8}  {'TFLOPS':>11}  "
        + "  ".join(f"{'x ' + peer:>11}" for peer in peers)
        + f"  {'err_same':>8} {'err_exact':>9}"
    ]
    groups: dict[tuple, dict[str, Row]] = {}
    for row in rows:
        if row.mode:
            shape = (row.dtype, row.head_dim, row.causal, row.B, row.N, row.inputs)
            groups.setdefault((*shape, row.mode), {})[row.regime] = row
    for group in groups.values():
        pair = [group.get(regime) for regime in REGIMES]
        some = next(iter(group.values()))
        rates = " / ".join(f"{row.tflops:.0f}" if row else "-" for row in pair)
        ratios = []
        for peer in peers:
            values = [row.ratio(peer) if row else None for row in pair]
            ratios.append(" / ".join("-" if v is None else f"{v:.2f}" for v in values))
        lines.append(
            f"{some.dtype:5} {some.head_dim:3} {'causal' if some.causal else 'full':6} "
            f"{f'{some.B} x {some.N}':>10} {some.mode:8}  {rates:>11}  "
            + "  ".join(f"{ratio:>11}" for ratio in ratios)
            + f"  {cell(some.err_same):>8} {cell(some.err_exact):>9}"
        )
    return "\n".join(lines)


def plot(rows: list[Row], path: Path, title: str) -> None:
    """TFLOPS by length, a panel for each head_dim and mask; hollow markers ran as CUDA graphs.

    Raises:
        ImportError: there is no matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "svg.hashsalt": "twofour"})
    panels = sorted({(row.dtype, row.head_dim, row.causal, row.inputs) for row in rows})
    figure, axes = plt.subplots(
        len(panels), len(REGIMES), figsize=(9, 0.6 + 2.8 * len(panels)), squeeze=False,
        layout="constrained", sharex=True, sharey="row",
    )  # fmt: skip
    labels = list(dict.fromkeys(row.label for row in rows))
    for line, panel in zip(axes, panels, strict=True):
        for plot_of, regime in zip(line, REGIMES, strict=True):
            for label in labels:
                points = sorted(
                    (row.N, row.tflops, row.launch)
                    for row in rows
                    if (row.dtype, row.head_dim, row.causal, row.inputs) == panel
                    and (row.regime, row.label) == (regime, label)
                )
                colour = _COLOURS.get(label, "#17becf")
                dashes = "-" if any(r.mode for r in rows if r.label == label) else "--"
                x, y = [p[0] for p in points], [p[1] for p in points]
                plot_of.plot(x, y, dashes, color=colour, label=label, linewidth=1.2)
                faces = ["white" if p[2] == "graph" else colour for p in points]
                plot_of.scatter(x, y, c=faces, edgecolors=colour, s=18, zorder=3)
            dtype, head_dim, causal, source = panel
            mask = "causal" if causal else "full"
            plot_of.set_title(f"{regime}: {dtype}, head_dim {head_dim}, {mask}, {source}")
            plot_of.set_xscale("log", base=2)
            plot_of.set_ylim(bottom=0)
            plot_of.grid(color="#dddddd")
            plot_of.set_ylabel("dense-equivalent TFLOPS")
    for plot_of in axes[-1]:
        plot_of.set_xlabel("keys")
    figure.suptitle(title)
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    plt.close(figure)
    write_atomically(path, out.getvalue())
