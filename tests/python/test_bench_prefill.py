"""The benchmark of the time to first token, end to end on the CPU with a tiny model."""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend
from transformers import AttentionInterface

import twofour.hf

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import gpu_peers
import prefill
import prefill_models

TINY = ["--model", "tiny", "--device", "cpu", "--repeats", "2"]


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def make_bench(*arguments, longest=1024):
    options = prefill.parse_options([*TINY, *arguments])
    subject = prefill_models.load("tiny", torch.device("cpu"), None, options.layers, longest)
    bench = prefill.Bench(subject, options)
    AttentionInterface.register(prefill.PEER_NAME, bench.peer_forward)
    return bench


def with_peers(monkeypatch, peers, missing=None):
    monkeypatch.setattr(gpu_peers, "find", lambda names, fa3: (peers, missing or {}))


def test_end_to_end(tmp_path, capsys):
    out = tmp_path / "results/tiny.json"
    arguments = [*TINY, "--lengths", "1024,1536", "--modes", "score,sdpa,dense,refined"]
    arguments += ["--layers", "3", "--breakdowns", "2", "--out", str(out)]
    assert prefill.main(arguments) == 0
    shown = capsys.readouterr().out.splitlines()
    table = [line.split() for line in shown[-9:-1]]
    assert [row[:2] for row in table] == [
        [length, name] for length in ("1024", "1536")
        for name in ("sdpa", "score", "dense", "refined")
    ]  # fmt: skip
    found = json.loads(out.read_text())
    assert found["model"]["layers"] == 3 and found["model"]["name"] == "tiny-random"
    assert found["command"].startswith("bench/prefill.py --model tiny")
    assert found["versions"]["torch"] == torch.__version__ and found["machine"]["cpu"]
    assert list(found["lengths"]) == ["1024", "1536"]
    for rows in found["lengths"].values():
        by_name = {row["name"]: row for row in rows}
        for row in rows:
            times, parts = row["ttft_ms"], row["parts_ms"]
            assert 0 < times["min"] <= times["median"] <= times["max"] and times["n"] == 2
            assert all(parts[name] > 0 for name in ("attention", "projections", "mlp", "total"))
            want = by_name["sdpa"]["ttft_ms"]["median"] / times["median"]
            assert row["ratio"] == {"sdpa": pytest.approx(want)}
            want = by_name["sdpa"]["parts_ms"]["attention"] / parts["attention"]
            assert row["attention_ratio"] == {"sdpa": pytest.approx(want)}
            assert row["same_token"]
        assert by_name["dense"]["logits_error"] < 1e-5 < by_name["score"]["logits_error"] < 0.5
        assert by_name["dense"]["kernel"].startswith("attention.cpu")
        assert by_name["refined"]["sparsity"] == str(twofour.Sparsity.parse("refined", 16))
        assert 0 <= by_name["refined"]["refined_share"] <= 1
        assert by_name["sdpa"]["refined_share"] is None


def test_parts_sum_to_the_total_of_a_pass():
    bench = make_bench("--modes", "dense")
    (figures,) = bench.run(600)
    parts = figures.parts_ms
    assert sum(parts[name] for name in (*prefill.PARTS, "rest")) == pytest.approx(parts["total"])
    assert parts["rest"] > 0


def test_every_part_is_marked_in_every_layer():
    bench = make_bench("--modes", "dense")
    bench.select("dense")
    marks = prefill.Marks(bench.device)
    with bench.marked(marks):
        bench.first_token(bench.subject.prompt(100))
    counts = {part: len(spans) for part, spans in marks.parts.items()}
    assert counts == {"attention": 2, "projections": 8, "mlp": 2}
    bench.first_token(bench.subject.prompt(100))  # unmarked again
    assert counts == {part: len(spans) for part, spans in marks.parts.items()}
    assert AttentionInterface()[twofour.hf.NAME] is twofour.hf.attention_forward


def test_contenders_run_what_they_are_called(monkeypatch):
    calls = []
    inner = gpu_peers.sdpa(SDPBackend.MATH)

    def fa2(problem, causal):
        calls.append((problem.q.shape, problem.k.shape, causal))
        return inner(problem, causal)

    with_peers(monkeypatch, {"fa2": fa2})
    bench = make_bench("--modes", "score,sdpa")
    prompt = bench.subject.prompt(1024)
    got = {}
    for name in bench.names():
        bench.select(name)
        got[name] = bench.first_token(prompt)
    assert list(got) == ["sdpa", "fa2", "score"]
    assert calls == [((1, 4, 1024, 16), (1, 2, 1024, 16), True)] * 2
    torch.testing.assert_close(got["fa2"], got["sdpa"])
    with twofour.hf.temporarily(bench.model, mode="score"):
        want = bench.model(prompt).logits[0, -1]
    torch.testing.assert_close(got["score"], want)
    assert not torch.allclose(got["score"], got["sdpa"], atol=1e-4)


