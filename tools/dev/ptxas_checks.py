"""What ptxas says of the kernels: Hopper products that it serialised, registers that it spilled."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Each makes a kernel wait for every wgmma by itself. C7519 is harmless.
SERIALISED = ("C7511", "C7512", "C7513", "C7514")
# An issue under a condition: known of rows that drop, which are right and slow.
CONDITIONAL = "C7520"

# Spill stores and loads of a thread, in bytes: the worst of nvcc 13.0 and a tenth more.
MAX_SPILL_BYTES = {"timed": 686, "deciding": 986, "debugging": 1716}

# The same of the mma.sync kernel compiled for 9.0, to the byte, in the order of its variants.
MMA_SPILL_BYTES = {
    128: (526, 326, 150, 178, 700, 920, 492, 772),
    96: (118, 142, 182, 118, 292, 508, 232, 120),
    64: (22, 0, 0, 0, 64, 64, 0, 64),
}
MMA_DEBUGGING_SPILL_BYTES = 994


@dataclass(frozen=True)
class Row:
    """A kernel, attention_kernel<number>, by its place in kRows."""

    number: int
    variant: str
    kind: str  # timed, deciding or debugging
    max_spill_bytes: int = 0

    def __str__(self) -> str:
        return f"attention_kernel<{self.number}> ({self.variant}, {self.kind})"


def variants_of(root: Path) -> list[tuple[str, bool]]:
    """kVariants of src/cuda/variants.h: the words of each, and whether its units decide."""
    table = (
        (root / "src/cuda/variants.h")
        .read_text()
        .partition("kVariants[] = {")[2]
        .partition("};")[0]
    )
    variants = []
    for qk, score, flags in re.findall(
        r"\{QKProduct::k(\w+), ScorePattern::k(\w+)([^}]*)\}", table
    ):
        given = zip(("refine", "drop"), flags.split(",")[1:], strict=False)
        chosen = [flag for flag, value in given if "true" in value]
        variants.append((" ".join([qk, score, *chosen]).lower(), bool(chosen)))
    return variants


def rows_of(root: Path) -> list[Row]:
    """kRows of src/cuda/sm90/config.h: variants within two head sizes, two types, and debugging.

    Empty when the file no longer says so.
    """
    text = (root / "src/cuda/sm90/config.h").read_text()
    if "kRowCount = 8 * kVariantCount" not in text:
        return []
    rows = []
    for debugging in (False, True):
        for _ in range(4):
            for variant, decides in variants_of(root):
                kind = "debugging" if debugging else "deciding" if decides else "timed"
                rows.append(Row(len(rows), variant, kind, MAX_SPILL_BYTES[kind]))
    return rows


def mma_rows_of(root: Path) -> list[Row]:
    """kRows of src/cuda/sm80/config.h: variants within three head sizes, two types, and debugging.

    Empty when the file no longer says so.
    """
    text = (root / "src/cuda/sm80/config.h").read_text()
    variants = variants_of(root)
    if "kRowCount = 12 * kVariantCount" not in text or "kHeadDims[] = {128, 96, 64}" not in text:
        return []
    if any(len(budgets) != len(variants) for budgets in MMA_SPILL_BYTES.values()):
        return []
    rows = []
    for debugging in (False, True):
        for _ in range(2):
            for head_dim, budgets in MMA_SPILL_BYTES.items():
                for (variant, decides), budget in zip(variants, budgets, strict=True):
                    kind = "debugging" if debugging else "deciding" if decides else "timed"
                    most = MMA_DEBUGGING_SPILL_BYTES if debugging else budget
                    rows.append(Row(len(rows), f"d{head_dim} {variant}", kind, most))
    return rows


def ptxas_findings(name: str, output: str, rows: list[Row], arch: str) -> Iterator[str]:
    """Of one translation unit `name` and what nvcc -Xptxas -v printed of it for `arch`."""
    row = None
    seen = 0
    ours = False
    for line in output.splitlines():
        if entry := re.search(r"Compiling entry function .* for '(\w+)'", line):
            ours = entry[1] == arch
        if kernel := re.search(r"attention_kernelILi(\d+)E", line):
            number = int(kernel[1])
            row = rows[number] if number < len(rows) else Row(number, "unknown", "timed")
        elif "(C75" in line:
            row = None  # another kernel than that of the line before
        if code := re.search(r"\((C75\d\d)\)", line):
            known = row is not None and "drop" in row.variant
            if code[1] in SERIALISED or (code[1] == CONDITIONAL and not known):
                what = line.partition(f"({code[1]})")[2].strip()
                yield f"{name} {row or 'some kernel'}: {code[1]}: {what}"
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line)
        if spills and ours:
            seen += 1
            spilled = int(spills[1]) + int(spills[2])
            if row is not None and spilled > row.max_spill_bytes:
                yield (f"{name} {row}: {spilled} bytes of spills, at most {row.max_spill_bytes}")
    if seen == 0:
        yield f"{name} ptxas reported no kernel for {arch}"


def rows_named(output: str, arch: str) -> list[int]:
    """Numbers of the kernels that nvcc -Xptxas -v compiled for `arch`."""
    found = re.findall(rf"entry function '\w*attention_kernelILi(\d+)E\w*' for '{arch}'", output)
    return [int(number) for number in found]


def known_notes(output: str, rows: list[Row]) -> list[str]:
    """Kernels with the warning that is known and not a finding."""
    numbers = re.findall(rf"\({CONDITIONAL}\).*attention_kernelILi(\d+)E", output)
    return [f"{CONDITIONAL} in {rows[int(n)]}" for n in numbers if int(n) < len(rows)]
