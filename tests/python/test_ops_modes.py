"""Every mode: against the reference, by the trace, mode "auto", calibration, determinism."""

import subprocess
import sys
import warnings

import pytest
import torch

import twofour
from conftest import (
    REFERENCE,
    TOLERANCE,
    assert_close,
    balanced_calibration,
    exact_attention,
    make_qkv,
)

MODES = [
    *twofour.MODES,
    "exact/nm24_adjacent/s1",
    "exact/pair64/d3",
    "int8/none",
    "nm24/pair/s0/l0",
]
# Softened scores: no near ties of the kind that may fall either way decide the comparison.
STD = 3.0


def uneven_qkv(m, n, hq, hkv):
    """Key blocks of 128 that matter little (the second, the fourth) and much (the third)."""
    q, k, v = make_qkv(1, m, n, hq, hkv)
    for block, factor in enumerate((1.0, 0.02, 2.0, 0.02)):
        k[:, 128 * block : 128 * (block + 1)] *= factor
    return q, k, v


pytestmark = pytest.mark.filterwarnings("ignore::twofour.UncalibratedWarning")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_equals_reference(mode, causal, dtype):
    q, k, v = make_qkv(1, 400, 700, 2, 1, dtype=dtype, std=STD)
    options = {"mode": mode, "causal": causal, "return_lse": True}
    o, lse = twofour.attention(q, k, v, **options)
    want_o, want_lse = twofour.attention(q, k, v, **options, kernel=REFERENCE)
    # A near tie that falls the other way changes one row a little: rows are compared in the mean
    # by the type's rounding, and one by one by what a tie can cost.
    error = (o.double() - want_o.double()).abs()
    assert error.mean() <= TOLERANCE[dtype]
    assert error.max() <= 1e3 * TOLERANCE[torch.float32] + TOLERANCE[dtype] * want_o.abs().max()
    assert (lse - want_lse).abs().mean() <= TOLERANCE[torch.float32] * 10


@pytest.mark.parametrize("mode", MODES[1:])
def test_modes_differ_from_dense(mode):
    q, k, v = make_qkv(1, 400, 700, 1)
    dense = twofour.attention(q, k, v, mode="dense")
    assert (twofour.attention(q, k, v, mode=mode) - dense).abs().max() > 1e-4


@pytest.mark.parametrize("mode", ["score", "dual", "refined", "exact/pair64/d1"])
def test_output_follows_from_the_trace(mode):
    """With exact QK of what was kept, o and lse are the softmax over the kept pairs alone."""
    q, k, v = uneven_qkv(300, 600, 2, 1)
    out = twofour.trace(q, k, v, mode=mode, causal=True, kernel=REFERENCE)
    assert out.kept.shape == (2, 300, 600) and out.kept.dtype == torch.bool
    live = torch.ones(300, 600, dtype=torch.bool).tril(300)
    assert not (out.kept & ~live).any()
    assert out.kept.sum() < 2 * live.sum()
    if mode in ("score", "exact/pair64/d1"):
        want_o, want_lse = exact_attention(q, k, v, out.kept[None])
        assert_close(out.o, want_o, TOLERANCE[torch.float32])
        assert_close(out.lse, want_lse, TOLERANCE[torch.float32])
    kinds = {"score": {0, 1}, "dual": {0, 1}, "refined": {0, 1, 2}, "exact/pair64/d1": {0, 1, 3}}
    assert set(out.unit.unique().tolist()) == kinds[mode]


@pytest.mark.parametrize("mode", MODES)
def test_the_chosen_debugging_kernel_traces_what_the_fast_one_computes(mode):
    q, k, v = uneven_qkv(300, 600, 2, 1)
    out = twofour.trace(q, k, v, mode=mode, causal=True)
    o, lse, stats = twofour.attention(
        q, k, v, mode=mode, causal=True, return_lse=True, return_stats=True
    )
    assert torch.equal(out.o, o) and torch.equal(out.lse, lse)
    # A unit is 64 positions by half a block. Position 0 of the call is 300, so the first run of
    # rows in a unit is short; every run has one decision per half-block.
    starts = [0, *range(320 - 300, 300, 64)]
    decisions = out.unit[:, starts]
    counts = [int((decisions == kind).sum()) for kind in (1, 2, 3)]
    assert stats[:3].tolist() == [sum(counts), counts[1], counts[2]]
    # Near ties aside, the reference decides the same.
    want = twofour.trace(q, k, v, mode=mode, causal=True, kernel=REFERENCE)
    assert torch.equal(out.unit, want.unit)
    assert (out.kept != want.kept).double().mean() < 1e-3


def test_pair_keeps_the_larger_of_each_pair():
    q, k, v = make_qkv(1, 64, 384, 1)
    out = twofour.trace(q, k, v, mode="exact/pair128/s1", kernel=REFERENCE)
    scores = (q[0, :, 0] @ k[0, :, 0].T)[:, 128:].view(64, 2, 2, 64)  # [row, block, half, pair]
    kept = out.kept[0, :, 128:].view(64, 2, 2, 64)
    assert out.kept[0, :, :128].all()
    assert torch.equal(kept[:, :, 1], scores[:, :, 1] > scores[:, :, 0])
    assert torch.equal(kept[:, :, 0], ~kept[:, :, 1])


def test_auto_is_int8_where_long_and_dense_where_short():
    for m, n, want in [(64, 1024, "int8"), (63, 1024, "dense"), (200, 1023, "dense")]:
        q, k, v = make_qkv(1, m, n, 1)
        got = twofour.attention(q, k, v, causal=True)
        assert torch.equal(got, twofour.attention(q, k, v, causal=True, mode=want))
        other = "dense" if want == "int8" else "int8"
        assert not torch.equal(got, twofour.attention(q, k, v, causal=True, mode=other))


