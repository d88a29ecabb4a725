"""Writes the documents' result tables from the committed result files, or checks them (--check).

Tables stand between <!-- NAME:begin --> and <!-- NAME:end -->. In README.md `quality` is made from
docs/results/report.json (./dev demo) and `speed` from bench/results/cpu.json (./dev bench cpu); in
docs/performance.md `h200` from bench/results/nvidia-h200.csv (bench/attention.py).
"""

import argparse
import csv
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def machine_text(machine: dict[str, Any]) -> str:
    """Processor, instruction set and threads, and the GPU when there was one."""
    cpu = machine.get("cpu_target") or machine["cpu"]
    return f"{machine['gpu']}, {cpu}" if machine.get("gpu") else cpu


def command_text(result: dict[str, Any]) -> str:
    return f" Command: `{result['command']}`." if result.get("command") else ""


def share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def refined(entry: dict[str, Any]) -> str:
    return share(entry.get("refined_share")) if "/r" in entry.get("sparsity", "") else ""


def quality(report: dict[str, Any]) -> str:
    modes = report["modes"]
    dense = modes.get("sdpa") or modes["dense"]
    rows = []
    for mode, entry in modes.items():
        rows.append(
            [
                f"`{mode}`",
                f"`{entry['sparsity']}`" if entry.get("sparsity") else "",
                f"{entry['ppl']:.2f}",
                f"{entry['ppl_change_pct']:+.2f} %",
                f"{entry['kl']:.4f}",
                f"{entry['top1_pct']:.1f} %",
                share(entry.get("kept_mass")),
                refined(entry),
                f"{dense['attention_s'] / entry['attention_s']:.2f}x",
                f"{dense['prefill_s'] / entry['prefill_s']:.2f}x",
            ]
        )
    header = ["mode", "sparsity", "perplexity", "change", "KL", "top-1", "kept mass", "refined"]
    header += ["attention", "prefill"]
    caption = (
        f"{report['tokens']:,} tokens; KL and top-1 agreement against the dense model's next-token "
        f"distribution; speed relative to torch's SDPA. {machine_text(report['machine'])}."
        + command_text(report)
    )
    return table(header, rows) + "\n\n" + caption


def speed(bench: dict[str, Any]) -> str:
    rows = [
        [
            f"`{row['mode']}`",
            f"`{row['sparsity']}`",
            row["inputs"],
            str(row["seqlen"]),
            str(row["head_dim"]),
            f"{row['heads']}/{row['kv_heads']}",
            f"**{row['ratio_vs_sdpa']:.2f}x**",
            f"{row['ratio_min']:.2f} to {row['ratio_max']:.2f}",
            refined(row),
        ]
        for row in bench["rows"]
    ]
    header = ["mode", "sparsity", "inputs", "keys", "head_dim", "heads"]
    header += ["against SDPA", "min to max", "refined"]
    threads = sorted({row["threads"] for row in bench["rows"]})
    caption = (
        f"Attention alone, {bench['dtype']}, causal, query/KV heads as given, "
        f"{'/'.join(map(str, threads))} threads, median of {bench['repeats']} turns with torch "
        f"{bench['versions']['torch']}'s SDPA. {machine_text(bench['machine'])}; {bench['date']}."
        + command_text(bench)
    )
    return table(header, rows) + "\n\n" + caption


def h200(rows: list[dict[str, str]]) -> str:
    """The longest sequences of the file: every mode beside the peers of its run."""
    longest = max(int(row["N"]) for row in rows)
    peers = {"cuDNN": "tflops_cudnn", "FA3": "tflops_fa3", "FA2": "tflops_fa2"}
    shapes: dict[tuple[str, str], dict[str, dict[str, dict[str, str]]]] = {}
    for row in rows:
        if int(row["N"]) == longest and row["mode"]:
            shape = shapes.setdefault((row["head_dim"], row["causal"]), {})
            shape.setdefault(row["mode"], {})[row["regime"]] = row
    lines = []
    for (head_dim, causal), modes in shapes.items():
        where = [head_dim, "causal" if causal == "1" else "full"]
        regimes = ("burst", "sustained")
        for mode, by_regime in modes.items():
            cells = [[float(by_regime[r]["tflops"]) for r in regimes]]
            for column in peers.values():
                rate = [
                    float(by_regime[r]["tflops"]) / float(by_regime[r][column]) for r in regimes
                ]
                cells.append(rate)
            texts = ["{:.0f} / {:.0f}".format(*cells[0])]
            texts += ["{:.2f}x / {:.2f}x".format(*pair) for pair in cells[1:]]
            lines.append([*where, f"`{mode}`", *texts])
        some = next(iter(modes.values()))
        for peer, column in peers.items():
            rates = " / ".join(f"{float(some[r][column]):.0f}" for r in regimes)
            lines.append([*where, peer, rates, "", "", ""])
    header = ["head_dim", "mask", "", "TFLOPS", *(f"against {peer}" for peer in peers)]
    return table(header, lines)


# Name of the table: the document, what it is made from, and how.
SECTIONS: dict[str, tuple[str, str, Callable[[Any], str]]] = {
    "quality": ("README.md", "docs/results/report.json", quality),
    "speed": ("README.md", "bench/results/cpu.json", speed),
    "h200": ("docs/performance.md", "bench/results/nvidia-h200.csv", h200),
}


def load(path: Path) -> Any:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file)) if path.suffix == ".csv" else json.load(file)


def rewritten(text: str, document: str) -> tuple[str, list[str]]:
    """A document with its tables made anew, and what stands in the way of that."""
    problems = []
    for name, (where, source, make) in SECTIONS.items():
        if where != document:
            continue
        path = ROOT / source
        marked = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        has_marks = marked.search(text) is not None
        if path.exists() and has_marks:
            body = make(load(path)) + "\n"
            text = marked.sub(lambda match, body=body: match[1] + body + match[2], text)
        elif path.exists():
            problems.append(f"{document}:1: no <!-- {name}:begin --> table for {source}")
        elif has_marks:
            problems.append(f"{document}:1: the {name} table has no {source} to come from")
    return text, problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 on difference")
    options = parser.parse_args()
    failed = False
    for document in dict.fromkeys(where for where, _, _ in SECTIONS.values()):
        path = ROOT / document
        before = path.read_text(encoding="utf-8")
        after, problems = rewritten(before, document)
        for problem in problems:
            print(problem)
        failed = failed or bool(problems)
        if after == before:
            continue
        if not options.check:
            path.write_text(after, encoding="utf-8")
            continue
        old, new = before.splitlines(), after.splitlines()
        pairs = enumerate(zip(old, new, strict=False), 1)
        line = next((number for number, (a, b) in pairs if a != b), min(len(old), len(new)) + 1)
        print(f"{document}:{line}: differs from the result files; run tools/dev/readme_tables.py")
        failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
