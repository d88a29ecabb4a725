"""twofour: attention with run-time 2:4 sparsity.

    o = twofour.attention(q, k, v, causal=True)             # the fastest mode that needs no care
    o = twofour.attention(q, k, v, causal=True, mode="refined", calibration=layer)

Semantics: docs/semantics.md. Hugging Face models: `twofour.hf`. Evaluation: `twofour.eval`.
"""

import torch as _torch

from ._library import _load as _load  # registers the operators before anything else is imported
from .errors import (
    CorruptError,
    InternalError,
    InvalidArgumentError,
    IoError,
    NotFoundError,
    OutOfMemoryError,
    TwofourError,
    UncalibratedWarning,
    UnsupportedError,
)
from .ops import STATS_FIELDS, Trace, attention, merge, trace
from .plans import Availability, Explanation, available, explain, kernels
from .sparsity import MODES, Sparsity

__version__: str = _torch.ops.twofour.version()

__all__ = [
    "MODES",
    "STATS_FIELDS",
    "Availability",
    "CorruptError",
    "Explanation",
    "InternalError",
    "InvalidArgumentError",
    "IoError",
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
