"""What a planted break is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`old`, which occurs exactly once in `file`, becomes `new`; then `tests` must fail."""

    rule: str  # of docs/semantics.md, or cuda
    name: str
    file: str
    old: str
    new: str
    binary: str
    tests: str  # a GoogleTest filter


def group(file: str, binary: str, rows: list[tuple[str, str, str, str, str]]) -> list[Mutant]:
    """Rows of (rule, name, old, new, tests) that share a source file and a test binary."""
    return [
        Mutant(rule, name, file, old, new, binary, tests) for rule, name, old, new, tests in rows
    ]