def test_what_cannot_run_is_named_and_the_rest_runs(monkeypatch, capsys, tmp_path):
    def broken(problem, causal):
        raise RuntimeError("no kernel for this\nsecond line")

    peers = {"fa2": gpu_peers.sdpa(SDPBackend.MATH), "cudnn": broken}
    with_peers(monkeypatch, peers, {"fa3": "no such library"})
    out = tmp_path / "x.json"
    arguments = [*TINY, "--lengths", "600", "--modes", "dense,nothing", "--out", str(out)]
    assert prefill.main(arguments) == 1
    shown = capsys.readouterr().out
    assert "fa3: missing: no such library" in shown
    assert "cudnn: cannot run: no kernel for this\n" in shown
    assert "nothing: cannot run: mode" in shown
    found = json.loads(out.read_text())
    assert found["missing"] == {"fa3": "no such library"}
    rows = found["lengths"]["600"]
    assert [row["name"] for row in rows] == ["fa2", "dense"]
    assert rows[1]["ratio"].keys() == {"fa2"} and rows[1]["logits_error"] < 1e-5


def test_first_token_is_that_of_the_whole_forward_pass():
    bench = make_bench("--modes", "sdpa")
    prompt = bench.subject.prompt(300)
    _, token = bench.time_ms(prompt)
    assert token == int(bench.model(prompt).logits[0, -1].argmax())


def test_mlps_in_chunks_compute_the_same():
    model = make_bench().model
    ids = torch.arange(90)[None]
    want = model(ids).logits
    prefill_models.run_mlps_in_chunks(model, 32)
    rows = []
    gate = model.model.layers[1].mlp.gate_proj
    gate.register_forward_hook(lambda module, given, out: rows.append(given[0].size(1)))
    torch.testing.assert_close(model(ids).logits, want)
    assert rows == [32, 32, 26]


def test_the_8b_shape_is_that_of_llama_3():
    subject = prefill_models.load("llama3-8b", torch.device("meta"), torch.bfloat16, None, 131072)
    shape = prefill_models.describe(subject.model)
    assert shape["parameters"] == 8_030_261_248 and shape["dtype"] == "bf16"
    assert (shape["layers"], shape["heads"], shape["kv_heads"], shape["head_dim"]) == (
        32,
        32,
        8,
        128,
    )
    assert subject.model.config.rope_parameters["rope_theta"] == 500000
    assert subject.prompt(131072).shape == (1, 131072)
    assert len(prefill_models.mlps(subject.model)) == 32
    assert len(prefill_models.projections(subject.model)) == 128
    fewer = prefill_models.load("llama3-8b", torch.device("meta"), torch.bfloat16, 2, 8192)
    assert prefill_models.describe(fewer.model)["layers"] == 2


def test_random_bases_fit_the_model_and_are_inverse():
    bench = make_bench("--modes", "dual")
    assert len(bench.basis.layers) == 2 and bench.basis.heads_kv == 2
    layer = bench.basis.layers[1]
    identity = torch.eye(16).expand(2, 16, 16)
    torch.testing.assert_close(layer.t_q @ layer.t_k.mT, identity, atol=1e-5, rtol=0)
    (figures,) = bench.run(1024)
    assert figures.sparsity.startswith("nm24/") and figures.logits.isfinite().all()


def test_peers_refuse_what_they_would_ignore():
    bench = make_bench("--modes", "sdpa")
    q = torch.randn(1, 2, 8, 16)
    with pytest.raises(ValueError, match="plain causal call with the usual scale"):
        bench.peer_forward(None, q, q, q, None, scaling=1.0)
    with pytest.raises(ValueError, match="plain causal call"):
        bench.peer_forward(None, q, q, q, torch.ones(8, 8, dtype=torch.bool))


def test_lengths():
    options = prefill.parse_options(TINY)
    assert prefill.lengths_of(options, None) == [8192, 32768, 131072]
    assert prefill.lengths_of(options, 8192) == [8192]
    assert prefill.lengths_of(options, 2048) == [2048]
    options = prefill.parse_options([*TINY, "--lengths", "8192,4096"])
    assert prefill.lengths_of(options, None) == [8192, 4096]
    with pytest.raises(ValueError, match="expected at most 4096, got 8192"):
        prefill.lengths_of(options, 4096)


def test_options():
    options = prefill.parse_options([])
    assert options.model == "smollm2" and options.peers == ["fa2", "cudnn", "fa3"]
    assert options.modes == ["dense", "score", "int8", "dual", "refined"]
    assert prefill.parse_options(TINY).peers == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--peers fa2,fa4", "--peers: expected some of fa2,cudnn,fa3, got fa4"),
        ("--device cpu --peers fa2", "--peers: expected none on the CPU, got fa2"),
        ("--device cpu --modes ,", "expected --modes or --peers, got neither"),
        ("--fa3 missing.so", "--fa3: missing.so: no such file"),
        ("--calibration none", "--calibration: none: no such file"),
        ("--lengths 0", "expected 1 or more, got 0"),
        ("--mlp-chunk -1", "expected 0 or more"),
    ],
)
def test_wrong_options_are_named(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        prefill.parse_options(arguments.split())
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_wrong_requests_are_named(monkeypatch):
    with pytest.raises(ValueError, match="--layers: expected a model of llama3-8b, tiny, got x"):
        prefill_models.load("x", torch.device("cpu"), None, 2, 100)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="expected a CUDA GPU that torch can use, found none"):
        prefill.main(["--model", "tiny"])
