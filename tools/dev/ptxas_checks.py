"""What ptxas says of the Hopper kernels: products that it serialised, registers that it spilled."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Each makes a kernel wait for every wgmma by itself. C7519 is harmless.
SERIALISED = ("C7511", "C7512", "C7513", "C7514")
# An issue under a condition: known of rows that drop, which are right and slow.
CONDITIONAL = "C7520"

# Spill stores and loads of a thread, in bytes: the worst of nvcc 13.0 and a tenth more.
MAX_SPILL_BYTES = {"timed": 766, "deciding": 1967, "debugging": 2544}


@dataclass(frozen=True)
class Row:
    """A kernel, attention_kernel<number>, by its place in kRows."""

    number: int
    variant: str
    kind: str  # of MAX_SPILL_BYTES

    def __str__(self) -> str:
        return f"attention_kernel<{self.number}> ({self.variant}, {self.kind})"


def rows_of(root: Path) -> list[Row]:
    """kRows of src/cuda/sm90/config.h: variants within two head sizes, two types, and debugging.

    Empty when the file no longer says so.
    """
    text = (root / "src/cuda/sm90/config.h").read_text()
    table = text.partition("kVariants[] = {")[2].partition("};")[0]
    variants = re.findall(r"\{QKProduct::k(\w+), ScorePattern::k(\w+)([^}]*)\}", table)
    if "kRowCount = 8 * kVariantCount" not in text:
        return []
    rows = []
    for debugging in (False, True):
        for _ in range(4):
            for qk, score, flags in variants:
                given = zip(("refine", "drop"), flags.split(",")[1:], strict=False)
                chosen = [flag for flag, value in given if "true" in value]
                kind = "debugging" if debugging else "deciding" if chosen else "timed"
                rows.append(Row(len(rows), " ".join([qk, score, *chosen]).lower(), kind))
    return rows


def ptxas_findings(name: str, output: str, rows: list[Row]) -> Iterator[str]:
    """Of one translation unit `name` and what nvcc -Xptxas -v printed."""
    row = None
    seen = 0
    for line in output.splitlines():
        if kernel := re.search(r"attention_kernelILi(\d+)E", line):
            number = int(kernel[1])
            row = rows[number] if number < len(rows) else Row(number, "unknown", "timed")
        elif "(C75" in line:
            row = None  # another kernel than that of the line before
        if code := re.search(r"\((C75\d\d)\)", line):
            known = row is not None and "drop" in row.variant
            if code[1] in SERIALISED or (code[1] == CONDITIONAL and not known):
                what = line.partition(f"({code[1]})")[2].strip()
                yield f"{name}:1: {row or 'some kernel'}: {code[1]}: {what}"
        if spills := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            seen += 1
            spilled = int(spills[1]) + int(spills[2])
            if row is not None and spilled > MAX_SPILL_BYTES[row.kind]:
                yield (
                    f"{name}:1: {row}: {spilled} bytes of spills, "
                    f"at most {MAX_SPILL_BYTES[row.kind]}"
                )
    if seen == 0:
        yield f"{name}:1: ptxas reported no kernel"


def known_notes(output: str, rows: list[Row]) -> list[str]:
    """Kernels with the warning that is known and not a finding."""
    numbers = re.findall(rf"\({CONDITIONAL}\).*attention_kernelILi(\d+)E", output)
    return [f"{CONDITIONAL} in {rows[int(n)]}" for n in numbers if int(n) < len(rows)]
