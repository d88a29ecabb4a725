"""./dev check: budgets, formatting, lint and documents, each a small function that yields findings.

A finding is "file:line: what is wrong" and fails the run. Add a check by writing a generator and
decorating it with @check.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from docs_checks import environment_findings, link_findings, path_findings, semantics_findings
from ptxas_checks import known_notes, mma_rows_of, ptxas_findings, rows_named, rows_of

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "release"
PACKAGE_BUILD = ROOT / "build" / "python-Release"
MAX_LINES = 600
# The budget is 30 s of processor time. What else shares caches and cores can add half of it: the
# check fails beyond that, and names what is over the budget.
COMPILE_SECONDS = 30.0
MAX_COMPILE_SECONDS = 1.5 * COMPILE_SECONDS
MAX_COMPILE_MIB = 2048

CODE = {".h", ".cc", ".c", ".cu", ".cuh", ".py", ".sh", ".cmake", ".md", ".txt", ".yml"}
# Written so that they do not match themselves. A machine's own folders have no place in a project,
# and unfinished work belongs in an issue.
FORBIDDEN = {
    r"\b(?:TO" r"DO|FIX" r"ME|X" r"XX)\b": "unfinished work; finish it or file an issue",
    r"(?<![\w.$}])/(?:work|home|root|Users)/\w": "absolute path of one machine",
    r"<<<<<" r"<< |>>>>>" r">> ": "merge conflict",
}
# clang-tidy reads these; the CPU kernels are compiled once per instruction set and the tests are
# mostly macros, which it cannot follow usefully.
TIDY_DIRS = (
    "src/core/",
    "src/plan/",
    "src/ops/",
    "src/io/",
    "src/capi/",
    "src/layout/",
    "src/ref/",
)

CHECKS: dict[str, Callable[[], Iterator[str]]] = {}


def check(function: Callable[[], Iterator[str]]) -> Callable[[], Iterator[str]]:
    CHECKS[function.__name__] = function
    return function


def run(*command: str | Path, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], cwd=ROOT, capture_output=True, text=True, **options
    )


def files(*suffixes: str) -> list[str]:
    """Tracked and new files that git does not ignore, relative to the root."""
    listed = run("git", "ls-files", "-co", "--exclude-standard", "-z")
    if listed.returncode:
        sys.exit(f"check: needs a git checkout: {listed.stderr.strip()}")
    names = sorted(name for name in listed.stdout.split("\0") if name)
    return [n for n in names if (ROOT / n).is_file() and (not suffixes or n.endswith(suffixes))]


def text_of(name: str) -> str:
    try:
        return (ROOT / name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""  # binary: fixtures, fuzz corpus


def in_parallel(
    function: Callable[[str], list[str]], names: list[str], jobs: int | None = None
) -> Iterator[str]:
    with ThreadPoolExecutor(max_workers=jobs or os.cpu_count()) as pool:
        for findings in pool.map(function, names):
            yield from findings


def located(output: str) -> list[str]:
    """The lines of a tool's output that name a place, relative to the root."""
    lines = [x.removeprefix("./") for x in output.replace(f"{ROOT}/", "").splitlines()]
    return [line for line in lines if re.match(r"[\w./-]+:\d+", line)]


def tool_findings(result: subprocess.CompletedProcess[str], name: str) -> list[str]:
    """Findings of a tool that exits non-zero when it has any."""
    if result.returncode == 0:
        return []
    output = result.stdout + result.stderr
    last = output.strip().splitlines()[-1:] or [f"exit code {result.returncode}"]
    return located(output) or [f"{name}:1: {last[0]}"]


@check
def length() -> Iterator[str]:
    """A file has at most 600 lines."""
    for name in files():
        if Path(name).suffix in CODE:
            lines = text_of(name).count("\n")
            if lines > MAX_LINES:
                yield f"{name}:{lines}: {lines} lines, at most {MAX_LINES}"


@check
def words() -> Iterator[str]:
    """No unfinished work, no paths of one machine, no merge conflicts."""
    patterns = [(re.compile(pattern), why) for pattern, why in FORBIDDEN.items()]
    for name in files():
        for number, line in enumerate(text_of(name).splitlines(), 1):
            for pattern, why in patterns:
                if match := pattern.search(line):
                    yield f'{name}:{number}: "{match.group()}": {why}'


