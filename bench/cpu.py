"""./dev bench cpu: twofour.attention in every mode against torch's SDPA, on the CPU.

Both run in this process, on the same tensors, with the same threads, turn by turn (SDPA, mode,
SDPA, mode, ...), so that a slow moment hits both. A ratio is the time of SDPA over the time of the
call after it; the median and the extremes over the repetitions are reported. Preparing K
(quantisation, change of basis) is inside the timed call.

Inputs are random (scores of standard deviation --score-std) and, at head_dim 64, captured from a
real model on a real text (bench/inputs.py). Only `refined` depends on the values: the share of
units that it recomputed stands in every row.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import twofour

sys.path.insert(0, str(Path(__file__).resolve().parent))
import inputs  # neighbours, not a package
from common import ROOT, git, modified, positive, write_atomically


def seconds_of(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def measure(mode: str, problems: list[inputs.Problem], repeats: int, source: str) -> dict[str, Any]:
    """One row: all problems are one repetition, SDPA and the mode in turn for each."""
    seqlen, head_dim = problems[0].q.shape[2:]
    sparsity = twofour.Sparsity.parse(mode, head_dim)
    counts = torch.zeros(len(twofour.STATS_FIELDS), dtype=torch.int64)
    calls = []
    for problem in problems:
        expanded = problem.expanded()

        def sdpa(qkv: tuple = expanded) -> torch.Tensor:
            return F.scaled_dot_product_attention(*qkv, is_causal=True)

        call = {"mode": sparsity, "causal": True, "layout": "bhmd"}
        call["calibration"] = problem.basis if sparsity.needs_calibration else None

        def ours(problem: inputs.Problem = problem, call: dict = call) -> torch.Tensor:
            return twofour.attention(problem.q, problem.k, problem.v, **call)

        sdpa()
        _, stats = twofour.attention(*problem[:3], return_stats=True, **call)  # warms up as well
        counts += stats
        calls.append((sdpa, ours))
    pairs = []
    for _ in range(repeats):
        times = [(seconds_of(sdpa), seconds_of(ours)) for sdpa, ours in calls]
        pairs.append(tuple(sum(column) for column in zip(*times, strict=True)))
    ratios = [a / b for a, b in pairs]
    sdpa_s, ours_s = (statistics.median(times) for times in zip(*pairs, strict=True))
    stats = dict(zip(twofour.STATS_FIELDS, counts.tolist(), strict=True))
    flop = 4 * stats["live_pairs"] * head_dim  # two products, two operations per multiply-add
    units = max(stats["units"], 1)
    return {
        "mode": mode,
        "sparsity": str(sparsity),
        "inputs": source,
        "seqlen": seqlen,
        "head_dim": head_dim,
        "heads": problems[0].q.size(1),
        "kv_heads": problems[0].k.size(1),
        "threads": torch.get_num_threads(),
        "ratio_vs_sdpa": round(statistics.median(ratios), 3),
        "ratio_min": round(min(ratios), 3),
        "ratio_max": round(max(ratios), 3),
        "seconds": round(ours_s, 5),
        "sdpa_seconds": round(sdpa_s, 5),
        "sdpa_gflops": round(flop / sdpa_s / 1e9, 1),
        "dense_equivalent_gflops": round(flop / ours_s / 1e9, 1),
        "pruned_share": round(stats["pruned_pairs"] / stats["live_pairs"], 4),
        "refined_share": round(stats["refined"] / units, 4),
        "dropped_share": round(stats["dropped"] / units, 4),
        "kernel": twofour.explain(*problems[0][:3], **call).kernel,
    }


def facts(options: argparse.Namespace) -> dict[str, Any]:
    """Where and how the figures were made."""
    return {
        "machine": {
            "cpu": twofour.available()["cpu"].detail,
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "versions": {
            "twofour": twofour.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": git("rev-parse", "--short", "HEAD"),
        "modified": modified(),
        "command": " ".join(["./dev bench cpu", *sys.argv[1:]]),
        "dtype": "fp32",
        "causal": True,
        "captured_layers": list(inputs.LAYERS),
        "score_std": options.score_std,
        "repeats": options.repeats,
    }


def add_quality(rows: list[dict[str, Any]], report: Path) -> None:
    """Puts an evaluation's figures beside the speed of the very same sparsity."""
    modes = json.loads(report.read_text())["modes"]
    quality = {entry["sparsity"]: entry for entry in modes.values() if "sparsity" in entry}
    for row in rows:
        if entry := quality.get(row["sparsity"]):
            row["quality"] = {
                name: entry[name] for name in ("ppl_change_pct", "kl", "top1_pct", "kept_mass")
            }


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench cpu", description=__doc__.splitlines()[0])
    many = {"nargs": "+", "metavar": "N"}
    parser.add_argument("--seqlen", type=positive, default=[8192], **many)
    parser.add_argument("--head-dim", type=positive, default=[64, 128], **many)
    parser.add_argument("--modes", nargs="+", default=list(twofour.MODES), metavar="MODE")
    parser.add_argument("--heads", type=positive, default=4)
    parser.add_argument("--kv-heads", type=positive, help="default: as many as --heads")
    parser.add_argument("--threads", type=positive, help="default: what torch would use")
    parser.add_argument("--repeats", type=positive, default=7)
    parser.add_argument("--score-std", type=float, default=8.0)
    captured = {"action": argparse.BooleanOptionalAction, "default": True}
    parser.add_argument("--captured", **captured, help="also time a real model's activations")
    parser.add_argument("--report", type=Path, help="report.json whose quality figures to add")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/cpu.json")
    options = parser.parse_args()
    options.kv_heads = options.kv_heads or options.heads
    if options.heads % options.kv_heads:
        parser.error(f"--heads: expected a multiple of {options.kv_heads}, got {options.heads}")
    if options.report and not options.report.is_file():
        parser.error(f"--report: {options.report}: no such file")
    return options


def main() -> int:
    options = parse_options()
    if options.threads:
        torch.set_num_threads(options.threads)
    print(f"{'mode':8} {'sparsity':24} {'inputs':8} {'seqlen':>6} {'D':>4}  ratio to SDPA")
    rows = []

    def add(problems: list[inputs.Problem], source: str) -> None:
        for mode in options.modes:
            row = measure(mode, problems, options.repeats, source)
            rows.append(row)
            print(
                f"{mode:8} {row['sparsity']:24} {source:8} {row['seqlen']:6} {row['head_dim']:4}  "
                f"{row['ratio_vs_sdpa']:.2f} ({row['ratio_min']:.2f} .. {row['ratio_max']:.2f})  "
                f"{row['dense_equivalent_gflops']:.0f} GFLOPS, SDPA {row['sdpa_gflops']:.0f}; "
                f"refined {row['refined_share']:.0%}",
                flush=True,
            )

    shape = options.heads, options.kv_heads, options.score_std
    with torch.no_grad():
        for seqlen in options.seqlen:
            if options.captured and 64 in options.head_dim:
                add(inputs.captured_problems(seqlen), "captured")
            for head_dim in options.head_dim:
                add([inputs.random_problem(seqlen, head_dim, *shape)], "random")
    if options.report:
        add_quality(rows, options.report)
    write_atomically(options.out, json.dumps(facts(options) | {"rows": rows}, indent=1) + "\n")
    print(f"written: {options.out}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except (OSError, ValueError, NotImplementedError) as error:
        sys.exit(f"bench: {error}")
