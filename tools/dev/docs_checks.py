"""Checks of the documents: links, paths, the table of rules, the environment variables."""

import re
from collections.abc import Iterator
from pathlib import Path

LINK = re.compile(
    r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\""
)
SOURCE_PATH = re.compile(
    r"`((?:bench|cases|cmake|docs|examples|include|python|requirements|src|tests|tools)/[\w./-]+)`"
)
RULES = 10  # numbered sections of docs/semantics.md


def slug(heading: str) -> str:
    """The anchor that a heading gets on the usual code hosts."""
    text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip().lower())
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines outside fenced code."""
    fenced = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def anchors(path: Path) -> set[str]:
    return {slug(line.lstrip("#")) for _, line in prose(path) if line.startswith("#")}


def link_findings(root: Path, names: list[str]) -> Iterator[str]:
    for name in names:
        source = root / name
        for number, line in prose(source):
            for match in LINK.finditer(line):
                link = next(group for group in match.groups() if group)
                if re.match(r"[a-z]+:", link):  # another site
                    continue
                file, _, anchor = link.partition("#")
                target = source if not file else (source.parent / file).resolve()
                if not target.exists():
                    yield f"{name}:{number}: link to {link}: no such file"
                elif anchor and target.suffix == ".md" and anchor not in anchors(target):
                    yield f"{name}:{number}: link to {link}: no such heading"


def path_findings(root: Path, names: list[str]) -> Iterator[str]:
    for name in names:
        for number, line in prose(root / name):
            for path in SOURCE_PATH.findall(line):
                # A trailing wildcard or example name such as <op> never matches the pattern.
                if not (root / path).exists():
                    yield f"{name}:{number}: `{path}` does not exist"


def semantics_findings(root: Path) -> Iterator[str]:
    """The last table of docs/semantics.md has a row for every rule, and its files exist."""
    name = "docs/semantics.md"
    lines = list(prose(root / name))
    numbered = {int(m[1]) for _, line in lines if (m := re.match(r"## (\d+)\. ", line))}
    if numbered != set(range(1, RULES + 1)):
        yield f"{name}:1: expected rules 1 to {RULES}, found {sorted(numbered)}"
    # Rows whose first cell has rule numbers: "| 3 schedule |", "| 7 refine, 8 drop |".
    table: dict[int, tuple[int, str]] = {}
    for number, line in lines:
        cells = line.split("|")
        if re.match(r"\|\s*\d", line) and len(cells) > 3:
            table |= {int(rule): (number, line) for rule in re.findall(r"\b\d+\b", cells[1])}
    for rule in sorted(numbered - set(table)):
        yield f"{name}:{lines[-1][0]}: the table of files has no row for rule {rule}"
    for rule, (number, line) in table.items():
        files = re.findall(r"`([\w./-]+\.(?:cc|h|py))`", line)
        if not files:
            yield f"{name}:{number}: rule {rule} names no file"
        for file in files:
            if not (root / file).exists() and not (root / "tests/cpp" / file).exists():
                yield f"{name}:{number}: `{file}` does not exist"


def environment_findings(root: Path, names: list[str]) -> Iterator[str]:
    table = "src/core/environment.cc"
    documents = "".join(
        path.read_text(encoding="utf-8") for path in [root / "README.md", *root.glob("docs/*.md")]
    )
    declared = set(re.findall(r'"(TWOFOUR_[A-Z_]+)"', (root / table).read_text(encoding="utf-8")))
    if not declared:
        yield f"{table}:1: no variable found"
    for variable in sorted(declared):
        if f"`{variable}`" not in documents:
            yield f"{table}:1: {variable} is not documented in README.md or docs/"
    # Walking the table, getenv(variable.name), is fine anywhere; a name of one's own is not.
    read = re.compile(
        r'getenv\(\s*"(\w+)"|environ(?:\.get\(|\[)\s*"(TWOFOUR_\w+)"|\$\{(TWOFOUR_\w+):-'
    )
    for name in names:
        if name.startswith("tests/"):
            continue
        for number, line in enumerate((root / name).read_text(encoding="utf-8").splitlines(), 1):
            for match in read.finditer(line):
                variable = next(group for group in match.groups() if group)
                if match[1] and name.endswith((".cc", ".h")):
                    yield f"{name}:{number}: getenv outside {table}"
                elif f"`{variable}`" not in documents:
                    yield f"{name}:{number}: {variable} is not documented in README.md or docs/"
