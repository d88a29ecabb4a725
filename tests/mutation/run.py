#!/usr/bin/env python3
"""Plants one break per semantic rule and shows that the test named for it fails.

Every mutant of mutants_*.py replaces one string in one source file; only what depends on that file
is compiled again, into a temporary folder: the working tree is never written to. Exit code 0 when
every mutant is noticed; 1 when one survives, does not compile, or its string no longer occurs
exactly once.

    python3 tests/mutation/run.py [--only TEXT] [--jobs N] [--keep DIR]
"""

import argparse
import concurrent.futures
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import mutants_blocks
import mutants_cuda
import mutants_order
import mutants_scores
from mutant import Mutant

MUTANTS = [
    *mutants_blocks.MUTANTS,
    *mutants_scores.MUTANTS,
    *mutants_order.MUTANTS,
    *mutants_cuda.MUTANTS,
]
ROOT = Path(__file__).resolve().parents[2]
# Folders of src that the tests need; of cuda what answers for a build without it.
LIBRARY = ("core", "plan", "ops", "ref", "cpu", "cuda", "io", "capi")
TEST_SECONDS = 120  # a mutant that runs longer is stuck, which is noticed as well


@dataclass
class Unit:
    """One compilation: its command, its object, and every project file it read."""

    source: Path
    command: list[str]
    object: Path
    reads: set[Path] = field(default_factory=set)


