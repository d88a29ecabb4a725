"""The evaluation: its figures against straightforward ones, on tiny models and on SmolLM2."""

import json
import math
import re

import pytest
import torch

import twofour
import twofour.hf
from hf_models import save_tiny_model, tiny_llama, tokens
from twofour import _fidelity, _metrics, calibrate, eval, models, text

PRUNED = "exact/pair64/s0/l0"


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def logits_of(model, ids, mode):
    with twofour.hf.temporarily(model, mode=mode):
        return model(ids[None], use_cache=False).logits[0].double()


def test_figures_are_those_of_full_logits():
    model, ids = tiny_llama(), tokens(1 + 600 + 600 + 3)
    found = eval.evaluate(model, ids, ["dense", PRUNED], window=600, windows=2, skip=1)
    nll, base_nll, kl, same, excess = [], [], [], [], []
    for piece in ids[1:1201].split(600):
        p = logits_of(model, piece, "sdpa").log_softmax(-1)
        q = logits_of(model, piece, PRUNED).log_softmax(-1)
        nll.append(-q[:-1].gather(1, piece[1:, None]).mean())
        base_nll.append(-p[:-1].gather(1, piece[1:, None]).mean())
        excess.append((p - q)[:-1].gather(1, piece[1:, None])[:, 0])
        kl.append((p.exp() * (p - q)).sum(-1).mean())
        same.append((p.argmax(-1) == q.argmax(-1)).double().mean())
    got = found.modes[PRUNED]
    want_ppl, base_ppl = (math.exp(sum(x) / 2) for x in (nll, base_nll))
    assert got.ppl == pytest.approx(want_ppl, rel=1e-5)
    assert found.modes["sdpa"].ppl == pytest.approx(base_ppl, rel=1e-5)
    assert got.ppl_change_pct == pytest.approx(100 * (want_ppl / base_ppl - 1), abs=1e-3)
    excess = torch.cat(excess)
    want_error = 100 * want_ppl / base_ppl * float(excess.std()) / math.sqrt(len(excess))
    assert got.ppl_change_se_pct == pytest.approx(want_error, rel=1e-3)
    assert found.modes["sdpa"].ppl_change_se_pct == 0
    assert got.kl == pytest.approx(float(sum(kl) / 2), rel=1e-3) and got.kl > 1e-6
    assert got.top1_pct == pytest.approx(100 * float(sum(same) / 2))
    dense = found.modes["dense"]
    assert abs(dense.ppl_change_pct) < 1e-3 and dense.kl < 1e-7
    assert dense.kept_mass == pytest.approx(1, abs=1e-6) and dense.sparsity == "exact/none"
    assert model.config._attn_implementation == "sdpa"


def test_shares_and_times_come_from_what_ran():
    model, ids = tiny_llama(), tokens(1200)
    modes = ["nm24/pair64/s0/l0/r0", "nm24/pair64/s0/l0/d1"]
    found = eval.evaluate(model, ids, modes, window=1200, samples=0)
    for name, field in zip(modes, ("refined", "dropped"), strict=True):
        with twofour.hf.temporarily(model, mode=name), twofour.hf.record(model) as seen:
            model.model(ids[None], use_cache=False)
        want = getattr(seen, field) / seen.units
        assert 0 < want < 1 and getattr(found.modes[name], f"{field}_share") == want
    for result in found.modes.values():
        assert 0 < result.attention_s < result.prefill_s
    assert found.modes["sdpa"].refined_share == 0
    assert math.isnan(found.modes[modes[0]].kept_mass)  # no samples were asked for


