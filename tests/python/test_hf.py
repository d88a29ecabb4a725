"""twofour inside transformers: in dense mode it must be what sdpa is, whatever the caller does."""

import copy
import warnings

import pytest
import torch

pytest.importorskip("transformers")
from transformers import (
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    StaticCache,
)

import twofour
import twofour.hf
from hf_models import SIZES, tiny_llama, tokens
from twofour._hf_mask import CausalMask, causal_or_stored_mask
from twofour._hf_modes import Run, head_modes, head_runs

# fp32 sums in another order, through two layers and a head.
TOLERANCE = dict(atol=2e-4, rtol=2e-4)


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@pytest.fixture
def pair():
    """The same model under sdpa and under twofour in dense mode."""
    model = tiny_llama()
    return model, twofour.hf.enable(copy.deepcopy(model), mode="dense")


@pytest.fixture
def calls(monkeypatch):
    """Keyword arguments of every call that reaches twofour.attention."""
    seen = []
    inner = twofour.hf.attention

    def spy(q, k, v, **options):
        seen.append({"q": tuple(q.shape), "k": tuple(k.shape), **options})
        return inner(q, k, v, **options)

    monkeypatch.setattr(twofour.hf, "attention", spy)
    return seen


def padding(lengths: list[int], width: int, side: str) -> torch.Tensor:
    mask = torch.zeros(len(lengths), width, dtype=torch.long)
    for row, length in enumerate(lengths):
        if side == "left":
            mask[row, width - length :] = 1
        else:
            mask[row, :length] = 1
    return mask


def test_forward_is_sdpa_and_builds_no_mask(pair, calls):
    sdpa, dense = pair
    ids = tokens(2, 200)
    torch.testing.assert_close(dense(ids).logits, sdpa(ids).logits, **TOLERANCE)
    assert [(c["mode"], c["causal"], c["mask"]) for c in calls] == [("exact/none", True, None)] * 2
    assert calls[0]["k"][2] == 2  # KV heads are not repeated


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_batch(pair, calls, side):
    sdpa, dense = pair
    ids, mask = tokens(3, 150), padding([150, 97, 3], 150, side)
    live = mask.bool()
    position = (mask.cumsum(-1) - 1).clamp(min=0)
    want = sdpa(ids, attention_mask=mask, position_ids=position).logits
    got = dense(ids, attention_mask=mask, position_ids=position).logits
    torch.testing.assert_close(got[live], want[live], **TOLERANCE)
    assert calls[0]["causal"] and calls[0]["mask"].shape == (3, 1, 1, 150)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_batch_is_each_sequence_alone(pair, side):
    _, dense = pair
    ids, lengths = tokens(2, 130), [130, 71]
    mask = padding(lengths, 130, side)
    position = (mask.cumsum(-1) - 1).clamp(min=0)
    got = dense(ids, attention_mask=mask, position_ids=position).logits
    alone = dense(ids[1:, -71:] if side == "left" else ids[1:, :71]).logits
    torch.testing.assert_close(got[1][mask[1].bool()], alone[0], **TOLERANCE)


def test_cache_decoding_is_sdpa(pair, calls):
    ids = tokens(2, 120)
    caches = [DynamicCache(config=m.config) for m in pair]
    for begin, end in [(0, 100), (100, 101), (101, 110), (110, 111), (111, 120)]:
        logits = []
        for which, model in enumerate(pair):
            logits.append(model(ids[:, begin:end], cache=caches[which], use_cache=True).logits)
        torch.testing.assert_close(logits[1], logits[0], **TOLERANCE)
    assert {c["q"][1] for c in calls} == {100}  # fewer than 64 new tokens are SDPA's


def test_chunked_prefill_is_one_call(pair, calls):
    _, dense = pair
    ids = tokens(1, 300)
    whole = dense(ids).logits
    calls.clear()
    cache, parts = DynamicCache(config=dense.config), []
    for begin, end in [(0, 70), (70, 171), (171, 300)]:
        parts.append(dense(ids[:, begin:end], cache=cache, use_cache=True).logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole, **TOLERANCE)
    assert [(c["k"][1], c["mask"]) for c in calls[::2]] == [(70, None), (171, None), (300, None)]


