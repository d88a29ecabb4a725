"""twofour inside Hugging Face transformers.

    import twofour.hf
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="twofour")  # "auto"
    twofour.hf.enable(model, mode="refined", calibration="model.calibration.safetensors")
    twofour.hf.disable(model)                                    # as it was before

Prefill of 64 tokens or more is twofour's; fewer new tokens (decoding with a KV cache) and, in
"auto", fewer than 1,024 keys go to torch's SDPA, as do heads whose mode is "sdpa".
"""

from __future__ import annotations

import contextlib
import copy
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from . import _extras, models
from ._hf_modes import AUTO, SDPA, Modes, Run, head_modes, head_runs
from ._hf_pack import Packing
from .calibration import Calibration, LayerCalibration
from .errors import InvalidArgumentError, NotFoundError, UnsupportedError
from .ops import attention
from .plans import explain, kernels
from .sparsity import Sparsity

with _extras.needs("hf"):
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import AttentionMaskInterface

    from ._hf_mask import CausalMask, causal_or_stored_mask

NAME = "twofour"
#: Fewer new tokens than this are dense: a row block would hold mostly padding.
MIN_ROWS = 64
#: Below this many keys "auto" is dense: nearly every block is diagonal or a sink.
MIN_KEYS_AUTO = 1024

_SETTINGS = "_twofour_settings"
_PREVIOUS = "_twofour_previous"
_announced: set[str] = set()


class ApproximateWarning(UserWarning):
    """An attention mode that approximates has been used for the first time in this process."""


@dataclass
class Recorder:
    """What `record` gathers: filled while the model runs."""

    seconds: float = 0.0  # inside the attention function, all layers together
    units: int = 0  # units in pruned blocks (docs/semantics.md), and what became of them
    refined: int = 0
    dropped: int = 0
    #: Called as on_attention(layer, q, k, v, scale), [B,H,M,D] after rotary embedding; not timed.
    on_attention: Callable[[int, Tensor, Tensor, Tensor, float | None], None] | None = field(
        default=None, repr=False
    )


@dataclass
class _Settings:
    """Of one attention module."""

    modes: tuple[str, ...] | None = None  # per query head; None: "auto" for all
    calibration: LayerCalibration | None = None
    kernel: str = ""
    recorder: Recorder | None = None


def _check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise InvalidArgumentError(
            f"model: expected a model of transformers, got {type(model).__name__}"
        )


def attention_modules(model: nn.Module) -> dict[int, nn.Module]:
    """The self-attention modules of a decoder by layer index.

    Raises:
        InvalidArgumentError: that is not a model.
        UnsupportedError: there are none that transformers' attention interface drives.
    """
    _check_model(model)
    found: dict[int, nn.Module] = {}
    for module in model.modules():
        layer = getattr(module, "layer_idx", None)
        if isinstance(layer, int) and hasattr(module, "is_causal"):
            if layer in found:
                raise UnsupportedError(
                    f"model: expected one attention module a layer, got two of layer {layer} "
                    f"({type(found[layer]).__name__}, {type(module).__name__})"
                )
            found[layer] = module
    if not found:
        raise UnsupportedError(
            f"model: expected modules that use transformers' attention interface, found none "
            f"in {type(model).__name__}"
        )
    return dict(sorted(found.items()))


def head_shape(module: nn.Module) -> tuple[int, int, int]:
    """Query heads, KV heads and head_dim of an attention module."""
    config = module.config
    heads_q = config.num_attention_heads
    groups = getattr(module, "num_key_value_groups", 1)
    head_dim = getattr(module, "head_dim", None) or config.hidden_size // heads_q
    return heads_q, heads_q // groups, head_dim


def _configs(model: nn.Module) -> list[Any]:
    """Every distinct configuration that may carry an attention implementation."""
    found: dict[int, Any] = {}
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "_attn_implementation"):
            found.setdefault(id(config), config)
            for key in getattr(config, "sub_configs", {}):
                if (inner := getattr(config, key, None)) is not None:
                    found.setdefault(id(inner), inner)
    return list(found.values())


