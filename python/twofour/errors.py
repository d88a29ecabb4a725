"""Exceptions: one class per code of the C++ library, with the same text."""

import re
from typing import NoReturn


class TwofourError(Exception):
    """Base of every error raised by twofour; `code` is the C++ library's name for the reason."""

    code = "internal"


class InvalidArgumentError(TwofourError, ValueError):
    """A shape, dtype, stride, option or value that the caller can correct."""

    code = "invalid_argument"


class UnsupportedError(TwofourError, NotImplementedError):
    """A valid request that no kernel here can serve; the text says which were tried and why not."""

    code = "unsupported"


class MissingPackageError(UnsupportedError, ImportError):
    """A package that only some parts of twofour need is not installed, or too old."""


class NotFoundError(TwofourError, LookupError):
    """A file, model or kernel id that does not exist."""

    code = "not_found"


class IoError(TwofourError, OSError):
    """Reading or writing failed."""

    code = "io"


class CorruptError(TwofourError, ValueError):
    """A file that is not what it claims to be."""

    code = "corrupt"


class OutOfMemoryError(TwofourError, MemoryError):
    code = "out_of_memory"


class InternalError(TwofourError, RuntimeError):
    """A bug in twofour."""

    code = "internal"


class UncalibratedWarning(UserWarning):
    """A pruned Query without a calibration: it runs, and loses more quality than it has to."""


_BY_CODE = {
    error.code: error
    for error in (
        InvalidArgumentError,
        UnsupportedError,
        NotFoundError,
        IoError,
        CorruptError,
        OutOfMemoryError,
        InternalError,
    )
}
# What csrc/tensors.cc writes in front of a message.
_PREFIX = re.compile(r"\[twofour:(\w+)\] (.*)")
# What torch says when an argument does not fit an operator's schema.
_SCHEMA = re.compile(
    r"Expected a value of type '([^']*)' for argument '(\w+)' but instead found type.*\n"
    r"(?:Position: .*\n)?Value: (.*)"
)


def reraise(error: RuntimeError) -> NoReturn:
    """Raises the twofour error that `error` carries as text, or `error` itself."""
    found = _PREFIX.search(str(error))
    if found is None:
        if wrong := _SCHEMA.search(str(error)):
            kind, name, value = wrong.groups()
            raise InvalidArgumentError(f"{name}: expected {kind}, got {value}") from None
        raise error
    raise _BY_CODE.get(found[1], InternalError)(found[2]) from None