@check
def whitespace() -> Iterator[str]:
    """git diff --check over the whole tree."""
    empty = run("git", "hash-object", "-t", "tree", os.devnull).stdout.strip()
    yield from tool_findings(run("git", "diff", "--check", empty), "git diff --check")


@check
def format_cpp() -> Iterator[str]:
    """clang-format would change nothing."""
    clang_format = Path(sys.executable).parent / "clang-format"
    names = files(".h", ".cc", ".c", ".cu", ".cuh")
    if not names:
        return
    result = run(clang_format, "--dry-run", "-Werror", "--style=file", *names)
    reported = set()
    for finding in tool_findings(result, "clang-format"):
        name = finding.split(":")[0]
        if name not in reported:  # the first place of each file
            reported.add(name)
            yield finding


@check
def format_python() -> Iterator[str]:
    """ruff finds nothing and would reformat nothing."""
    ruff = [Path(sys.executable).parent / "ruff"]
    yield from tool_findings(run(*ruff, "check", "--output-format=concise", "."), "ruff check")
    for line in run(*ruff, "format", "--check", ".").stdout.splitlines():
        if line.startswith("Would reformat: "):
            yield f"{line.removeprefix('Would reformat: ')}:1: not formatted; run ./dev format"


@check
def shell() -> Iterator[str]:
    """shellcheck finds nothing in the scripts."""
    scripts = ["dev", ".ci/run", *files(".sh")]
    yield from tool_findings(run("shellcheck", "-x", "-f", "gcc", *scripts), "shellcheck")


def nvcc_for_hopper() -> list[str]:
    """nvcc with the options of every compilation for sm_90a; empty where there is none."""
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    options = ["-std=c++20", "-arch=sm_90a", "--expt-relaxed-constexpr", "-Iinclude", "-Isrc"]
    return [nvcc, *options] if nvcc else []


@check
def headers() -> Iterator[str]:
    """Every header compiles alone, the C API also as C, those of CUDA where nvcc is."""
    nvcc = nvcc_for_hopper()

    def one_of_cuda(name: str) -> list[str]:
        # Down to PTX: the pass for the host takes five times as long and sees the same names.
        result = run(*nvcc, "-include", name, "-x", "cu", "-ptx", os.devnull, "-o", os.devnull)
        return [f for f in tool_findings(result, name) if "error" in f][:1]

    def one(name: str) -> list[str]:
        if name.startswith("src/cuda/"):
            return one_of_cuda(name) if nvcc else []
        public = name.startswith("include/")
        include = ["-Iinclude"] if public else ["-Iinclude", "-Isrc"]
        strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"] if public else ["-Wall"]
        languages = [("g++", "c++", "c++20")]
        if name == "include/twofour/twofour.h":
            languages.append(("gcc", "c", "c11"))
        findings = []
        for compiler, language, standard in languages:
            command = [compiler, f"-std={standard}", *strict, *include, "-fsyntax-only", "-fopenmp"]
            result = run(*command, "-include", name, "-x", language, os.devnull)
            errors = [f for f in tool_findings(result, name) if "error" in f]
            findings += errors[:1] or tool_findings(result, name)[:1]
        return findings

    names = files(".h", ".cuh")
    yield from in_parallel(one, [n for n in names if n.startswith(("include/", "src/"))])


def compile_commands(build: Path) -> list[dict[str, str]]:
    path = build / "compile_commands.json"
    return json.loads(path.read_text()) if path.exists() else []


def records(build: Path, ending: str) -> Iterator[tuple[str, str | None]]:
    """Of each compile command the source and what the launcher recorded beside its object."""
    for command in compile_commands(build):
        words = shlex.split(command["command"])
        path = Path(command["directory"], words[words.index("-o") + 1] + ending)
        part = next((f" part {w.partition('=')[2]}" for w in words if "TWOFOUR_PART=" in w), "")
        name = os.path.relpath(command["file"], ROOT) + f":1:{part}"
        yield name, path.read_text() if path.exists() else None