def _own_configs(model: nn.Module) -> None:
    """Replaces the configurations by copies: another model made from them is not touched."""
    shared = _configs(model)
    # One call, so that what refers to one another among them still does.
    copies = dict(zip(map(id, shared), copy.deepcopy(shared), strict=True))
    for module in model.modules():
        own = copies.get(id(vars(module).get("config")))
        if own is not None:
            module.config = own


def enable(
    model: nn.Module,
    mode: Modes = AUTO,
    calibration: Calibration | str | os.PathLike | None = None,
    *,
    kernel: str = "",
) -> nn.Module:
    """Replaces the attention of a transformers model; may be called again to change the mode.

    The model gets a copy of its configuration, so that other models made from the same one keep
    their attention.

    Args:
        model: a causal language model whose class takes ``attn_implementation``.
        mode: "auto", "sdpa", or anything ``twofour.attention`` takes; a list with an entry per
            layer; ``{layer: mode, (layer, head): mode, "default": mode}`` (what is not named is
            "auto"); or a function from the layer to its entry. A layer's entry may itself be a
            list with a mode per query head.
        calibration: for the modes with a pruned Query: a `Calibration` or the path of its file.
        kernel: force this kernel of the registry; for tests.

    Returns:
        The model.

    Raises:
        InvalidArgumentError: a mode that is not understood, or a calibration of another model.
        NotFoundError, CorruptError: the calibration file is missing or damaged.
        UnsupportedError: the model does not use transformers' attention interface.
    """
    modules = attention_modules(model)
    if kernel and kernel not in kernels():
        raise NotFoundError(f"kernel: expected one of twofour.kernels(), got {kernel!r}")
    if calibration is not None and not isinstance(calibration, Calibration):
        calibration = Calibration.load(calibration)
    settings = {}
    for layer, module in modules.items():
        heads_q, heads_kv, head_dim = head_shape(module)
        if calibration is not None:
            calibration.check(models.name_of(model), len(modules), heads_q, heads_kv, head_dim)
        modes = head_modes(mode, len(modules), layer, heads_q, head_dim)
        settings[layer] = _Settings(modes=modes, kernel=kernel)
        if old := getattr(module, _SETTINGS, None):  # enabled anew within `record`
            settings[layer].recorder = old.recorder
    if calibration is not None:
        for index, (layer, module) in enumerate(modules.items()):
            device = next(module.parameters()).device
            settings[layer].calibration = calibration.layers[index].to(device)
    if not hasattr(model, _PREVIOUS):
        _own_configs(model)
    previous = [(config, config._attn_implementation) for config in _configs(model)]
    # Also when enabled before: somebody may have set another implementation since.
    model.set_attn_implementation(NAME)
    if modules[min(modules)].config._attn_implementation != NAME:
        raise UnsupportedError(
            f"model: {type(model).__name__} does not let its attention be replaced"
        )
    if not hasattr(model, _PREVIOUS):
        setattr(model, _PREVIOUS, previous)
    for layer, module in modules.items():
        setattr(module, _SETTINGS, settings[layer])
    return model


def disable(model: nn.Module) -> nn.Module:
    """Undoes `enable`: the attention implementation is again what it was. Harmless otherwise."""
    _check_model(model)
    for module in model.modules():
        if hasattr(module, _SETTINGS):
            delattr(module, _SETTINGS)
    if hasattr(model, _PREVIOUS):
        for config, implementation in getattr(model, _PREVIOUS):
            # The public setter would also overwrite nested configurations.
            config._attn_implementation_internal = implementation
        delattr(model, _PREVIOUS)
    return model


@contextlib.contextmanager
def temporarily(model: nn.Module, **options: Any) -> Iterator[nn.Module]:
    """`enable` within the block; afterwards everything is as before it, enabled or not."""
    was = getattr(model, _PREVIOUS, None)
    settings = {m: getattr(m, _SETTINGS) for m in model.modules() if hasattr(m, _SETTINGS)}
    enable(model, **options)
    try:
        yield model
    finally:
        if was is None:
            disable(model)
        for module, old in settings.items():
            setattr(module, _SETTINGS, old)


