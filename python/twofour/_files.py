"""Cache directory, atomic writing, and checks of downloaded files."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .errors import IoError

# How apt-get and pip say that a server was not reached. The error they end with blames the package.
_NOT_FETCHED = re.compile(
    r"failed to (fetch|establish|resolve)|could not (resolve|connect)|(unable to|cannot) connect"
    r"|temporary failure|timed out|unreachable|connection (aborted|refused|reset)",
    re.IGNORECASE,
)


def cache_dir() -> Path:
    """``$TWOFOUR_CACHE``, else ``$XDG_CACHE_HOME/twofour``, else ``~/.cache/twofour``; created."""
    chosen = os.environ.get("TWOFOUR_CACHE")
    if not chosen:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        chosen = os.path.join(base, "twofour")
    path = Path(chosen)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise IoError(
            f"cannot create the cache directory {path}: a file has that name; TWOFOUR_CACHE names "
            "another"
        ) from None
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


@contextlib.contextmanager
def folder(path: str | os.PathLike, name: str) -> Iterator[Path]:
    """Makes a folder for the files that the block writes; a block that fails leaves none behind.

    Args:
        name: of the option that gave the path, for the errors.

    Raises:
        IoError: it cannot be made, or not be written to.
    """
    path = Path(path)
    made = [p for p in (path, *path.parents) if not p.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _remove_empty(made)
        raise IoError(f"{name} {path}: {error.strerror}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise IoError(f"{name} {path}: expected a folder that can be written to")
    try:
        yield path
    except BaseException:
        _remove_empty(made)
        raise


def _remove_empty(folders: list[Path]) -> None:
    for path in folders:
        with contextlib.suppress(OSError):  # it holds something, or was not made
            path.rmdir()


def sha256(path: str | os.PathLike) -> str:
    """Hex digest of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run_tool(
    command: list[str], what: str, hint: str, cwd: Path | None = None, earlier: str = ""
) -> str:
    """Runs an outside program; a failure becomes one line: what was wanted, why not, what to do.

    Args:
        earlier: what a step before this one said; a failed fetch in it explains this failure.

    Returns:
        What it said.

    Raises:
        IoError: the program is missing or failed.
    """
    name = "pip" if command[1:3] == ["-m", "pip"] else command[0]
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, errors="replace",
            env=os.environ | {"LC_ALL": "C"},  # its messages are read below
        )  # fmt: skip
    except FileNotFoundError:
        raise IoError(f"cannot get {what}: `{name}` is not installed; {hint}") from None
    said = f"{done.stdout}\n{done.stderr}"
    if done.returncode == 0:
        return said
    if fetch := next(
        filter(None, map(_NOT_FETCHED.search, f"{earlier}\n{said}".splitlines())), None
    ):
        reason = f"{name} could not fetch from the network: {fetch.string[fetch.start() :].strip()}"
        raise IoError(f"cannot get {what}: {reason}; connect to the network and try again, {hint}")
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error", "e:"))] or lines
    reason = errors[-1] if errors else f"exit code {done.returncode}"
    raise IoError(f"cannot get {what}: {name} said: {reason}; {hint}")
