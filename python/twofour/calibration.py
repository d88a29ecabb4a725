"""The basis of the pruned Query, layer by layer: a value with one file format.

A calibration file is safetensors. Its metadata holds ``format`` ("twofour-calibration"),
``version`` ("1"), ``model``, ``kind``, ``layers``, ``heads_q``, ``heads_kv`` and ``head_dim``; its
tensors are, for each layer i and all in fp32, ``layers.{i}.t_q`` [Hkv,D,D] (T), ``layers.{i}.t_k``
[Hkv,D,D] (the transposed inverse of T) and ``layers.{i}.w`` [Hkv,D] (channel weights, > 0).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import _extras, _files
from .errors import CorruptError, InvalidArgumentError, NotFoundError

FORMAT = "twofour-calibration"
VERSION = "1"
KINDS = ("balanced", "permutation", "identity")
# Room for the largest models; a header that claims more is a damaged one.
_LIMITS = {"layers": 1024, "heads_q": 1024, "heads_kv": 1024, "head_dim": 512}
# q'.k' = q.k needs t_q t_k^T = 1; fp32 rounding of ill-conditioned bases stays well below this.
_INVERSE_TOLERANCE = 1e-2


@dataclass(frozen=True)
class LayerCalibration:
    """What ``twofour.attention(calibration=…)`` takes: q' = q t_q and k' = k t_k per KV head."""

    t_q: Tensor  # fp32 [Hkv,D,D]: T
    t_k: Tensor  # fp32 [Hkv,D,D]: the transposed inverse of T
    w: Tensor  # fp32 [Hkv,D], > 0

    def heads(self, start: int, stop: int) -> LayerCalibration:
        """The part for KV heads start .. stop - 1."""
        return LayerCalibration(self.t_q[start:stop], self.t_k[start:stop], self.w[start:stop])

    def to(self, device: torch.device) -> LayerCalibration:
        """The same on another device."""
        return LayerCalibration(self.t_q.to(device), self.t_k.to(device), self.w.to(device))


@dataclass(frozen=True)
class Calibration:
    """One basis per layer and KV head of a named model."""

    model: str
    kind: str
    heads_q: int
    layers: tuple[LayerCalibration, ...]

    @property
    def heads_kv(self) -> int:
        return self.layers[0].t_q.size(0)

    @property
    def head_dim(self) -> int:
        return self.layers[0].t_q.size(2)

    def check(self, model: str, layers: int, heads_q: int, heads_kv: int, head_dim: int) -> None:
        """Refuses to serve another model.

        Raises:
            InvalidArgumentError: names every field that differs, with both values.
        """
        mine = (self.model, len(self.layers), self.heads_q, self.heads_kv, self.head_dim)
        theirs = (model, layers, heads_q, heads_kv, head_dim)
        names = ("model", "layers", "heads_q", "heads_kv", "head_dim")
        wrong = [
            f"{name} {a!r} against {b!r}"
            for name, a, b in zip(names, mine, theirs, strict=True)
            if a != b
        ]
        if wrong:
            raise InvalidArgumentError(
                "calibration: made for another model (calibration against model): "
                + ", ".join(wrong)
            )

    def save(self, path: str | os.PathLike) -> None:
        """Writes the file atomically.

        Raises:
            IoError: it cannot be written.
        """
        with _extras.needs("hf"):
            from safetensors.torch import save

        tensors = {}
        for index, layer in enumerate(self.layers):
            for name in ("t_q", "t_k", "w"):
                tensor = getattr(layer, name)
                tensors[f"layers.{index}.{name}"] = tensor.detach().cpu().float().contiguous()
        metadata = {
            "format": FORMAT,
            "version": VERSION,
            "model": self.model,
            "kind": self.kind,
            "layers": str(len(self.layers)),
            "heads_q": str(self.heads_q),
            "heads_kv": str(self.heads_kv),
            "head_dim": str(self.head_dim),
        }
        with _files.atomic(path) as part:
            part.write_bytes(save(tensors, metadata))

    @staticmethod
    def load(path: str | os.PathLike) -> Calibration:
        """Reads and validates a file.

        Raises:
            InvalidArgumentError: that is not a path.
            NotFoundError: there is no such file.
            CorruptError: it is not a complete and consistent calibration.
        """
        with _extras.needs("hf"):
            from safetensors import SafetensorError, safe_open

        if not isinstance(path, (str, os.PathLike)):
            raise InvalidArgumentError(
                f"calibration: expected a Calibration or the path of one, got {type(path).__name__}"
            )
        path = Path(path)
        if not path.is_file():
            raise NotFoundError(f"calibration {path}: no such file")
        try:
            with safe_open(path, framework="pt") as file:
                return _read(file)
        except (SafetensorError, UnicodeDecodeError) as error:
            raise CorruptError(f"calibration {path}: not a safetensors file: {error}") from error
        except CorruptError as error:
            raise CorruptError(f"calibration {path}: {error}") from error


def _count(metadata: dict[str, str], name: str) -> int:
    text = metadata.get(name, "")
    limit = _LIMITS[name]
    # isdigit alone would take other scripts' digits.
    if not (text.isascii() and text.isdigit() and 1 <= len(text) <= 4 and 1 <= int(text) <= limit):
        raise CorruptError(f"{name}: expected a number in 1..{limit}, got {text!r}")
    return int(text)


def _read(file: Any) -> Calibration:
    metadata = file.metadata() or {}
    for name, want in (("format", FORMAT), ("version", VERSION)):
        if metadata.get(name) != want:
            raise CorruptError(f"{name}: expected {want!r}, got {metadata.get(name)!r}")
    if metadata.get("kind") not in KINDS:
        raise CorruptError(f"kind: expected {', '.join(KINDS)}, got {metadata.get('kind')!r}")
    if not metadata.get("model"):
        raise CorruptError("model: expected a name, got none")
    count, heads_q, heads_kv, head_dim = (
        _count(metadata, name) for name in ("layers", "heads_q", "heads_kv", "head_dim")
    )
    if heads_q % heads_kv or head_dim % 4:
        raise CorruptError(
            f"expected heads_q a multiple of heads_kv and head_dim of 4, got {heads_q}, {heads_kv} "
            f"and {head_dim}"
        )
    square, line = [heads_kv, head_dim, head_dim], [heads_kv, head_dim]
    want = {
        f"layers.{i}.{name}": shape
        for i in range(count)
        for name, shape in (("t_q", square), ("t_k", square), ("w", line))
    }
    got = set(file.keys())
    if got != want.keys():
        odd = sorted(got ^ want.keys())
        raise CorruptError(f"expected the tensors of {count} layers; missing or unknown: {odd[0]}")
    tensors = {}
    for name, shape in want.items():
        view = file.get_slice(name)  # shape and dtype from the header, before any data is read
        if view.get_shape() != shape or view.get_dtype() != "F32":
            raise CorruptError(
                f"{name}: expected F32 {shape}, got {view.get_dtype()} {view.get_shape()}"
            )
        tensors[name] = file.get_tensor(name)
        if not bool(tensors[name].isfinite().all()):
            raise CorruptError(f"{name}: holds a non-finite value")
    layers = []
    for i in range(count):
        layer = LayerCalibration(*(tensors[f"layers.{i}.{name}"] for name in ("t_q", "t_k", "w")))
        if not bool((layer.w > 0).all()):
            raise CorruptError(f"layers.{i}.w: expected positive weights")
        product = layer.t_q.double() @ layer.t_k.double().mT
        error = float((product - torch.eye(head_dim, dtype=torch.float64)).abs().max())
        if error > _INVERSE_TOLERANCE:
            raise CorruptError(
                f"layers.{i}: t_k is not the transposed inverse of t_q (off by {error:.2g})"
            )
        layers.append(layer)
    return Calibration(metadata["model"], metadata["kind"], heads_q, tuple(layers))
