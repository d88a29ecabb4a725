"""Padded batches taken apart into packed sequences, as on CUDA, here forced on the CPU."""

import copy

import pytest
import torch

pytest.importorskip("transformers")
from transformers import DynamicCache, MistralConfig, MistralForCausalLM

import twofour
import twofour.hf
from hf_models import SIZES, tiny_llama, tokens
from twofour._hf_pack import packing_of

TOLERANCE = dict(atol=2e-4, rtol=2e-4)


@pytest.fixture(autouse=True)
def packed(monkeypatch):
    """Packs on the CPU too; the arguments of every call."""
    seen = []
    inner = twofour.hf.attention

    def spy(*tensors, **options):
        seen.append(options)
        return inner(*tensors, **options)

    monkeypatch.setattr(twofour.hf, "_packs", lambda query: True)
    monkeypatch.setattr(twofour.hf, "attention", spy)
    with torch.no_grad():
        yield seen


def padding(lengths, width, side):
    column = torch.arange(width)
    real = torch.tensor(lengths)[:, None]
    return column >= width - real if side == "left" else column < real


def positions(mask):
    return (mask.long().cumsum(-1) - 1).clamp(min=0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_real_rows_are_those_of_sdpa(packed, side):
    sdpa = tiny_llama()
    dense = twofour.hf.enable(copy.deepcopy(sdpa), mode="dense")
    ids, mask = tokens(3, 150), padding([150, 97, 3], 150, side)
    options = dict(attention_mask=mask.long(), position_ids=positions(mask))
    got, want = dense(ids, **options).logits, sdpa(ids, **options).logits
    torch.testing.assert_close(got[mask], want[mask], **TOLERANCE)
    assert got.isfinite().all()
    assert packed and all(call["mask"] is None for call in packed)
    assert packed[0]["cu_seqlens_q"].tolist() == [0, 150, 247, 250]
    assert packed[0]["max_seqlen_k"] == 150


def test_a_sequence_has_the_bits_it_has_alone():
    model = twofour.hf.enable(tiny_llama(), mode="score")
    ids, mask = tokens(2, 700), padding([700, 600], 700, "left")
    got = model.base_model(ids, attention_mask=mask.long(), position_ids=positions(mask))
    alone = model.base_model(ids[1:, 100:])
    assert torch.equal(got.last_hidden_state[1, 100:], alone.last_hidden_state[0])


@pytest.mark.parametrize("side", ["left", "right"])
def test_windows_count_from_real_keys(packed, side):
    torch.manual_seed(0)
    sdpa = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=40)).eval()
    dense = twofour.hf.enable(copy.deepcopy(sdpa), mode="dense")
    ids, mask = tokens(2, 120), padding([120, 77], 120, side)
    options = dict(attention_mask=mask.long(), position_ids=positions(mask))
    got, want = dense(ids, **options).logits, sdpa(ids, **options).logits
    torch.testing.assert_close(got[mask], want[mask], **TOLERANCE)
    assert packed[0]["window"] == (39, None) and packed[0]["cu_seqlens_k"].tolist() == [0, 120, 197]


def test_chunks_over_a_cache():
    sdpa = tiny_llama()
    dense = twofour.hf.enable(copy.deepcopy(sdpa), mode="dense")
    ids, mask = tokens(2, 160), padding([160, 90], 160, "left")
    where, logits = positions(mask), []
    for model in (sdpa, dense):
        cache, parts = DynamicCache(config=model.config), []
        for begin, end in [(0, 100), (100, 160)]:
            part = model(
                ids[:, begin:end],
                attention_mask=mask[:, :end].long(),
                position_ids=where[:, begin:end],
                past_key_values=cache,
            )
            parts.append(part.logits)
        logits.append(torch.cat(parts, dim=1))
    torch.testing.assert_close(logits[1][mask], logits[0][mask], **TOLERANCE)


def test_packing_numbers_rows_and_keys():
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()
    found = packing_of(mask, 2, window=True)
    assert found.rows.tolist() == [0, 1] and found.keys.tolist() == [1, 2, 3, 4, 5]
    assert found.cu_seqlens_q.tolist() == [0, 2, 2, 2]
    assert found.cu_seqlens_k.tolist() == [0, 3, 5, 5]
    assert (found.max_seqlen_q, found.max_seqlen_k) == (2, 3)
    assert found.unpack(torch.ones(2, 1, 1), 3, 2).flatten().tolist() == [1, 1, 0, 0, 0, 0]


def test_holes_matter_to_windows_alone():
    holes = torch.tensor([[1, 0, 1, 1]]).bool()
    assert packing_of(holes, 4, window=True) is None
    assert packing_of(holes, 4, window=False).keys.tolist() == [0, 2, 3]
