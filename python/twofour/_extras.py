"""Packages that only parts of twofour need, and what to install when they are missing."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator

from .errors import MissingPackageError

#: By extra, as in pyproject.toml.
PACKAGES = {"hf": ("transformers", "safetensors", "gguf"), "report": ("matplotlib",)}


@contextlib.contextmanager
def needs(extra: str) -> Iterator[None]:
    """Imports in the block come with an extra of the package.

    Raises:
        MissingPackageError: one of them failed; says what to install.
    """
    try:
        yield
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise MissingPackageError(
            f"{reason}; pip install '.[{extra}]' in the folder of twofour installs what is needed"
        ) from None


def require(*extras: str) -> None:
    """Refuses at once what would fail after minutes.

    Raises:
        MissingPackageError: a package of an extra cannot be imported.
    """
    for extra in extras:
        with needs(extra):
            for package in PACKAGES[extra]:
                importlib.import_module(package)
