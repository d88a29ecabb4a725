"""Cache directory, atomic writing, and checks of downloaded files."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .errors import IoError


def cache_dir() -> Path:
    """``$TWOFOUR_CACHE``, else ``$XDG_CACHE_HOME/twofour``, else ``~/.cache/twofour``; created."""
    chosen = os.environ.get("TWOFOUR_CACHE")
    if not chosen:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        chosen = os.path.join(base, "twofour")
    path = Path(chosen)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise IoError(
            f"cannot create the cache directory {path}: {error.strerror}; TWOFOUR_CACHE names "
            "another"
        ) from error
    return path


@contextlib.contextmanager
def atomic(path: str | os.PathLike) -> Iterator[Path]:
    """Yields a temporary path beside ``path``; it becomes ``path`` when the block succeeds.

    On any exception, Ctrl-C included, nothing is left behind and an older ``path`` is untouched.
    """
    path = Path(path)
    try:
        fd, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    except OSError as error:
        raise IoError(f"cannot write in {path.parent}: {error.strerror}") from error
    os.close(fd)
    part = Path(name)
    try:
        yield part
        # mkstemp makes the file private; give it what a plain open() would have given.
        umask = os.umask(0)
        os.umask(umask)
        part.chmod(0o666 & ~umask)
        os.replace(part, path)
    except OSError as error:
        if error.filename is None and error.strerror:
            raise IoError(f"cannot write {path}: {error.strerror}") from error
        raise
    finally:
        part.unlink(missing_ok=True)


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes UTF-8 text atomically."""
    with atomic(path) as part:
        part.write_bytes(text.encode())


def sha256(path: str | os.PathLike) -> str:
    """Hex digest of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run_tool(command: list[str], what: str, hint: str, cwd: Path | None = None) -> None:
    """Runs an outside program; a failure becomes one line: what was wanted, why not, what to do.

    Raises:
        IoError: the program is missing or failed.
    """
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, errors="replace")
    except FileNotFoundError:
        raise IoError(f"cannot get {what}: `{command[0]}` is not installed; {hint}") from None
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith(("error", "e:"))] or lines
        reason = errors[-1] if errors else f"exit code {done.returncode}"
        raise IoError(f"cannot get {what}: {command[0]} said: {reason}; {hint}")