@pytest.mark.parametrize("side", [None, "left"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate_is_sdpa(pair, cache, side):
    sdpa, dense = pair
    ids = tokens(2, 90)
    mask = torch.ones_like(ids) if side is None else padding([90, 66], 90, side)
    options = dict(
        attention_mask=mask,
        max_new_tokens=12,
        do_sample=False,
        cache_implementation=None if cache == "dynamic" else "static",
        disable_compile=True,
    )
    assert torch.equal(dense.generate(ids, **options), sdpa.generate(ids, **options))


def test_static_cache_prefill_in_chunks(pair, calls):
    ids = tokens(1, 200)
    results = []
    for model in pair:
        cache = StaticCache(model.config, max_cache_len=256)
        first = model(ids[:, :80], cache=cache, use_cache=True).logits
        second = model(ids[:, 80:], cache=cache, use_cache=True).logits
        results.append(torch.cat([first, second], 1))
    torch.testing.assert_close(results[1], results[0], **TOLERANCE)
    assert [c["k"][1] for c in calls[::2]] == [80, 200]  # the unused rest of the cache is left out


def mistral(window: int = 40) -> MistralForCausalLM:
    torch.manual_seed(3)
    return MistralForCausalLM(MistralConfig(**SIZES, sliding_window=window)).eval()


def test_sliding_window_is_sdpa(calls):
    sdpa = mistral()
    dense = twofour.hf.enable(copy.deepcopy(sdpa), mode="dense")
    ids, mask = tokens(2, 150), padding([150, 100], 150, "left")
    torch.testing.assert_close(dense(ids).logits, sdpa(ids).logits, **TOLERANCE)
    assert calls[0]["window"] == (39, None) and calls[0]["mask"] is None
    got = dense(ids, attention_mask=mask).logits[mask.bool()]
    torch.testing.assert_close(got, sdpa(ids, attention_mask=mask).logits[mask.bool()], **TOLERANCE)


def test_sliding_window_cache_and_generate_are_sdpa():
    sdpa = mistral()
    dense = twofour.hf.enable(copy.deepcopy(sdpa), mode="dense")
    ids = tokens(1, 230)
    caches = [DynamicCache(config=sdpa.config) for _ in range(2)]
    for begin, end in [(0, 70), (70, 150), (150, 151), (151, 230)]:
        logits = []
        for which, model in enumerate((sdpa, dense)):
            logits.append(model(ids[:, begin:end], cache=caches[which], use_cache=True).logits)
        torch.testing.assert_close(logits[1], logits[0], **TOLERANCE)
    options = dict(max_new_tokens=8, do_sample=False)
    assert torch.equal(dense.generate(ids, **options), sdpa.generate(ids, **options))


def test_packed_sequences_by_position_ids(pair):
    sdpa, dense = pair
    ids = tokens(1, 160)
    position = torch.cat([torch.arange(90), torch.arange(70)])[None]
    want = sdpa(ids, position_ids=position, use_cache=False).logits
    got = dense(ids, position_ids=position, use_cache=False).logits
    torch.testing.assert_close(got, want, **TOLERANCE)
    alone = dense(ids[:, 90:], use_cache=False).logits
    torch.testing.assert_close(got[:, 90:], alone, **TOLERANCE)


def test_custom_4d_masks(pair):
    sdpa, dense = pair
    ids = tokens(1, 100)
    live = torch.rand(1, 1, 100, 100, generator=torch.Generator().manual_seed(5)) < 0.5
    live |= torch.eye(100, dtype=torch.bool)
    want = sdpa(ids, attention_mask=live).logits
    torch.testing.assert_close(dense(ids, attention_mask=live).logits, want, **TOLERANCE)
    additive = torch.zeros(1, 1, 100, 100).masked_fill(~live, torch.finfo(torch.float32).min)
    torch.testing.assert_close(dense(ids, attention_mask=additive).logits, want, **TOLERANCE)
    with pytest.raises(twofour.UnsupportedError, match="additive bias"):
        dense(ids, attention_mask=additive * 1e-3)


def test_implementation_name_alone(tmp_path):
    model = tiny_llama()
    model.save_pretrained(tmp_path)
    loaded = LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation="twofour").eval()
    ids = tokens(1, 80)
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits, **TOLERANCE)


