"""The words of the demo's command line, apart so that they can be read without torch."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from . import _cli

#: About five minutes on two cores. `--tokens 8192` is what the README's table shows.
TOKENS = 4096


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the words; bad ones end the program with one line."""
    parser = _cli.Parser(
        prog="twofour.demo",
        description="The demonstration: a real model reads a real book, with each attention mode.",
    )
    tokens = _cli.count(512, 1 << 20)
    parser.add_argument("--tokens", type=tokens, default=TOKENS, help=f"default {TOKENS}")
    windows = _cli.count(1, 64)
    parser.add_argument("--windows", type=windows, default=1, help="windows of that size")
    _cli.add_source(parser)
    parser.add_argument("--out", default=".", help="folder of report.html and report.json")
    return parser.parse_args(argv)