@contextlib.contextmanager
def record(
    model: nn.Module,
    on_attention: Callable[[int, Tensor, Tensor, Tensor, float | None], None] | None = None,
) -> Iterator[Recorder]:
    """Within the block, gathers attention seconds and unit counts of an enabled model."""
    recorder = Recorder(on_attention=on_attention)
    all_settings = []
    for module in attention_modules(model).values():
        settings = getattr(module, _SETTINGS, None)
        if settings is None:
            raise InvalidArgumentError("record: expected a model after twofour.hf.enable(model)")
        all_settings.append(settings)
    outer = [settings.recorder for settings in all_settings]
    for settings in all_settings:
        settings.recorder = recorder
    try:
        yield recorder
    finally:
        for settings, before in zip(all_settings, outer, strict=True):
            settings.recorder = before


def _refuse(module: nn.Module, dropout: float, options: dict[str, Any]) -> None:
    """Named errors for what would otherwise be ignored."""
    if dropout:
        raise UnsupportedError(
            f"twofour attention: expected dropout 0, got {dropout}; dropout does not exist yet, "
            "use model.eval() or attention_dropout=0"
        )
    for name in ("softcap", "s_aux", "sinks", "head_mask", "position_bias"):
        if options.get(name) is not None:
            raise UnsupportedError(
                f"twofour attention: {name} was given and does not exist yet; use another "
                "attn_implementation for this model"
            )
    config = getattr(module, "config", None)
    if options.get("output_attentions") or getattr(config, "output_attentions", False):
        raise UnsupportedError(
            "twofour attention: output_attentions was asked for, and the attention matrix is never "
            'stored; use attn_implementation="eager" to see it'
        )


def _boolean(mask: Tensor) -> Tensor:
    """A boolean mask from a boolean one, or from an additive one that only switches pairs off."""
    if mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        raise UnsupportedError(f"attention mask: expected bool or floating point, got {mask.dtype}")
    off = mask <= torch.finfo(mask.dtype).min
    if not bool((off | (mask == 0)).all()):
        raise UnsupportedError(
            "attention mask: expected bool, or an additive mask of 0 and the lowest value; an "
            "additive bias does not exist yet"
        )
    return ~off


def _announce(mode: str, q: Tensor, k: Tensor, v: Tensor, calibrated: bool) -> None:
    """Says once per process and sparsity that attention is approximate."""
    if mode in _announced or torch.compiler.is_compiling():
        return
    _announced.add(mode)
    text = mode
    if mode == AUTO:
        text = explain(q, k, v, mode=AUTO, causal=True).sparsity
    sparsity = Sparsity.parse(text, q.size(-1))
    if sparsity.qk != "exact" or sparsity.score != "none" or sparsity.drop is not None:
        warnings.warn(
            f"twofour attention is approximate: {sparsity}"
            + (", with calibration" if calibrated and sparsity.needs_calibration else "")
            + "; docs/semantics.md says what is left out",
            ApproximateWarning,
            stacklevel=2,
        )


@dataclass
class _Call:
    """The arguments of one attention, in twofour's layout and terms."""

    q: Tensor  # [B,M,Hq,D]
    k: Tensor  # [B,N,Hkv,D]
    v: Tensor  # [B,N,Hkv,Dv]
    causal: bool
    window: tuple[int, int | None] | None
    mask: Tensor | None
    scale: float | None
    packing: Packing | None = None


def _packs(query: Tensor) -> bool:
    """Whether padding is taken out instead of masked: the CUDA kernels take no mask."""
    return query.is_cuda and not torch.compiler.is_compiling()


def _describe(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float | None,
) -> _Call:
    """Turns transformers' conventions into causal, window and mask."""
    rows, keys = query.size(2), key.size(2)
    window = packing = None
    if isinstance(mask, CausalMask) and mask.shape[3] != keys:
        mask = mask.stored()
    if isinstance(mask, CausalMask):
        # Keys past the last row are dead; without them, row i sits at i + N - M.
        seen = mask.q_offset + rows - mask.kv_offset
        if 0 < seen <= keys:
            key, value, causal = key[:, :, :seen], value[:, :, :seen], True
            window = None if mask.window is None else (mask.window - 1, None)
            padding = mask.padding
            if padding is not None and _packs(query):
                packing = mask.packing(seen, rows)
            masked = padding is not None and packing is None
            mask = padding[:, None, None, :seen] if masked else None
        else:
            mask, causal = mask.stored(), False
    elif mask is not None:
        mask, causal = _boolean(mask), False
    elif causal and keys > rows:
        # As in transformers' sdpa: an empty static cache, whose later keys nobody sees yet.
        key, value = key[:, :, :rows], value[:, :, :rows]
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    return _Call(q, k, v, causal, window, mask, scale, packing)