def run(command: list[str], **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


def configure(work: Path) -> dict[Path, list[str]]:
    """The compile command of every source, as CMake would have it."""
    command = ["cmake", "-S", ROOT, "-B", work / "cmake", "-DTWOFOUR_BUILD_TOOLS=OFF"]
    command += ["-DTWOFOUR_BUILD_TESTS=ON", "-DTWOFOUR_CUDA=OFF"]
    done = run([*command, "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"])
    if done.returncode != 0:
        sys.exit(f"cmake failed:\n{done.stdout}")
    entries = json.loads((work / "cmake" / "compile_commands.json").read_text())
    return {Path(entry["file"]): shlex.split(entry["command"]) for entry in entries}


def cheap(command: list[str], source: Path) -> list[str]:
    """The same compilation without the optimisation, the output and the source."""
    kept = []
    parts = iter(command)
    for part in parts:
        if part == "-o":
            next(parts)
        elif part not in ("-c", str(source)) and not re.fullmatch(r"-O\w*|-W.*|-DNDEBUG", part):
            kept.append(part)
    return [*kept, "-O1"]


def compile_unit(unit: Unit, source: Path, target: Path, overlay: Path | None) -> str:
    """Compiles; returns the compiler's complaint, empty when there is none."""
    command = list(unit.command)
    if overlay:
        command[1:1] = ["-I", str(overlay / "src")]  # seen before the tree's own files
    depends = target.with_suffix(".d")
    done = run([*command, "-MMD", "-MF", depends, "-c", source, "-o", target])
    if done.returncode != 0:
        return done.stdout
    if overlay is None:
        names = shlex.split(depends.read_text().replace("\\\n", " ").split(":", 1)[1])
        unit.reads = {Path(name).resolve() for name in names}
    return ""


def build_base(work: Path, binaries: set[str], jobs: int) -> tuple[list[Unit], dict[str, Unit]]:
    commands = configure(work)
    launcher = [shutil.which("ccache")] if shutil.which("ccache") else []
    library: list[Unit] = []
    tests: dict[str, Unit] = {}
    (work / "base").mkdir(exist_ok=True)
    for source, command in commands.items():
        relative = source.relative_to(ROOT)
        target = work / "base" / ("_".join(relative.parts) + ".o")
        unit = Unit(source, [*launcher, *cheap(command, source)], target)
        if relative.parts[0] == "src" and relative.parts[1] in LIBRARY:
            library.append(unit)
        elif source.stem in binaries:
            tests[source.stem] = unit
    missing = binaries - tests.keys()
    if missing:
        sys.exit(f"no such test source: {', '.join(sorted(missing))}")
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        units = [*library, *tests.values()]
        complaints = pool.map(lambda u: compile_unit(u, u.source, u.object, None), units)
        for unit, complaint in zip(units, complaints, strict=True):
            if complaint:
                sys.exit(f"{unit.source} does not compile:\n{complaint}")
    # ccache is in front of the compiler; an inserted -I belongs after the compiler's name.
    for unit in [*library, *tests.values()]:
        unit.command = unit.command[len(launcher) :]
    return library, tests


def link(objects: list[Path], target: Path) -> str:
    libraries = ["-fopenmp", "-lhwy", "-lgtest", "-lgtest_main", "-lpthread"]
    done = run([os.environ.get("CXX", "c++"), *objects, *libraries, "-o", target])
    return "" if done.returncode == 0 else done.stdout


def run_tests(binary: Path, tests: str) -> tuple[str, int]:
    """What became of the filtered tests, and how many there are."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "GTEST_BRIEF": "1"}
    try:
        done = run([binary, f"--gtest_filter={tests}"], timeout=TEST_SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        return "stuck", 1
    count = re.search(r"(\d+) tests? from \d+ test (?:suite|case)s? ran", done.stdout)
    number = int(count.group(1)) if count else 0
    if done.returncode == 0:
        return ("passed", number)
    return ("failed" if count else "crashed", max(number, 1))


class Judge:
    def __init__(self, work: Path, library: list[Unit], tests: dict[str, Unit]):
        self.work, self.library, self.tests = work, library, tests

    def verdict(self, number: int, mutant: Mutant) -> str:
        """'noticed', or what went wrong."""
        path = ROOT / mutant.file
        text = path.read_text()
        found = text.count(mutant.old)
        if found != 1:
            return f"string found {found} times in {mutant.file}"
        folder = self.work / f"mutant{number}"
        changed = folder / mutant.file
        changed.parent.mkdir(parents=True)
        changed.write_text(text.replace(mutant.old, mutant.new))
        objects = []
        for unit in [*self.library, self.tests[mutant.binary]]:
            if path not in unit.reads:
                objects.append(unit.object)
                continue
            target = folder / unit.object.name
            source = changed if unit.source == path else unit.source
            complaint = compile_unit(unit, source, target, folder)
            if complaint:
                return f"does not compile: {complaint.strip().splitlines()[0]}"
            objects.append(target)
        complaint = link(objects, folder / "test")
        if complaint:
            return f"does not link: {complaint.strip().splitlines()[0]}"
        outcome, _ = run_tests(folder / "test", mutant.tests)
        shutil.rmtree(folder)
        return "SURVIVED" if outcome == "passed" else "noticed"


def check_baseline(work: Path, library: list[Unit], tests: dict[str, Unit], mutants: list[Mutant]):
    """Without a mutant every named test exists and passes."""
    for name, unit in tests.items():
        binary = work / name
        complaint = link([*(u.object for u in library), unit.object], binary)
        if complaint:
            sys.exit(f"{name} does not link:\n{complaint}")
        for tests_of_one in sorted({m.tests for m in mutants if m.binary == name}):
            outcome, count = run_tests(binary, tests_of_one)
            if outcome != "passed" or count == 0:
                sys.exit(f"{name} {tests_of_one}: expected to pass unmutated, {count} {outcome}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", default="", help="mutants whose rule, name, file or tests hold TEXT"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, help="work here and leave it, for a faster second run")
    options = parser.parse_args()
    mutants = [
        m for m in MUTANTS if options.only in " ".join((m.rule, m.name, m.file, m.binary, m.tests))
    ]
    if not mutants:
        parser.error(f"no mutant holds {options.only!r}")
    start = time.monotonic()
    work = options.keep or Path(tempfile.mkdtemp(prefix="twofour-mutation-"))
    work.mkdir(parents=True, exist_ok=True)
    try:
        library, tests = build_base(work, {m.binary for m in mutants}, options.jobs)
        check_baseline(work, library, tests, mutants)
        judge = Judge(work, library, tests)
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            verdicts = list(pool.map(judge.verdict, range(len(mutants)), mutants))
    finally:
        if not options.keep:
            shutil.rmtree(work, ignore_errors=True)
    wide = max(len(m.rule) for m in mutants), max(len(m.name) for m in mutants)
    for mutant, verdict in zip(mutants, verdicts, strict=True):
        print(f"{mutant.rule:{wide[0]}}  {mutant.name:{wide[1]}}  {verdict:8}  {mutant.tests}")
    bad = sum(verdict != "noticed" for verdict in verdicts)
    seconds = time.monotonic() - start
    print(f"{len(mutants) - bad} of {len(mutants)} planted breaks noticed in {seconds:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