def test_auto_is_exact_below_a_thousand_keys(calls):
    model = tiny_llama()
    want = model(tokens(1, 1023)).logits
    twofour.hf.enable(model)
    assert torch.equal(model(tokens(1, 1023)).logits, want)
    assert calls == []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model(tokens(1, 1024))
    assert [c["mode"] for c in calls] == ["auto", "auto"]


def test_enable_refuses_an_unknown_kernel_at_once():
    with pytest.raises(twofour.NotFoundError, match="kernel: expected one of"):
        twofour.hf.enable(tiny_llama(), mode="dense", kernel="foo")


def test_disable_undoes_enable():
    model = tiny_llama()
    ids = tokens(1, 400)
    want, keys = model(ids).logits, set(vars(model))
    layer_keys = [set(vars(layer.self_attn)) for layer in model.model.layers]
    twofour.hf.enable(model, mode="score")
    twofour.hf.enable(model, mode="exact/pair64/s0/l0")
    assert model.config._attn_implementation == "twofour"
    assert not torch.equal(model(ids).logits, want)
    twofour.hf.disable(twofour.hf.disable(model))
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(model(ids).logits, want)
    assert set(vars(model)) == keys
    assert [set(vars(layer.self_attn)) for layer in model.model.layers] == layer_keys


def test_approximate_mode_announces_itself_once(monkeypatch):
    monkeypatch.setattr(twofour.hf, "_announced", set())
    model = twofour.hf.enable(tiny_llama(), mode="exact/pair64/s2/l0")
    with pytest.warns(twofour.hf.ApproximateWarning, match=r"exact/pair64/s2/l0") as caught:
        model(tokens(1, 100))
    assert len(caught) == 1  # two layers, one warning
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(tokens(1, 100))
        twofour.hf.enable(model, mode="dense")(tokens(1, 100))


def test_modes_per_layer_and_head(calls):
    ids = tokens(1, 400)
    pruned = "exact/pair64/s0/l0"
    everywhere = twofour.hf.enable(tiny_llama(), mode=pruned)(ids).logits
    sdpa = tiny_llama()(ids).logits
    calls.clear()
    per_layer = [pruned, "sdpa"]
    model = twofour.hf.enable(tiny_llama(), mode=per_layer)
    by_list = model(ids).logits
    assert [c["mode"] for c in calls] == [pruned]
    assert not torch.allclose(by_list, everywhere) and not torch.allclose(by_list, sdpa)
    by_dict = twofour.hf.enable(model, mode={0: pruned, "default": "sdpa"})(ids).logits
    by_call = twofour.hf.enable(model, mode=lambda layer: per_layer[layer])(ids).logits
    assert torch.equal(by_dict, by_list) and torch.equal(by_call, by_list)
    # All heads named one by one is the same as the layer named once.
    by_head = twofour.hf.enable(model, mode={(0, h): pruned for h in range(4)} | {1: "sdpa"})
    assert torch.equal(by_head(ids).logits, by_list)
    # One head alone changes less than all of them, and something.
    one = twofour.hf.enable(model, mode={(0, 1): pruned, "default": "sdpa"})(ids).logits
    assert 0 < (one - sdpa).norm() < (by_list - sdpa).norm()


