"""Greedy continuation of a prompt, in whatever mode the model is."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor


def continuation(model: Any, tokenizer: Any, prompt: Tensor, new_tokens: int) -> str:
    """Greedy continuation of token ids [T] in the model's present mode."""
    from . import hf

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", hf.ApproximateWarning)
        ids = prompt[None].to(model.device)
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id or tokenizer.eos_token_id or 0,
        )
    return tokenizer.decode(out[0, prompt.numel() :], skip_special_tokens=True)
