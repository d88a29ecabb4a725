"""What the C++ library says of the devices."""

from __future__ import annotations

import functools

import torch

from . import _library  # noqa: F401  (registers the operators used below)


@functools.cache
def cuda_info(index: int) -> tuple[str, str, int, str]:
    """Name, architecture and multiprocessors of a CUDA device, and why it cannot be used or ''.

    The first call initialises the CUDA driver in this process.
    """
    name, arch, multiprocessors, why_not = torch.ops.twofour.cuda_info(index)
    if not why_not and not torch.backends.cuda.is_built():
        why_not = f"CUDA: expected a torch with CUDA, got torch {torch.__version__}"
    return name, arch, multiprocessors, why_not


def cuda_index(device: torch.device) -> int:
    """The index of a CUDA device, the current one where it names none."""
    if device.index is not None:
        return device.index
    return torch.cuda.current_device() if torch.cuda.is_available() else 0