def test_head_runs_merge_whole_groups_only():
    assert head_runs(("a",) * 6, 3) == [Run("a", 0, 6, 0, 3)]
    assert head_runs(("a", "a", "a", "b", "b", "b"), 3) == [
        Run("a", 0, 2, 0, 1),
        Run("a", 2, 3, 1, 2),
        Run("b", 3, 4, 1, 2),
        Run("b", 4, 6, 2, 3),
    ]
    assert head_runs(("a", "a", "b", "b", "b", "b"), 3) == [
        Run("a", 0, 2, 0, 1),
        Run("b", 2, 6, 1, 3),
    ]


@pytest.mark.parametrize(
    "modes, text",
    [
        ("fast", "fast"),
        (7, "expected"),
        (["dense"], "2 layers"),
        ([["dense"], "dense"], "4 query heads"),
        ({5: "dense"}, "0..1"),
        ({(0, 4): "dense"}, "0..3"),
        ({"all": "dense"}, "default"),
    ],
)
def test_bad_modes_are_named(modes, text):
    with pytest.raises(twofour.InvalidArgumentError, match=text):
        twofour.hf.enable(tiny_llama(), mode=modes)


def test_modes_resolve_their_block():
    assert head_modes("score", 2, 0, 2, 64) == ("exact/pair128/s1/l0",) * 2
    assert head_modes({1: ["sdpa", "int8"]}, 2, 1, 2, 128) == ("sdpa", "int8/pair192/s1/l0")
    assert head_modes({1: "sdpa"}, 2, 0, 2, 64) == ("auto", "auto")


@pytest.mark.parametrize(
    "option, value",
    [("softcap", 30.0), ("s_aux", torch.zeros(4)), ("head_mask", torch.ones(4)), ("dropout", 0.1),
     ("output_attentions", True)],
)  # fmt: skip
def test_what_does_not_exist_is_refused(option, value):
    model = twofour.hf.enable(tiny_llama(), mode="dense")
    module = model.model.layers[0].self_attn
    q, k = torch.randn(1, 4, 80, 16), torch.randn(1, 2, 80, 16)
    with pytest.raises(twofour.UnsupportedError, match=option):
        twofour.hf.attention_forward(module, q, k, k, None, **{option: value})


def test_training_with_dropout_and_gradients_are_refused():
    model = twofour.hf.enable(tiny_llama(attention_dropout=0.1), mode="dense").train()
    with pytest.raises(twofour.UnsupportedError, match="dropout"):
        model(tokens(1, 80))
    with torch.enable_grad(), pytest.raises(twofour.UnsupportedError, match="grad"):
        model.eval()(tokens(1, 80))


def test_models_without_the_attention_interface_are_refused():
    with pytest.raises(twofour.UnsupportedError, match="attention interface"):
        twofour.hf.enable(torch.nn.Linear(4, 4))


@pytest.mark.parametrize("call", [twofour.hf.enable, twofour.hf.disable])
def test_what_is_no_model_is_named(call):
    with pytest.raises(twofour.InvalidArgumentError, match=r"a model of .*, got object"):
        call(object())


def test_calibrations_are_objects_or_paths():
    with pytest.raises(twofour.InvalidArgumentError, match=r"a Calibration or .*, got int"):
        twofour.hf.enable(tiny_llama(), mode="dual", calibration=3)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("padded", [False, True])
def test_causal_mask_is_the_mask_of_sdpa(window, padded):
    from transformers.masking_utils import (
        causal_mask_function,
        chunked_causal_mask_function,
        sdpa_mask,
        sliding_window_causal_mask_function,
    )

    function = causal_mask_function
    if window is not None:
        function = sliding_window_causal_mask_function(window)
    mask = padding([20, 13], 20, "left").bool() if padded else None
    options = dict(
        batch_size=2, q_length=8, kv_length=17, q_offset=12, kv_offset=3, mask_function=function,
        attention_mask=mask, local_size=window,
    )  # fmt: skip
    got = causal_or_stored_mask(**options)
    want = sdpa_mask(**options).expand(2, 1, 8, 17)
    assert isinstance(got, CausalMask) and got._stored is None
    assert torch.equal(got | torch.zeros_like(want), want)  # any operation sees the real values
    # Chunked attention also passes local_size, and is not a window.
    options["mask_function"] = chunked_causal_mask_function(5, torch.zeros(2, dtype=torch.long))
    options["local_size"] = 5
    chunked = causal_or_stored_mask(**options)
    assert not isinstance(chunked, CausalMask)
    assert torch.equal(chunked, sdpa_mask(**options))


