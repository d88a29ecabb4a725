"""twofour: attention with run-time 2:4 sparsity.

    o = twofour.attention(q, k, v, causal=True)             # the fastest mode that needs no care
    o = twofour.attention(q, k, v, causal=True, mode="refined", calibration=layer)

Semantics: docs/semantics.md. Hugging Face models: `twofour.hf`. Evaluation: `twofour.eval`.
"""

from . import _start as _start  # before torch: Ctrl-C during its import
from ._library import VERSION as __version__  # registers the operators before anything else
from .errors import (
    CorruptError,
    InternalError,
    InvalidArgumentError,
    IoError,
    MissingPackageError,
    NotFoundError,
    OutOfMemoryError,
    TwofourError,
    UncalibratedWarning,
    UnsupportedError,
)
from .ops import STATS_FIELDS, Trace, attention, merge, trace
from .plans import Availability, Explanation, available, explain, kernels
from .sparsity import MODES, Sparsity

__all__ = [
    "MODES",
    "STATS_FIELDS",
    "Availability",
    "CorruptError",
    "Explanation",
    "InternalError",
    "InvalidArgumentError",
    "IoError",
    "MissingPackageError",
    "NotFoundError",
    "OutOfMemoryError",
    "Sparsity",
    "Trace",
    "TwofourError",
    "UncalibratedWarning",
    "UnsupportedError",
    "__version__",
    "attention",
    "available",
    "explain",
    "kernels",
    "merge",
    "trace",
]