def _run(call: _Call, run: Run, settings: _Settings) -> Tensor:
    """One call of twofour.attention for some heads; [B,M,H,Dv]."""
    q = call.q[:, :, run.q_begin : run.q_end]
    k = call.k[:, :, run.kv_begin : run.kv_end]
    v = call.v[:, :, run.kv_begin : run.kv_end]
    mask, calibration, recorder = call.mask, settings.calibration, settings.recorder
    if mask is not None and mask.size(1) not in (1, q.size(2)):
        mask = mask[:, run.q_begin : run.q_end]
    if calibration is not None:
        calibration = calibration.heads(run.kv_begin, run.kv_end)
    _announce(run.mode, q, k, v, calibration is not None)
    batch, rows = q.shape[:2]
    packed: dict[str, Any] = {}
    if call.packing is not None:
        q = q.flatten(0, 1)[call.packing.rows]
        k, v = (t.flatten(0, 1)[call.packing.keys] for t in (k, v))
        packed = call.packing.options()
    out = attention(
        q,
        k,
        v,
        mode=run.mode,
        causal=call.causal,
        window=call.window,
        mask=mask,
        scale=call.scale,
        calibration=calibration,
        kernel=settings.kernel,
        return_stats=recorder is not None,
        **packed,
    )
    out, stats = out if recorder is not None else (out, None)
    if call.packing is not None:
        out = call.packing.unpack(out, batch, rows)
    if recorder is None:
        return out
    units, refined, dropped = stats[:3].tolist()
    recorder.units += units
    recorder.refined += refined
    recorder.dropped += dropped
    return out


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float | None,
    settings: _Settings,
) -> Tensor:
    heads_q, heads_kv, rows = query.size(1), key.size(1), query.size(2)
    modes = settings.modes or (AUTO,) * heads_q
    if key.size(2) < MIN_KEYS_AUTO:
        modes = tuple(SDPA if mode == AUTO else mode for mode in modes)
    exact = None
    if rows < MIN_ROWS or SDPA in modes:
        plain = mask.stored() if isinstance(mask, CausalMask) else mask
        exact, _ = sdpa_attention_forward(
            module, query, key, value, plain, scaling=scale, is_causal=causal
        )
        if rows < MIN_ROWS or all(mode == SDPA for mode in modes):
            return exact
    call = _describe(query, key, value, mask, causal, scale)
    parts = []
    for run in head_runs(modes, heads_kv):
        if run.mode == SDPA:
            parts.append(exact[:, :, run.q_begin : run.q_end])
        else:
            parts.append(_run(call, run, settings))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention function registered with transformers.

    Args:
        query: [B,Hq,M,D].
        key, value: [B,Hkv,N,D] and [B,Hkv,N,Dv].
        attention_mask: None, a `CausalMask`, or [B,1 or Hq,M,N] bool or additive.

    Returns:
        ([B,M,Hq,Dv], None).
    """
    _refuse(module, dropout, options)
    settings = getattr(module, _SETTINGS, None) or _Settings()
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    recorder = settings.recorder
    if recorder is None:
        out = _attend(module, query, key, value, attention_mask, causal, scaling, settings)
        return out.contiguous(), None
    if recorder.on_attention is not None:
        recorder.on_attention(module.layer_idx, query, key, value, scaling)
    synchronize(query)
    start = time.perf_counter()
    out = _attend(module, query, key, value, attention_mask, causal, scaling, settings).contiguous()
    synchronize(query)
    recorder.seconds += time.perf_counter() - start
    return out, None


def synchronize(tensor: Tensor) -> None:
    """Waits for the tensor's device, so that a clock read next means something."""
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


AttentionInterface.register(NAME, attention_forward)
AttentionMaskInterface.register(NAME, causal_or_stored_mask)