@check
def cost() -> Iterator[str]:
    """A translation unit takes at most 30 s of processor time, 45 s when busy, and 2 GiB."""
    for build in (BUILD, PACKAGE_BUILD):
        if not compile_commands(build):
            yield f"{os.path.relpath(build, ROOT)}:1: not built; run ./dev build"
        for name, record in records(build, ".cost"):
            if record is None:
                yield f"{name} no compile cost recorded; run ./dev build"
                continue
            measured = json.loads(record)
            seconds = measured["seconds"]
            if COMPILE_SECONDS < seconds <= MAX_COMPILE_SECONDS:
                print(f"  {name} {seconds} s to compile, {COMPILE_SECONDS:.0f} s wanted")
            if seconds > MAX_COMPILE_SECONDS or measured["mib"] > MAX_COMPILE_MIB:
                yield (
                    f"{name} {seconds} s and {measured['mib']} MiB to compile, "
                    f"at most {MAX_COMPILE_SECONDS:.0f} s and {MAX_COMPILE_MIB} MiB"
                )


@check
def ptxas() -> Iterator[str]:
    """ptxas serialises no product of the Hopper kernels; all spill within budget, where nvcc is."""
    if not nvcc_for_hopper():
        return
    for folder, arch, find in (("sm90", "sm_90a", rows_of), ("sm80", "sm_90", mma_rows_of)):
        rows = find(ROOT)
        if not rows:
            yield f"src/cuda/{folder}/config.h:1: expected the variants that ptxas_checks.py lists"
            continue
        device_code = re.compile(rf"src/cuda/{folder}/\w+\.cu:")
        parts = [r for r in records(BUILD, ".ptxas") if device_code.match(r[0])]
        kernels = [row for _, said in parts for row in rows_named(said or "", arch)]
        if missing := set(range(len(rows))) - set(kernels):
            yield (
                f"src/cuda/{folder}/config.h:1: ptxas reported {len(set(kernels))} of {len(rows)} "
                f"kernels, not {rows[min(missing)]}; run ./dev build"
            )
        for name, said in parts:
            for note in known_notes(said or "", rows):
                print(f"  {name} known: {note}")
            yield from ptxas_findings(name, said or "", rows, arch)


@check
def tidy() -> Iterator[str]:
    """clang-tidy finds nothing outside the kernels and tests."""
    names = [os.path.relpath(c["file"], ROOT) for c in compile_commands(BUILD)]
    names = sorted(name for name in names if name.startswith(TIDY_DIRS))
    if not names:
        yield "build/release:1: not built; run ./dev build"

    def one(name: str) -> list[str]:
        result = run("clang-tidy", "--quiet", "-p", BUILD, name)
        return [f for f in located(result.stdout) if re.search(r" (?:warning|error): ", f)]

    yield from dict.fromkeys(in_parallel(one, names))  # a header's finding once


@check
def links() -> Iterator[str]:
    """Links between documents resolve, anchors too."""
    yield from link_findings(ROOT, files(".md"))


@check
def paths() -> Iterator[str]:
    """Source paths that documents name exist."""
    yield from path_findings(ROOT, files(".md"))


@check
def semantics() -> Iterator[str]:
    """docs/semantics.md names an existing file for every rule."""
    yield from semantics_findings(ROOT)


@check
def environment() -> Iterator[str]:
    """Every variable that is read stands in the table and in the documents, and only there."""
    yield from environment_findings(ROOT, [*files(".h", ".cc", ".c", ".py", ".sh"), "dev"])


@check
def figures() -> Iterator[str]:
    """The README's tables are those of the committed result files."""
    result = run(sys.executable, ROOT / "tools/dev/readme_tables.py", "--check")
    yield from tool_findings(result, "README.md")


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev check", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="checks to run (default: all)")
    parser.add_argument("--list", action="store_true", help="name the checks and stop")
    parser.add_argument("--parse-only", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.list:
        for name, function in CHECKS.items():
            print(f"{name:14} {function.__doc__}")
        return 0
    unknown = [name for name in options.names if name not in CHECKS]
    if unknown:
        parser.error(f"unknown check {unknown[0]}; --list names them")
    if options.parse_only:  # ./dev asks before it sets up and builds
        return 0
    failed = 0
    for name in options.names or CHECKS:
        start = time.monotonic()
        findings = list(CHECKS[name]())
        verdict = f"{len(findings)} findings" if findings else "ok"
        print(f"check {name:14} {verdict} ({time.monotonic() - start:.1f} s)", flush=True)
        for finding in findings:
            print(f"  {finding}")
        failed += bool(findings)
    print(f"check: {failed} failed" if failed else "check: all ok")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
