"""The evaluation text: Jane Austen's six novels, or the user's own file.

The novels come from the Debian/Ubuntu package ``r-cran-janeaustenr`` (public-domain texts of
Project Gutenberg), are joined in alphabetical order of their names in the package, and are kept as
plain UTF-8 in the cache. The digest below is of that text, so it holds for every rebuild of the
package that carries the same words.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from . import _files, _rdata
from .errors import CorruptError, InvalidArgumentError, IoError, NotFoundError

PACKAGE = "r-cran-janeaustenr"
NOVELS = (
    "emma",
    "mansfieldpark",
    "northangerabbey",
    "persuasion",
    "prideprejudice",
    "sensesensibility",
)
SHA256 = "ae4140c6e5ab543cc81f68358120258f0935ac9e27a30f44a7a564b349307867"
# A text alone does not do without a network: the default model is fetched as well.
_HINT = (
    "or give a text of your own with --text FILE (and a model with --model DIR, unless the default "
    "one is in the cache)"
)


def join_novels(package_root: Path) -> str:
    """The text of an unpacked package: lines joined by newlines, novels by an empty line.

    Raises:
        CorruptError: a novel is missing, or the data is damaged.
    """
    stem = package_root / "usr/lib/R/site-library/janeaustenr/data/Rdata"
    found = _rdata.character_vectors(stem)
    missing = [name for name in NOVELS if name not in found]
    if missing:
        raise CorruptError(
            f"{PACKAGE}: expected the novels {', '.join(NOVELS)}; missing: {missing}"
        )
    return "\n\n".join("\n".join(found[name]) for name in NOVELS)


def _download(into: Path) -> Path:
    """Fetches the package into a directory, with private package lists when the system has none."""
    what = f"the Debian package {PACKAGE}"

    def apt(*arguments: str, earlier: str = "") -> str:
        return _files.run_tool(["apt-get", *arguments], what, _HINT, cwd=into, earlier=earlier)

    try:
        apt("download", PACKAGE)
    except IoError:
        # A fresh container has no package lists, and a plain user may not fetch them system-wide.
        for part in ("lists/partial", "cache/archives/partial"):
            (into / part).mkdir(parents=True, exist_ok=True)
        private = ["-o", f"Dir::State::Lists={into}/lists", "-o", f"Dir::Cache={into}/cache"]
        # An update that reaches no server succeeds; the download then finds no such package.
        said = apt(*private, "update")
        apt(*private, "download", PACKAGE, earlier=said)
    packages = list(into.glob("*.deb"))
    if len(packages) != 1:
        raise IoError(f"cannot get {what}: apt-get left {len(packages)} packages, expected one")
    return packages[0]


def fetch_novels() -> Path:
    """Path of the six novels as one text file, fetched on first use.

    Raises:
        IoError: no network, no ``apt-get``, or the cache cannot be written.
        CorruptError: the package is not what it should be.
    """
    target = _files.cache_dir() / "austen.txt"
    if target.is_file():
        if _files.sha256(target) == SHA256:
            return target
        target.unlink()  # damaged: fetch again
    with tempfile.TemporaryDirectory(prefix="twofour-") as scratch:
        work = Path(scratch)
        package = _download(work)
        _files.run_tool(["dpkg-deb", "-x", str(package), str(work / "root")], PACKAGE, _HINT)
        text = join_novels(work / "root")
    _files.write_text(target, text)
    digest = _files.sha256(target)
    if digest != SHA256:
        target.unlink()
        raise CorruptError(
            f"{PACKAGE}: the novels have sha256 {digest}, expected {SHA256}; {_HINT}"
        )
    return target


def name_of(path: str | os.PathLike | None) -> str:
    """The text's name in reports, for the same argument as `read`."""
    return f"Jane Austen's novels ({PACKAGE})" if path is None else Path(path).name


def read(path: str | os.PathLike | None) -> str:
    """The text of a UTF-8 file, or of the novels when no path is given.

    Raises:
        NotFoundError: there is no such file.
        InvalidArgumentError: it is empty or not UTF-8.
    """
    path = fetch_novels() if path is None else Path(path)
    if not path.is_file():
        raise NotFoundError(f"text file {path}: no such file")
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"text file {path}: not UTF-8 (byte {error.start}: {error.reason})"
        ) from error
    if not text.strip():
        raise InvalidArgumentError(f"text file {path}: it is empty")
    return text
