"""Loads the operator library, once, when the package is imported."""

from pathlib import Path

import torch

_PATH = Path(__file__).with_name("_twofour.so")


def _load() -> None:
    # Pre-release suffixes do not matter here: 2.10.0a0 has the shims of 2.10.
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    if (major, minor) < (2, 10):
        raise ImportError(f"twofour: expected torch 2.10 or newer, got {torch.__version__}")
    if not _PATH.exists():
        raise ImportError(
            f"twofour: {_PATH} is missing; install the package with `pip install .`, the source "
            "folder alone cannot be imported"
        )
    torch.ops.load_library(_PATH)


_load()

VERSION: str = torch.ops.twofour.version()