def test_sampled_rows_are_spread_evenly():
    assert _fidelity.sampled_rows(100, 4) == [(0, 100)]
    assert _fidelity.sampled_rows(1920, 1) == [(960, 1152)]
    starts = [begin // 192 for begin, _ in _fidelity.sampled_rows(192 * 40, 4)]
    assert starts == [5, 15, 25, 35]
    assert len(_fidelity.sampled_rows(192 * 2, 4)) == 2


def test_exact_rows_are_sdpa():
    q, k, v = torch.randn(4, 50, 16), torch.randn(2, 90, 16), torch.randn(2, 90, 16)
    weights, out = _fidelity.exact_rows(q, k, v, 0.3)
    live = torch.ones(50, 90, dtype=torch.bool).tril(40)
    want = torch.nn.functional.scaled_dot_product_attention(
        q[None], k[None], v[None], attn_mask=live, scale=0.3, enable_gqa=True
    )
    torch.testing.assert_close(out[None], want)
    torch.testing.assert_close(weights.sum(-1), torch.ones(4, 50))


def test_kept_mass_and_error_by_layer_and_head():
    model, ids = tiny_llama(), tokens(192 * 4)
    found = eval.evaluate(model, ids, [PRUNED], window=ids.numel(), samples=4)
    seen = {}
    twofour.hf.enable(model, mode="sdpa")
    with twofour.hf.record(model, lambda layer, *qkv: seen.setdefault(layer, qkv)):
        model.model(ids[None], use_cache=False)
    twofour.hf.disable(model)
    q, k, v, scale = seen[1]
    weights, exact = _fidelity.exact_rows(q[0], k[0], v[0], scale)
    traced = twofour.trace(q, k, v, mode=PRUNED, causal=True, scale=scale, layout="bhmd")
    fidelity = found.fidelity[PRUNED]
    # All four row blocks were sampled, so the sample is the whole.
    want = (weights * traced.kept).sum(-1).mean(-1).double()
    torch.testing.assert_close(fidelity.kept_mass[1], want, atol=1e-6, rtol=1e-6)
    error = (traced.o[0] - exact).flatten(1).norm(dim=1) / exact.flatten(1).norm(dim=1)
    torch.testing.assert_close(fidelity.error[1], error.double(), atol=1e-5, rtol=1e-4)
    assert fidelity.error.shape == (2, 4) and bool((fidelity.kept_mass < 1).all())
    assert found.modes[PRUNED].kept_mass == pytest.approx(float(fidelity.kept_mass.mean()))


def test_calibration_reaches_every_layer(monkeypatch):
    model = tiny_llama()
    found = calibrate.calibrate(model, tokens(4096))
    seen = {"attention": [], "trace": []}

    def spy(module, name):
        inner = getattr(module, name)

        def watched(*args, calibration=None, **options):
            seen[name].append(calibration.t_q)
            return inner(*args, calibration=calibration, **options)

        monkeypatch.setattr(module, name, watched)

    spy(twofour.hf, "attention")
    spy(_fidelity, "trace")
    eval.evaluate(model, tokens(400), ["nm24/none64/s0/l0"], window=400, calibration=found)
    for name, each in (("attention", 1), ("trace", 2)):  # 400 tokens hold two whole row blocks
        want = [layer.t_q for layer in found.layers for _ in range(each)]
        assert len(seen[name]) == len(want)
        assert all(torch.equal(a, b) for a, b in zip(seen[name], want, strict=True))


def test_too_little_text_and_odd_heads_are_refused(monkeypatch):
    with pytest.raises(twofour.InvalidArgumentError, match=r"at least 2010 tokens .* got 2000"):
        eval.evaluate(tiny_llama(), tokens(2000), window=1000, windows=2, skip=10)
    with pytest.raises(twofour.InvalidArgumentError, match="fast"):
        eval.evaluate(tiny_llama(), tokens(200), ["fast"], window=100)
    model = tiny_llama()
    plain = model.forward

    def capped(*args, **kwargs):
        out = plain(*args, **kwargs)
        out.logits = torch.tanh(out.logits)
        return out

    monkeypatch.setattr(model, "forward", capped)
    with pytest.raises(twofour.UnsupportedError, match="changes its logits"):
        _metrics.output_head(model, tokens(10))


def test_command_line(tmp_path, capsys):
    save_tiny_model(tmp_path / "model")
    book = tmp_path / "book.txt"
    book.write_text("She was the youngest of the two daughters. " * 40)
    arguments = ["--model", str(tmp_path / "model"), "--text", str(book), "--tokens", "700"]
    arguments += ["--modes", "dense,score", "--windows", "2", "--samples", "1"]
    run = eval._cli.run
    assert run("eval", eval._main, [*arguments, "--skip", "100", "--json"]) == 0
    output = capsys.readouterr()
    shown = json.loads(output.out)
    assert shown["text"] == "book.txt" and "caution: 1400 tokens" in output.err
    assert list(shown["modes"]) == ["sdpa", "dense", "score"]
    assert shown["modes"]["score"]["sparsity"] == "exact/pair128/s1/l0"
    assert len(shown["modes"]["score"]["layer_head_error"]) == 2
    assert run("eval", eval._main, [*arguments, "--skip", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == ["sdpa", "dense", "score", "caution:"]
    assert re.search(r"1400 tokens are few, .*change: dense 0\.00 %, score \d+\.\d\d %$", lines[-1])
    assert run("eval", eval._main, arguments) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("eval: text: expected at least 34168 tokens")
    assert run("eval", eval._main, ["--modes", "fast"]) == 2
    for usage in (["--windows", "none"], ["--modes", ""], ["--modes", " , "]):
        with pytest.raises(SystemExit, match="2"):
            eval._main(usage)
        assert "--help lists the options" in capsys.readouterr().err


def test_enough_tokens_need_no_caution():
    model, ids = tiny_llama(), tokens(4096)
    found = eval.evaluate(model, ids, ["dense"], window=2048, windows=2, samples=0)
    assert eval.caution(found) == ""
    found = eval.evaluate(model, ids, ["dense"], window=4095, samples=0)
    assert eval.caution(found).startswith("caution: 4095 tokens are few")
    json.dumps(found.as_json(), allow_nan=False)  # kept mass was not measured
    assert "nan" not in eval.table(found)


def test_windows_beyond_the_context_of_the_model_are_refused():
    model, ids = tiny_llama(max_position_embeddings=500), tokens(5000)
    words = "window: expected at most 500 tokens, the max_position_embeddings of llama, got 501"
    with pytest.raises(twofour.InvalidArgumentError, match=words):
        eval.evaluate(model, ids, ["dense"], window=501)
    with pytest.raises(twofour.InvalidArgumentError, match=words):
        calibrate.calibrate(model, ids, window=501)
    eval.evaluate(model, ids, ["dense"], window=500, samples=0)
    read = []
    calibrate.calibrate(model, ids, progress=read.append)
    assert len(read) == 10 and read[0].endswith("500 tokens")  # the default gives way


@pytest.mark.slow
def test_smollm2_end_to_end():
    """The real model on the real book, small: every mode near dense, dense equal to sdpa."""
    try:
        model, tokenizer = models.load(device="cpu")
        words = text.read(None)
    except twofour.IoError as error:
        pytest.skip(f"the model or the text cannot be fetched: {error}")
    assert models.name_of(model) == "SmolLM2-135M-Instruct"
    ids = calibrate.tokenize(tokenizer, words[:60000])
    basis = calibrate.calibrate(model, ids[:4096], window=2048)
    found = eval.evaluate(
        model, ids, ["dense", "score", "int8", "dual", "refined"], window=1536, skip=6000,
        calibration=basis, samples=1,
    )  # fmt: skip
    results = found.modes
    assert 15 < results["sdpa"].ppl < 45
    assert abs(results["dense"].ppl_change_pct) < 0.01 and results["dense"].kl < 1e-6
    for mode, change, kl in [("score", 1, 0.01), ("int8", 1, 0.012), ("refined", 1, 0.01)]:
        assert abs(results[mode].ppl_change_pct) < change and results[mode].kl < kl
        assert results[mode].top1_pct > 90 and 0.95 < results[mode].kept_mass < 1
    assert results["refined"].kl < results["dual"].kl < 0.05
    assert 0.05 < results["refined"].refined_share < 0.6
