"""The GPU benchmark's parts that need no GPU: options, inputs, errors, rows, table, plot."""

import csv
import math
import sys
from pathlib import Path

import numpy
import pytest
import torch
import torch.nn.functional as F

import twofour
from conftest import exact_attention, live_pairs

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import attention as bench
import gpu_accuracy
import gpu_rows
import gpu_timing
import inputs


def session(*arguments):
    options = bench.parse_options(list(arguments))
    options.transform = options.transform or "random"
    return bench.Session(options, gauge=None, commit="abc1234", peers={}, failed=set())


def make_shape(head_dim=64, causal=False, heads=2, kv_heads=1, length=512, dtype=torch.float16):
    problem = inputs.random_problem(length, head_dim, heads, kv_heads, 1.0)
    problem = bench.on_device(problem, dtype, torch.device("cpu"))
    return bench.Shape(head_dim, causal, "random", [problem])


def timed(name, milliseconds, mode=""):
    contender = bench.Contender(name, run=None, mode=mode, kernel=name)
    for regime, slower in (("burst", 1.0), ("sustained", 1.25)):
        median = milliseconds * slower
        contender.timings[regime] = gpu_timing.Timing(median, 0.5 * median, 2 * median)
    contender.timings["sustained"] = gpu_timing.Timing(
        1.25 * milliseconds, milliseconds, 2 * milliseconds, 1600, 690
    )
    return contender


def some_rows(length=512):
    contenders = [timed("fa2", 4.0), timed("cudnn", 2.0), timed("int8", 1.0, "int8")]
    contenders[2].err_same, contenders[2].err_exact = 4.5e-4, 0.125
    return bench.rows_of(make_shape(length=length), contenders, session())


def test_flops_are_two_products_and_half_of_it_when_causal():
    assert gpu_rows.flops(2, 16, 1024, 2048, 128, causal=False) == 4 * 2 * 16 * 1024 * 2048 * 128
    assert gpu_rows.flops(1, 3, 512, 512, 64, causal=True) == 2 * 3 * 512 * 512 * 64
    assert make_shape(causal=True).flops == 2 * 2 * 512 * 512 * 64
    shape = make_shape()
    assert bench.Shape(64, False, "x", shape.problems * 3).flops == 3 * shape.flops


def test_defaults_measure_everything():
    options = bench.parse_options([])
    assert options.masks == [False, True] and options.head_dim == [64, 128]
    assert options.lengths == [2048, 4096, 8192, 16384, 16320, 32768, 32832]
    assert options.modes == list(twofour.MODES) and options.peers == ["fa2", "cudnn", "fa3"]
    assert (options.heads, options.kv_heads, options.tokens) == (16, 16, 16384)
    assert (options.repeats, options.seconds, options.dtype) == (15, 0.7, "fp16")