@pytest.mark.parametrize("mode", ["dual", "refined"])
def test_calibration_changes_what_is_kept_and_not_what_is_exact(mode):
    q, k, v = uneven_qkv(300, 600, 4, 2)
    calibration = balanced_calibration(2, 64)
    with_t = twofour.attention(q, k, v, mode=mode, calibration=calibration)
    without = twofour.attention(q, k, v, mode=mode)
    reference = twofour.attention(q, k, v, mode=mode, calibration=calibration, kernel=REFERENCE)
    assert (with_t - without).abs().max() > 1e-3
    assert (with_t - reference).abs().mean() < 1e-4
    # One block of keys, which is a sink: all of q' against k', so q k itself.
    short = [t[:, :128] for t in (q, k, v)]
    assert_close(
        twofour.attention(*short, mode=mode, calibration=calibration),
        twofour.attention(*short, mode="dense"),
        1e-4,
    )


def test_calibration_weights_are_optional():
    q, k, v = make_qkv(1, 300, 600, 2)
    calibration = balanced_calibration(2, 64)
    weighted = twofour.attention(q, k, v, mode="dual", calibration=calibration)
    calibration.w = None
    plain = twofour.attention(q, k, v, mode="dual", calibration=calibration)
    calibration.w = torch.ones(2, 64)
    assert torch.equal(plain, twofour.attention(q, k, v, mode="dual", calibration=calibration))
    assert not torch.equal(plain, weighted)


@pytest.mark.parametrize("mode", twofour.MODES)
def test_repeats_are_bitwise_equal(mode):
    q, k, v = make_qkv(1, 100, 400, 2, 1)
    want_o, want_lse = twofour.attention(q, k, v, mode=mode, causal=True, return_lse=True)
    for _ in range(100):
        o, lse = twofour.attention(q, k, v, mode=mode, causal=True, return_lse=True)
        assert torch.equal(o, want_o) and torch.equal(lse, want_lse)


@pytest.mark.parametrize("mode", twofour.MODES)
def test_a_sequence_alone_equals_it_in_a_batch_bitwise(mode):
    q, k, v = make_qkv(3, 130, 500, 2, 1)
    o, lse = twofour.attention(q, k, v, mode=mode, causal=True, return_lse=True)
    for b in range(3):
        alone = [t[b : b + 1] for t in (q, k, v)]
        o_b, lse_b = twofour.attention(*alone, mode=mode, causal=True, return_lse=True)
        assert torch.equal(o_b[0], o[b]) and torch.equal(lse_b[0], lse[b])


@pytest.mark.parametrize("mode", twofour.MODES)
def test_a_sequence_alone_equals_it_when_packed_bitwise(mode):
    lengths = [130, 500, 7]
    cu = torch.tensor([0, 130, 630, 637], dtype=torch.int32)
    q, k, v = (t[0] for t in make_qkv(1, 637, 637, 2, 1))
    o = twofour.attention(q, k, v, mode=mode, causal=True, cu_seqlens_q=cu, cu_seqlens_k=cu)
    for b, length in enumerate(lengths):
        rows = slice(int(cu[b]), int(cu[b]) + length)
        alone = (t[None, rows] for t in (q, k, v))
        assert torch.equal(twofour.attention(*alone, mode=mode, causal=True)[0], o[rows])


@pytest.mark.parametrize("mode", twofour.MODES)
def test_threads_do_not_change_the_result(mode):
    q, k, v = make_qkv(1, 500, 500, 2)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(twofour.attention(q, k, v, mode=mode, causal=True))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)


def test_uncalibrated_modes_warn_once():
    script = (
        "import torch, twofour, warnings\n"
        "q = torch.randn(1, 8, 1, 64)\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    for mode in ('refined', 'refined', 'dual', 'score', 'int8', 'auto'):\n"
        "        twofour.attention(q, q, q, mode=mode)\n"
        "print([(w.category.__name__, w.filename, str(w.message).split()[0]) for w in seen])\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert eval(result.stdout) == [
        ("UncalibratedWarning", "<string>", "refined"),
        ("UncalibratedWarning", "<string>", "dual"),
    ]


def test_a_calibrated_mode_does_not_warn():
    q, k, v = make_qkv(1, 8, 8, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        twofour.attention(
            q, k, v, mode="nm24/pair/s1/l1/r1", calibration=balanced_calibration(1, 64)
        )


def test_sparsity_fields_and_strings():
    refined = twofour.Sparsity.parse("refined")
    assert str(refined) == "nm24/pair/s1/l1/r2"
    assert str(refined.resolved(64)) == "nm24/pair128/s1/l1/r2"
    assert str(refined.resolved(128)) == "nm24/pair192/s1/l1/r2"
    assert refined == twofour.Sparsity("nm24", "pair", 0, 1, 1, 2.0)
    assert refined.needs_calibration and not twofour.Sparsity.parse("int8").needs_calibration
    assert str(twofour.Sparsity()) == "exact/none" == str(twofour.Sparsity.parse("dense"))
    assert twofour.Sparsity.parse("nm24/pair/r0.1").refine == 0.1
    q, k, v = make_qkv(1, 300, 400, 1)
    got = twofour.attention(q, k, v, mode=twofour.Sparsity("exact", "pair", sink_blocks=1))
    assert torch.equal(got, twofour.attention(q, k, v, mode="score"))
