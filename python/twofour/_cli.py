"""What the command lines share: one clear line for every error, progress on stderr."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from . import _start
from .errors import TwofourError

#: Exit codes: fine, bad usage or input; interrupted is `_start.INTERRUPTED`.
OK, BAD_INPUT = 0, 2


class Parser(argparse.ArgumentParser):
    """Usage errors as one line with exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message}; --help lists the options\n")


def run(prog: str, main: Callable[[Sequence[str]], None], argv: Sequence[str] | None) -> int:
    """Runs a command; what the user can correct becomes one line on stderr and exit code 2."""
    try:
        _start.hand_over()
        main(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return OK
    except KeyboardInterrupt:
        print(_start.line(prog), end="", file=sys.stderr)
        return _start.INTERRUPTED
    except BrokenPipeError:
        # The reader has gone; keep the interpreter from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except MemoryError as error:
        print(f"{prog}: out of memory: {error}", file=sys.stderr)
        return BAD_INPUT
    except (TwofourError, OSError) as error:
        text = " ".join(str(error).split())
        print(f"{prog}: {text}", file=sys.stderr)
        return BAD_INPUT


class Progress:
    """Steps on stderr: on a terminal one line that is rewritten, else one line a step."""

    def __init__(self, quiet: bool = False):
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._start = time.monotonic()

    def __call__(self, text: str) -> None:
        """Shows what is being done now."""
        if self._quiet:
            return
        line = f"[{time.monotonic() - self._start:5.0f} s] {text}"
        end = "" if self._terminal else "\n"
        print(f"\r\x1b[K{line}" if self._terminal else line, end=end, file=sys.stderr, flush=True)

    def done(self) -> None:
        """Clears the line, so that results stand alone."""
        if self._terminal and not self._quiet:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def progress(quiet: bool = False) -> Iterator[Progress]:
    """A `Progress` whose line is cleared whatever happens."""
    shown = Progress(quiet)
    try:
        yield shown
    finally:
        shown.done()


def add_source(parser: argparse.ArgumentParser) -> None:
    """The options of every command that loads a model and reads a text."""
    parser.add_argument("--model", help="model directory or .gguf file (default SmolLM2)")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: CUDA where it can be used)")
    parser.add_argument("--text", help="UTF-8 text file (default Jane Austen's novels)")


def add_modes(parser: argparse.ArgumentParser) -> None:
    """The options of every command that compares modes with the reference."""
    from .sparsity import MODES  # brings torch, which ./dev demo has yet to install

    parser.add_argument("--modes", default=",".join(MODES), help="comma-separated modes")
    parser.add_argument("--calibration", help="file of twofour.calibrate, for dual and refined")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")


def modes_of(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[str]:
    """The names given to --modes, each known: said before minutes of work.

    Raises:
        InvalidArgumentError: a mode that is not understood.
    """
    from ._hf_modes import SDPA
    from .sparsity import Sparsity

    names = [name.strip() for name in options.modes.split(",") if name.strip()]
    if not names:
        parser.error(f"--modes: expected at least one mode, got {options.modes!r}")
    for name in names:
        if name != SDPA:
            Sparsity.parse(name)
    return names


def count(low: int, high: int) -> Callable[[str], int]:
    """An argparse type: an integer in low..high. argparse names the option."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"expected {low}..{high}, got {value}")
        return value

    return parse


def counts(low: int, high: int) -> Callable[[str], list[int]]:
    """An argparse type: comma-separated integers in low..high, each once."""
    one = count(low, high)
    return lambda text: list(dict.fromkeys(one(part) for part in text.split(",")))
