"""Tiny models and a tiny tokenizer, built in code, for the tests of everything around models."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = dict(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=97,
    max_position_embeddings=16384,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=None,
)


def tiny_llama(seed: int = 0, **changes) -> LlamaForCausalLM:
    """Random weights; the larger ones of q and k make its attention peaky enough to matter."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**SIZES | changes)).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(12)
            layer.self_attn.k_proj.weight.mul_(12)
    return model


def tokens(*shape: int, seed: int = 1) -> torch.Tensor:
    """Random token ids of the tiny vocabulary."""
    return torch.randint(2, 97, shape, generator=torch.Generator().manual_seed(seed))


def save_tiny_model(folder) -> None:
    """A complete model directory: one token a printable character."""
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<pad>": 0, "<s>": 1} | {chr(32 + i): 2 + i for i in range(95)}
    inner = Tokenizer(WordLevel(vocabulary, unk_token=" "))
    inner.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>").save_pretrained(folder)
    tiny_llama().save_pretrained(folder)