@pytest.mark.parametrize("rows", [1, 128])
def test_compiles_into_one_graph(pair, rows):
    _, dense = pair
    compiled = torch.compile(dense, backend="eager", fullgraph=True)
    ids = tokens(1, rows)
    got = compiled(ids, use_cache=False).logits
    torch.testing.assert_close(got, dense(ids, use_cache=False).logits, **TOLERANCE)
    padded = torch.ones_like(ids)
    got = compiled(ids, attention_mask=padded, use_cache=False).logits
    torch.testing.assert_close(got, dense(ids, use_cache=False).logits, **TOLERANCE)


def test_recorder_counts_and_times():
    model = twofour.hf.enable(tiny_llama(), mode="exact/pair64/s0/l0")
    shapes = []
    with twofour.hf.record(
        model, lambda layer, q, k, v, s: shapes.append((layer, q.shape))
    ) as seen:
        model(tokens(1, 400))
    # Rows 384..399 see 6 whole blocks less the diagonal one, rows 192..383 three: (5*1 + 3*3)
    # units of 64 rows, two half-blocks each, 4 heads, 2 layers.
    assert seen.units == (6 * 1 + 3 * 3) * 2 * 4 * 2
    assert seen.seconds > 0 and seen.refined == 0 and seen.dropped == 0
    assert shapes == [(0, (1, 4, 400, 16)), (1, (1, 4, 400, 16))]
    before = seen.seconds
    model(tokens(1, 100))
    assert seen.seconds == before


def test_enable_again_after_another_implementation_was_set():
    model, ids = tiny_llama(), tokens(1, 400)
    want = twofour.hf.enable(copy.deepcopy(model), mode="exact/pair64/s0/l0")(ids).logits
    twofour.hf.enable(model, mode="dense")
    model.set_attn_implementation("sdpa")
    assert torch.equal(twofour.hf.enable(model, mode="exact/pair64/s0/l0")(ids).logits, want)
    twofour.hf.disable(model)
    assert model.config._attn_implementation == "sdpa"


def test_models_of_one_configuration_stay_apart():
    config, ids = LlamaConfig(**SIZES), tokens(1, 400)
    first, second = (LlamaForCausalLM(config).eval() for _ in range(2))
    assert first.config is second.config and first.model.config is first.config
    want, sdpa = second(ids).logits, first(ids).logits
    twofour.hf.enable(first, mode="exact/pair64/s0/l0")
    assert not torch.equal(first(ids).logits, sdpa)
    assert second.config._attn_implementation == "sdpa"
    assert torch.equal(second(ids).logits, want)
    twofour.hf.enable(second, mode="exact/pair64/s0/l0")
    pruned = second(ids).logits
    twofour.hf.disable(first)
    assert torch.equal(first(ids).logits, sdpa)
    assert torch.equal(second(ids).logits, pruned) and not torch.equal(pruned, want)
    assert first.model.config is first.config  # still one configuration within a model


def test_nested_recorders_and_modes_keep_the_outer_one():
    model, ids = twofour.hf.enable(tiny_llama(), mode="exact/pair64/s0/l0"), tokens(1, 400)
    with twofour.hf.record(model) as outer:
        with twofour.hf.record(model) as inner:
            model(ids)
        assert inner.units > 0 and outer.units == 0
        model(ids)
        assert outer.units == inner.units
        with twofour.hf.temporarily(model, mode="exact/pair64/s0/l0"):
            model(ids)
        assert outer.units == 2 * inner.units
