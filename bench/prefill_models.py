"""What bench/prefill.py runs: models, prompts, a basis, and the long prompt's memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
SMOLLM2 = "smollm2"
#: Llama-shaped models with random weights, by name: what LlamaConfig takes.
SHAPES: dict[str, dict[str, Any]] = {
    "llama3-8b": dict(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=128256,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    ),
    "tiny": dict(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=97,
    ),
}


@dataclass
class Subject:
    """A model on its device, and what makes a prompt of so many tokens for it."""

    model: Any
    prompt: Callable[[int], Tensor]  # int64 [1,T], on the model's device
    source: str  # what the prompts are
    limit: int | None  # tokens the model was made for


def random_llama(
    name: str, device: torch.device, dtype: torch.dtype, layers: int | None, longest: int
) -> Subject:
    """A model of one of SHAPES, made on the device: 8B parameters would take minutes on a CPU."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    shape = dict(SHAPES[name])
    if layers is not None:
        shape["num_hidden_layers"] = layers
    config = LlamaConfig(
        **shape, max_position_embeddings=longest, tie_word_embeddings=False,
        pad_token_id=None, bos_token_id=0, eos_token_id=None,
    )  # fmt: skip
    config._name_or_path = f"{name}-random"
    torch.manual_seed(0)
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, config.vocab_size, (1, longest), generator=generator).to(device)
    return Subject(model, lambda length: ids[:, :length], "random tokens", None)


def real_model(
    source: Path | None, device: torch.device, dtype: torch.dtype | None, longest: int
) -> Subject:
    """SmolLM2 or the user's model; it reads what `twofour.eval` evaluates on."""
    from twofour import calibrate, models, text

    model, tokenizer = models.load(source, device=device, dtype=dtype)
    limit = models.position_limit(model)
    longest = min(longest, limit or longest)
    skip = calibrate.DEFAULT_TOKENS
    ids = calibrate.tokenize(tokenizer, text.read(None), skip + longest)[skip:][None].to(device)
    if ids.size(1) < longest:
        raise ValueError(f"the text has {ids.size(1)} tokens after {skip}, expected {longest}")
    return Subject(model, lambda length: ids[:, :length], text.name_of(None), limit)


def load(
    name: str,
    device: torch.device,
    dtype: torch.dtype | None,
    layers: int | None,
    longest: int,
) -> Subject:
    """The subject of this name, for prompts of at most `longest` tokens.

    Raises:
        ValueError: `layers` for a model that has its own.
    """
    if name in SHAPES:
        default = torch.float32 if device.type == "cpu" else torch.bfloat16
        return random_llama(name, device, dtype or default, layers, longest)
    if layers is not None:
        raise ValueError(f"--layers: expected a model of {', '.join(SHAPES)}, got {name}")
    return real_model(None if name == SMOLLM2 else Path(name), device, dtype, longest)


def random_basis(model: nn.Module) -> Any:
    """A random orthogonal basis for every layer and KV head, as costly as a calibrated one."""
    from twofour import hf, models
    from twofour.calibration import Calibration, LayerCalibration

    modules = hf.attention_modules(model).values()
    heads_q, heads_kv, head_dim = next(hf.head_shape(module) for module in modules)
    generator = torch.Generator().manual_seed(0)
    layers = []
    for _ in modules:
        square = torch.randn(heads_kv, head_dim, head_dim, generator=generator)
        basis = torch.linalg.qr(square)[0].contiguous()
        layers.append(LayerCalibration(basis, basis.clone(), torch.ones(heads_kv, head_dim)))
    return Calibration(models.name_of(model), "random", heads_q, tuple(layers))


def mlps(model: nn.Module) -> list[nn.Module]:
    return [module for name, module in model.named_modules() if name.endswith(".mlp")]


def projections(model: nn.Module) -> list[nn.Module]:
    """The linear layers before and behind attention."""
    ends = tuple(f".{part}_proj" for part in ("q", "k", "v", "o", "qkv"))
    return [module for name, module in model.named_modules() if name.endswith(ends)]


def run_mlps_in_chunks(model: nn.Module, rows: int) -> None:
    """Every MLP takes at most so many tokens at a time, which are independent of one another.

    Gate, up and their product are the largest activations: 3.5 GiB each for 131,072 tokens of
    Llama-3-8B.
    """

    def chunked(plain: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            if x.size(1) <= rows:
                return plain(x)
            out = torch.empty_like(x)
            for begin in range(0, x.size(1), rows):
                out[:, begin : begin + rows] = plain(x[:, begin : begin + rows])
            return out

        return forward

    for mlp in mlps(model):
        mlp.forward = chunked(mlp.forward)


def describe(model: nn.Module) -> dict[str, Any]:
    """The model as the results name it."""
    from twofour import hf, models

    config = model.config.get_text_config()
    modules = hf.attention_modules(model)
    heads_q, heads_kv, head_dim = hf.head_shape(modules[min(modules)])
    return {
        "name": models.name_of(model),
        "layers": len(modules),
        "hidden": config.hidden_size,
        "intermediate": config.intermediate_size,
        "heads": heads_q,
        "kv_heads": heads_kv,
        "head_dim": head_dim,
        "vocabulary": config.vocab_size,
        "parameters": sum(p.numel() for p in model.parameters()),
        "dtype": next(k for k, v in DTYPES.items() if v == next(model.parameters()).dtype),
    }
