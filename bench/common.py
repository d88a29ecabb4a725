"""What the benchmarks share: where the project is, what git knows, options, files."""

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
#: What a call may raise: refusals by name, and errors of CUDA.
FAILURES = (RuntimeError, ValueError, NotImplementedError, LookupError)


def git(*arguments: str) -> str:
    """What git says; empty outside of a checkout."""
    try:
        result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return result.stdout.strip()


def modified() -> bool:
    """Whether the measured sources differ from the commit."""
    return bool(git("status", "--porcelain", "--", "src", "include", "python", "bench"))


def write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {text}")
    return value


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def comma_separated(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    def parse(text: str) -> list[Any]:
        return [kind(part) for part in text.split(",") if part]

    parse.__name__ = f"comma-separated {kind.__name__}"  # for argparse's error
    return parse


def run(main: Callable[[], int]) -> NoReturn:
    """Ends the program with main's exit code; what went wrong is one line."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except (*FAILURES, OSError) as error:
        sys.exit(f"bench: {first_line(error)}")
