"""Writes the README's result tables from the committed result files, or checks them (--check).

Tables stand between <!-- NAME:begin --> and <!-- NAME:end --> in README.md: `quality` is made from
docs/results/report.json (./dev demo), `speed` from bench/results/cpu.json (./dev bench cpu).
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"


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


SECTIONS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "quality": ("docs/results/report.json", quality),
    "speed": ("bench/results/cpu.json", speed),
}


def rewritten(text: str) -> tuple[str, list[str]]:
    """The README with its tables made anew, and what stands in the way of that."""
    problems = []
    for name, (source, make) in SECTIONS.items():
        path = ROOT / source
        marked = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        has_marks = marked.search(text) is not None
        if path.exists() and has_marks:
            body = make(json.loads(path.read_text(encoding="utf-8"))) + "\n"
            text = marked.sub(lambda match, body=body: match[1] + body + match[2], text)
        elif path.exists():
            problems.append(f"README.md:1: no <!-- {name}:begin --> table for {source}")
        elif has_marks:
            problems.append(f"README.md:1: the {name} table has no {source} to come from")
    return text, problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 on difference")
    options = parser.parse_args()
    before = README.read_text(encoding="utf-8")
    after, problems = rewritten(before)
    for problem in problems:
        print(problem)
    if options.check and after != before:
        old, new = before.splitlines(), after.splitlines()
        pairs = enumerate(zip(old, new, strict=False), 1)
        line = next((number for number, (a, b) in pairs if a != b), min(len(old), len(new)) + 1)
        print(f"README.md:{line}: differs from the result files; run tools/dev/readme_tables.py")
        return 1
    if not options.check and after != before:
        README.write_text(after, encoding="utf-8")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
