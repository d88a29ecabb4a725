"""Kinds of models beside Llama: layers of mixed patterns, chunks, other head layouts, refusals."""

import copy

import pytest
import torch
import transformers as hub

import twofour
import twofour.hf
from hf_models import SIZES, tokens

WITH_HEAD_DIM = SIZES | {"head_dim": 16, "num_hidden_layers": 4}
WINDOWS = {"sliding_window": 40}
MODELS = {
    "gpt2": (
        hub.GPT2LMHeadModel,
        hub.GPT2Config(
            n_embd=64, n_layer=2, n_head=4, vocab_size=97, bos_token_id=1, eos_token_id=None
        ),
    ),
    "qwen2": (
        hub.Qwen2ForCausalLM,
        hub.Qwen2Config(**SIZES, **WINDOWS, use_sliding_window=True, max_window_layers=1),
    ),
    "gemma3": (
        hub.Gemma3ForCausalLM,
        hub.Gemma3TextConfig(**WITH_HEAD_DIM, **WINDOWS, sliding_window_pattern=2),
    ),
    "llama4": (
        hub.Llama4ForCausalLM,
        hub.Llama4TextConfig(
            **WITH_HEAD_DIM, attention_chunk_size=48, num_local_experts=2, intermediate_size_mlp=96,
            moe_layers=[],
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_dense_is_sdpa(name):
    kind, config = MODELS[name]
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    sdpa = kind(config).eval()
    dense = twofour.hf.enable(copy.deepcopy(sdpa), mode="dense")
    ids = tokens(2, 150)
    mask = torch.ones_like(ids)
    mask[1, :50] = 0
    options = dict(max_new_tokens=5, do_sample=False, pad_token_id=0)
    with torch.no_grad():
        torch.testing.assert_close(dense(ids).logits, sdpa(ids).logits, atol=1e-5, rtol=1e-4)
        got, want = (m(ids, attention_mask=mask).logits[mask.bool()] for m in (dense, sdpa))
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)
        got, want = (m.generate(ids, attention_mask=mask, **options) for m in (dense, sdpa))
    assert torch.equal(got, want)


@pytest.mark.parametrize(
    "kind, config, text",
    [
        (hub.Gemma2ForCausalLM, hub.Gemma2Config(**WITH_HEAD_DIM), "softcap"),
        (
            hub.GptOssForCausalLM,
            hub.GptOssConfig(**WITH_HEAD_DIM, num_local_experts=2, num_experts_per_tok=1),
            "s_aux",
        ),
    ],
)
def test_soft_caps_and_sinks_are_refused(kind, config, text):
    config._attn_implementation = "eager"
    model = twofour.hf.enable(kind(config).eval(), mode="dense")
    with torch.no_grad(), pytest.raises(twofour.UnsupportedError, match=text):
        model(tokens(1, 100))
    twofour.hf.disable(model)
    assert model.config._attn_implementation == "eager"
    with torch.no_grad():
        model(tokens(1, 100))