def test_options():
    given = (
        "--causal --quick --lengths 8192,192 --heads 32 --kv-heads 8 --head-dim 128 --dtype bf16 "
        "--modes int8/pair192/s1/l0/d6 --peers fa2,flex"
    )
    options = bench.parse_options(given.split())
    assert options.masks == [True] and options.lengths == [8192, 192] and options.kv_heads == 8
    assert options.modes == ["int8/pair192/s1/l0/d6"] and options.peers == ["fa2", "flex"]
    assert options.repeats == 5
    assert bench.parse_options(["--quick"]).lengths == [16384]
    assert bench.parse_options(["--full"]).masks == [False]
    assert bench.parse_options(["--modes", ""]).modes == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--heads 16 --kv-heads 3", "--heads: expected a multiple of 3, got 16"),
        ("--peers fa2,fa4", "--peers: expected some of fa2,cudnn,fa3,flex, got fa4"),
        ("--lengths 1024,0", "expected 1 or more, got 0"),
        ("--fa3 missing.so", "--fa3: missing.so: no such file"),
        ("--inputs missing.npz", "--inputs: missing.npz: no such file"),
        ("--force-refined 25", "--force-refined: expected 0 .. 1, got 25.0"),
        ("--transform file", "--transform file: expected --inputs as well"),
        ("--causal --full", "not allowed with argument"),
    ],
)
def test_wrong_options_are_named(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        bench.parse_options(arguments.split())
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["attention.py"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="expected a CUDA GPU that torch can use, found none"):
        bench.main()


def test_columns():
    asked = (
        "date,kernel,mode,sparsity,dtype,head_dim,causal,B,Hq,Hkv,M,N,regime,tflops,tflops_fa2,"
        "tflops_cudnn,tflops_fa3,err_same,err_exact,commit,"
    )
    assert ",".join(gpu_rows.COLUMNS).startswith(asked)


def test_rows_carry_the_peers_of_their_own_regime():
    rows = some_rows()
    assert [row.regime for row in rows] == ["burst"] * 3 + ["sustained"] * 3
    flop = 4 * 2 * 512 * 512 * 64
    burst, sustained = rows[2], rows[5]
    assert burst.tflops == pytest.approx(flop / 1e-3 / 1e12)
    assert burst.ratio("cudnn") == pytest.approx(2) and burst.ratio("fa2") == pytest.approx(4)
    assert burst.ratio("fa3") is None
    assert sustained.tflops_cudnn == pytest.approx(flop / 2.5e-3 / 1e12)
    assert burst.tflops_min == pytest.approx(burst.tflops / 2)
    assert burst.tflops_max == pytest.approx(burst.tflops * 2)
    assert (sustained.clock_mhz, sustained.power_w) == (1600, 690)


def test_csv_is_appended_to(tmp_path):
    path = tmp_path / "results" / "card.csv"
    gpu_rows.append(path, some_rows())
    gpu_rows.append(path, some_rows(1024))
    with path.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert list(found[0]) == gpu_rows.COLUMNS and len(found) == 12
    assert [row["N"] for row in found] == ["512"] * 6 + ["1024"] * 6
    mode, peer = found[2], found[0]
    assert (mode["mode"], mode["err_same"], mode["err_exact"]) == ("int8", "0.00045", "0.125")
    assert (mode["tflops_fa3"], mode["causal"], mode["commit"]) == ("", "0", "abc1234")
    assert float(mode["tflops"]) == pytest.approx(2 * float(mode["tflops_cudnn"]), rel=1e-3)
    assert (peer["kernel"], peer["mode"], peer["sparsity"]) == ("fa2", "", "")


def test_csv_of_another_version_is_left_alone(tmp_path):
    path = tmp_path / "card.csv"
    path.write_text("date,tflops\n2026-01-01,5\n")
    with pytest.raises(ValueError, match=r"expected the columns date,kernel,.*, got date,tflops;"):
        gpu_rows.append(path, some_rows())
    assert path.read_text() == "date,tflops\n2026-01-01,5\n"


def test_table_shows_ratios_of_both_regimes():
    lines = gpu_rows.table(some_rows()).splitlines()
    assert len(lines) == 2  # the heading and the one mode
    cells = lines[1].split()
    assert cells[:6] == ["fp16", "64", "full", "1", "x", "512"] and cells[6] == "int8"
    assert lines[1].count("2.00 / 2.00") == 1 and lines[1].count("4.00 / 4.00") == 1
    assert "- / -" in lines[1] and lines[1].endswith("0.00045     0.125")


def test_plot_shows_every_contender(tmp_path):
    path = tmp_path / "plot.svg"
    gpu_rows.plot([*some_rows(), *some_rows(1024)], path, "a card")
    assert path.read_text().count("<svg") == 1
    gpu_rows.plot([*some_rows(), *some_rows(1024)], tmp_path / "again.svg", "a card")
    assert path.read_text() == (tmp_path / "again.svg").read_text()


def test_copies_exceed_twice_the_l2_and_never_follow_each_other():
    for size in (1, 10, 49, 50, 99, 100, 1000):
        copies = gpu_timing.copies_needed(size, 50)
        assert copies >= 2 and copies * size > 100
        rotation = gpu_timing.Rotation(copies)
        order = [rotation.next() for _ in range(2 * copies)]
        assert sorted(order[:copies]) == list(range(copies)) and order[:copies] == order[copies:]


def test_short_kernels_need_graphs():
    assert gpu_timing.needs_graph(device_ms=0.1, host_ms=0.06)
    assert not gpu_timing.needs_graph(device_ms=5.0, host_ms=0.06)


@pytest.mark.parametrize("causal", [False, True])
def test_exact_error_agrees_with_the_formula(causal):
    shape = make_shape(causal=causal, heads=6, kv_heads=2, length=96, dtype=torch.float32)
    problem = shape.problems[0]
    q, k, v = (t.transpose(1, 2) for t in problem[:3])
    live = live_pairs(96, 96, causal)
    want = exact_attention(q, k, v, live)[0].transpose(1, 2)
    assert gpu_accuracy.exact_error(want, problem, causal) < 1e-12
    sdpa = F.scaled_dot_product_attention(*problem.expanded(), is_causal=causal)
    assert gpu_accuracy.exact_error(sdpa, problem, causal) < 1e-5
    assert gpu_accuracy.exact_error(1.01 * want, problem, causal) == pytest.approx(0.01)
    want[0, 5, 95] = math.nan  # sampled: the last row of the last head
    assert math.isnan(gpu_accuracy.exact_error(want, problem, causal))


def test_samples_are_spread():
    assert gpu_accuracy.sample(3, 4) == [0, 1, 2]
    assert gpu_accuracy.sample(16, 4) == [0, 5, 10, 15]
    assert gpu_accuracy.sample_rows(64) == list(range(64))
    rows = gpu_accuracy.sample_rows(12800)
    assert rows[:3] == [100, 300, 500] and rows[-2:] == [12500, 12799] and len(rows) == 64


@pytest.mark.parametrize("mode", twofour.MODES)
def test_a_mode_is_measured_against_the_reference(mode):
    shape = make_shape(heads=3, kv_heads=1, length=600)
    shape.problems = [bench.with_transform(p, "random") for p in shape.problems]
    run = session()
    contender = bench.mode_contender(mode, shape, run)
    assert contender.sparsity == str(twofour.Sparsity.parse(mode, 64))
    assert 0 < contender.err_same < (0.02 if mode in ("dual", "refined") else 2e-3)
    assert contender.kernel in twofour.kernels()
    assert contender.transform == ("random" if mode in ("dual", "refined") else "")
    o = contender.run(shape.problems[0])
    assert o.shape == shape.problems[0].q.shape
    error = gpu_accuracy.exact_error(o, shape.problems[0], False)
    assert (error < 2e-3) if mode == "dense" else (0.05 < error < 0.9)
    # Another length of random inputs takes the error from memory.
    run.same_errors = dict.fromkeys(run.same_errors, 0.5)
    assert bench.mode_contender(mode, make_shape(length=640), run).err_same == 0.5


@pytest.mark.parametrize(("head_dim", "block"), [(64, 128), (128, 192)])
@pytest.mark.parametrize("transform", ["identity", "random"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.filterwarnings("ignore::twofour.UncalibratedWarning")
def test_forced_inputs_are_refined_where_planted(head_dim, block, transform, causal):
    plain = inputs.random_problem(16 * block, head_dim, 2, 1, 1.0)
    problem = bench.with_transform(plain, transform)
    for share in (0.25, 1.0):
        q, k, v, basis = inputs.force_refined(problem, share, block)
        _, stats = twofour.attention(
            q, k, v, mode="refined", causal=causal, calibration=basis, layout="bhmd",
            return_stats=True,
        )  # fmt: skip
        units, refined = stats.tolist()[:2]
        assert refined / units == pytest.approx(share, abs=0.05)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_inputs_from_files(suffix, tmp_path):
    problems = [inputs.random_problem(64, 16, 4, 2, 1.0) for _ in range(11)]
    problems[1] = problems[1]._replace(basis=None)
    path = tmp_path / f"captured{suffix}"
    if suffix == ".npz":
        arrays = {}
        for i, (q, k, v, basis) in enumerate(problems):
            named = {"q": q, "k": k, "v": v}
            named |= {} if basis is None else {"t_q": basis.t_q, "t_k": basis.t_k}
            arrays |= {f"layers.{i}.{name}": t.numpy() for name, t in named.items()}
        numpy.savez(path, **arrays)
    else:
        inputs.save(path, problems, torch.float32)
    found = inputs.load(path)
    assert len(found) == 11
    for got, want in zip(found, problems, strict=True):  # layers.2 before layers.10
        assert all(torch.equal(a, b) for a, b in zip(got[:3], want[:3], strict=True))
        if want.basis is None:
            assert got.basis is None
        else:
            assert torch.equal(got.basis.t_q, want.basis.t_q)
            assert torch.equal(got.basis.t_k, want.basis.t_k)


def test_wrong_files_are_named(tmp_path):
    path = tmp_path / "x.npz"
    numpy.savez(path, q=numpy.zeros((1, 2, 8, 4)), k=numpy.zeros((1, 2, 8, 4)))
    with pytest.raises(ValueError, match=r"x\.npz: v is missing beside q"):
        inputs.load(path)
    numpy.savez(path, a=numpy.zeros(3))
    with pytest.raises(ValueError, match="expected tensors q, k and v, got a"):
        inputs.load(path)
    numpy.savez(path, **dict.fromkeys("qkv", numpy.zeros((2, 8, 4))))
    with pytest.raises(ValueError, match=r"q, k, v: expected \[B,H,M,D\], got \[2, 8, 4\]"):
        inputs.load(path)
    with pytest.raises(ValueError, match=r"missing\.npz: no such file"):
        inputs.load(tmp_path / "missing.npz")


def test_tensors_are_laid_out_by_rows_and_keep_their_basis():
    problem = make_shape(heads=4, kv_heads=2, length=32).problems[0]
    assert problem.q.dtype == torch.float16 and problem.q.transpose(1, 2).is_contiguous()
    identity = torch.eye(64).expand(2, 64, 64)
    product = problem.basis.t_q @ problem.basis.t_k.transpose(1, 2)
    assert torch.allclose(product, identity, atol=1e-5)
    assert bench.with_transform(problem, "identity").basis is None
    assert bench.with_transform(problem, "file") is problem
    with pytest.raises(ValueError, match="the file has no t_q"):
        bench.with_transform(problem._replace(basis=None), "file")


def test_device_names_become_file_names():
    assert bench.device_slug("NVIDIA H200") == "nvidia-h200"
    assert bench.device_slug("NVIDIA H100 80GB HBM3") == "nvidia-h100-80gb-hbm3"
