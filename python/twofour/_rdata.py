"""Reads character vectors out of an R lazy-load database (``.rdx`` index, ``.rdb`` data).

Only what such a data package needs: R's XDR serialisation, versions 2 and 3, of NULL, symbols,
references, pairlists, and logical, integer, real, character and generic vectors. Source: "R
Internals", section "Serialization Formats", and ``src/main/serialize.c`` of R.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
import zlib
from pathlib import Path

from .errors import CorruptError

_NIL_VALUES = {242, 251, 252, 253, 254}  # empty/base/global environment, missing, unbound, NULL
_MAX_DEPTH = 64


class _Reader:
    """A cursor over one serialised object; every read is checked against the end."""

    def __init__(self, data: bytes):
        self._data = data
        self._at = 0
        self._references: list[object] = []
        if data[:2] != b"X\n":
            raise CorruptError(f"not R's XDR serialisation: expected b'X\\n', got {data[:2]!r}")
        self._at = 2
        version = self._int()
        self._take(8)  # versions of R: writer, oldest reader
        if version == 3:
            self._take(self._int())  # name of the native encoding
        elif version != 2:
            raise CorruptError(f"R serialisation version {version}: expected 2 or 3")

    def _take(self, count: int) -> bytes:
        if count < 0 or count > len(self._data) - self._at:
            raise CorruptError(f"R data ends early: {count} bytes wanted at byte {self._at}")
        self._at += count
        return self._data[self._at - count : self._at]

    def _int(self) -> int:
        return struct.unpack(">i", self._take(4))[0]

    def _length(self, item_bytes: int) -> int:
        count = self._int()
        if count < 0 or count * item_bytes > len(self._data) - self._at:
            raise CorruptError(f"R vector of {count} elements at byte {self._at} does not fit")
        return count

    def item(self, depth: int = 0) -> object:
        """The next object: None, str, list, or dict for a named list or a pairlist."""
        if depth > _MAX_DEPTH:
            raise CorruptError(f"R data is nested deeper than {_MAX_DEPTH} levels")
        flags = self._int()
        kind = flags & 0xFF
        if kind in _NIL_VALUES:
            return None
        if kind == 255:  # reference to an earlier symbol
            index = (flags >> 8) or self._int()
            if not 1 <= index <= len(self._references):
                raise CorruptError(f"R reference {index} points nowhere")
            return self._references[index - 1]
        if kind == 1:  # symbol
            self._references.append(self.item(depth + 1))
            return self._references[-1]
        if kind == 2:  # pairlist, used for attributes
            return self._pairlist(flags, depth)
        if kind == 9:  # one string
            return self._string(flags)
        value = self._vector(kind, depth)
        if flags & 0x200:  # has attributes
            attributes = self.item(depth + 1)
            names = attributes.get("names") if isinstance(attributes, dict) else None
            if kind == 19 and isinstance(names, list) and len(names) == len(value):
                return dict(zip(names, value, strict=True))
        return value

    def _pairlist(self, flags: int, depth: int) -> dict:
        out: dict = {}
        while flags & 0xFF == 2:
            if flags & 0x200:
                self.item(depth + 1)
            tag = self.item(depth + 1) if flags & 0x400 else None
            out[tag] = self.item(depth + 1)
            flags = self._int()
        if flags & 0xFF not in _NIL_VALUES:
            raise CorruptError(f"R pairlist ends with type {flags & 0xFF}, expected NULL")
        return out

    def _string(self, flags: int) -> str | None:
        count = self._int()
        if count == -1:
            return None  # NA
        raw = self._take(count)
        return raw.decode("latin-1" if flags & (4 << 12) else "utf-8", errors="strict")

    def _vector(self, kind: int, depth: int) -> list:
        if kind in (10, 13):
            count = self._length(4)
            return list(struct.unpack(f">{count}i", self._take(4 * count)))
        if kind == 14:
            count = self._length(8)
            return list(struct.unpack(f">{count}d", self._take(8 * count)))
        if kind in (16, 19):
            return [self.item(depth + 1) for _ in range(self._length(4))]
        raise CorruptError(f"R type {kind} at byte {self._at} is not read here")


def _decompress(chunk: bytes) -> bytes:
    """One record of an .rdb file: 4 bytes of length, then zlib, or '2' bzip2, 'Z' xz, '0' none."""
    if len(chunk) < 5:
        raise CorruptError(f"record of {len(chunk)} bytes: expected at least 5")
    expected = struct.unpack(">I", chunk[:4])[0]
    if expected > 1 << 30:
        raise CorruptError(f"record claims {expected} bytes, over the limit of 1 GiB")
    kind, body = chunk[4:5], chunk[5:]
    if kind == b"2":
        out = bz2.BZ2Decompressor().decompress(body, max_length=expected + 1)
    elif kind == b"Z":
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]
        decoder = lzma.LZMADecompressor(format=lzma.FORMAT_RAW, filters=filters)
        out = decoder.decompress(body, max_length=expected + 1)
    elif kind == b"0":
        out = body
    else:
        out = zlib.decompressobj().decompress(chunk[4:], expected + 1)
    if len(out) != expected:
        raise CorruptError(f"record holds {len(out)} bytes, its header says {expected}")
    return out


def character_vectors(stem: Path) -> dict[str, list[str]]:
    """All character vectors of the database ``stem.rdx`` + ``stem.rdb``, by name.

    Raises:
        OSError: a file is missing.
        CorruptError: a file is truncated, damaged or of another kind.
    """
    try:
        index = _Reader(gzip.decompress(stem.with_suffix(".rdx").read_bytes())).item()
        data = stem.with_suffix(".rdb").read_bytes()
        variables = index["variables"] if isinstance(index, dict) else None
        if not isinstance(variables, dict):
            raise CorruptError("the index has no list of variables")
        out = {}
        for name, where in variables.items():
            if not (isinstance(where, list) and len(where) == 2):
                raise CorruptError(f"{name}: expected offset and length, got {where!r}")
            offset, length = where
            if offset < 0 or length < 0 or offset + length > len(data):
                raise CorruptError(f"{name}: bytes {offset}+{length} lie outside of {len(data)}")
            value = _Reader(_decompress(data[offset : offset + length])).item()
            if isinstance(value, list) and all(isinstance(line, str) for line in value):
                out[name] = value
        return out
    except CorruptError as error:
        raise CorruptError(f"{stem}: {error}") from error
    except (zlib.error, lzma.LZMAError, gzip.BadGzipFile, EOFError, KeyError, UnicodeError) as e:
        raise CorruptError(f"{stem}: damaged R data: {e}") from e
