"""./dev test: runs every suite, shows its output, and counts.

./dev has built build/release and installed the Python package. The suites that need another build
(sanitizers, fuzz targets) make it here. The last line printed is "N passed, N failed, N skipped".
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RELEASE = ROOT / "build" / "release"
RESULTS = ROOT / "build" / "test"
# Threads that spin while they wait starve each other when tests share the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
JOBS = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count())


@dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped
        )


def run(*command: str | Path, env: dict[str, str] | None = None) -> int:
    """Runs a command of the project with its output shown; its exit code."""
    words = [str(word) for word in command]
    print("$ " + " ".join(words).replace(f"{ROOT}/", ""), flush=True)
    return subprocess.call(words, cwd=ROOT, env=os.environ | (env or {}), stdin=subprocess.DEVNULL)


def read_junit(path: Path, code: int) -> Counts:
    """Counts of a JUnit file; a runner that died without one, or ran nothing, has failed."""
    if not path.exists():
        return Counts(failed=1)
    counts = Counts()
    for case in ElementTree.parse(path).iter("testcase"):
        status = case.get("status", "")
        if case.find("failure") is not None or case.find("error") is not None or status == "fail":
            counts.failed += 1
        elif case.find("skipped") is not None or status in ("notrun", "disabled"):
            counts.skipped += 1
        else:
            counts.passed += 1
    if code != 0 and counts.failed == 0:
        counts.failed = 1
    return counts


def build(preset: str) -> bool:
    return (
        run("cmake", "--preset", preset, "-Wno-dev") == 0
        and run("cmake", "--build", ROOT / "build" / preset, "-j", JOBS) == 0
    )


def ctest(build_dir: Path, filter: str, env: dict[str, str] | None = None) -> Counts:
    report = RESULTS / f"{build_dir.name}.xml"
    report.unlink(missing_ok=True)
    command = ["ctest", "--test-dir", build_dir, "--output-junit", report, "--output-on-failure"]
    command += ["-j", JOBS, "--no-tests=" + ("ignore" if filter else "error")]
    if filter:
        command += ["-R", re.escape(filter)]
    return read_junit(report, run(*command, env=env))


def cpp(filter: str) -> Counts:
    """C++ unit tests"""
    return ctest(RELEASE, filter)


def pytest(folder: str, filter: str) -> Counts:
    report = RESULTS / f"{Path(folder).name}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", folder, f"--junitxml={report}"]
    code = run(*command, *(["-k", filter] if filter else []))
    return read_junit(report, 0 if filter and code == 5 else code)  # 5: no test has that name


def python(filter: str) -> Counts:
    """Python tests"""
    return pytest("tests/python", filter)


def cli(filter: str) -> Counts:
    """command line tests"""
    return pytest("tests/cli", filter)


def asan(filter: str) -> Counts:
    """C++ unit tests under AddressSanitizer and UBSan"""
    if not build("asan"):
        return Counts(failed=1)
    options = {"UBSAN_OPTIONS": "print_stacktrace=1", "ASAN_OPTIONS": "strict_string_checks=1"}
    return ctest(ROOT / "build" / "asan", filter, options)


def verify(filter: str) -> Counts:
    """every kernel over cases/ on every instruction set, against the reference"""
    command = [RELEASE / "tools/twofour", "verify", "--target", "all", "--json"]
    if filter:
        command += ["--filter", filter]
    print("$ " + " ".join(map(str, command)).replace(f"{ROOT}/", ""), flush=True)
    result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        document = json.loads(result.stdout)
        rows, failures = document["rows"], document["failures"]
    except (ValueError, KeyError):
        print(result.stdout)
        return Counts(failed=1)
    for row in rows:
        print(
            f"{row['target']:9} {row['kernel']:42} {row['passed']:5} passed "
            f"{row['failed']:3} failed {row['refused']:5} refused"
        )
    for failure in failures:
        print(f"FAILED {failure['kernel']} on {failure['target']}: {failure['message']}")
        print(f"    {failure['case']}")
    counts = Counts(sum(row["passed"] for row in rows), sum(row["failed"] for row in rows))
    if result.returncode != 0 and counts.failed == 0:
        counts.failed = 1
    return counts


def fuzz(filter: str) -> Counts:
    """file readers: libFuzzer over the committed corpus, fixed seed"""
    report = RESULTS / "fuzz.xml"
    report.unlink(missing_ok=True)
    return read_junit(report, run("tests/fuzz/run.sh", "--output-junit", report))


def mutation(filter: str) -> Counts:
    """planted breaks, one or more per semantic rule, that the C++ tests must notice"""
    command = [sys.executable, ROOT / "tests/mutation/run.py", "--jobs", JOBS]
    command += ["--only", filter] if filter else []
    output = []
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as runner:
        for line in runner.stdout:
            print(line, end="", flush=True)
            output.append(line)
    closing = re.match(r"(\d+) of (\d+) planted breaks noticed", output[-1] if output else "")
    if not closing:
        return Counts(failed=1)  # it could not start: its own message stands above
    noticed, planted = int(closing[1]), int(closing[2])
    return Counts(noticed, planted - noticed + (runner.returncode != 0 and noticed == planted))


SUITES: dict[str, Callable[[str], Counts]] = {
    "cpp": cpp,
    "verify": verify,
    "python": python,
    "cli": cli,
    "fuzz": fuzz,
    "asan": asan,
    "mutation": mutation,
}
QUICK = ("cpp", "python")


def main() -> int:
    names = ", ".join(f"{name} ({suite.__doc__})" for name, suite in SUITES.items())
    parser = argparse.ArgumentParser(
        prog="./dev test", description="Builds and runs every test.", epilog=f"Suites: {names}."
    )
    parser.add_argument("--quick", action="store_true", help=f"only {' and '.join(QUICK)}")
    parser.add_argument("--only", action="append", choices=SUITES, metavar="SUITE", default=[])
    parser.add_argument("--filter", default="", metavar="TEXT", help="tests whose name has TEXT")
    parser.add_argument("--parse-only", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.parse_only:  # ./dev asks before it sets up and builds
        return 0
    chosen = options.only or (QUICK if options.quick or options.filter else tuple(SUITES))

    RESULTS.mkdir(parents=True, exist_ok=True)
    total = Counts()
    lines = []
    for name in chosen:
        print(f"==> {name}: {SUITES[name].__doc__}", flush=True)
        start = time.monotonic()
        counts = SUITES[name](options.filter)
        if counts == Counts() and not options.filter:
            counts = Counts(failed=1)  # a suite that runs nothing proves nothing
        total += counts
        lines.append(
            f"{name:10} {counts.passed:6} passed {counts.failed:4} failed"
            f" {counts.skipped:4} skipped {time.monotonic() - start:8.1f} s"
        )
    print("\n".join(lines))
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped", flush=True)
    return 0 if total.failed == 0 and total.passed > 0 else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("test: interrupted", file=sys.stderr)
        sys.exit(130)
