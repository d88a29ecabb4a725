"""Inputs that broke other attention libraries: each gives the exact result or a named error.

"Exact" is against the formula in fp64 in dense mode, and against the reference in the other modes.
"""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import twofour
from conftest import (
    REFERENCE,
    TOLERANCE,
    assert_close,
    exact_attention,
    live_pairs,
    make_qkv,
)

FP32 = TOLERANCE[torch.float32]
# int8 quantises per key block of the call, so chunks see other scales: this much in the mean.
INT8_CHUNK_TOLERANCE = 2e-2

pytestmark = pytest.mark.filterwarnings("ignore::twofour.UncalibratedWarning")


def dense(q, k, v, **options):
    return twofour.attention(q, k, v, mode="dense", return_lse=True, **options)


def check_dense(q, k, v, live=None, tolerance=FP32, **options):
    o, lse = dense(q, k, v, **options)
    want_o, want_lse = exact_attention(q, k, v, live, options.get("scale"))
    assert_close(o, want_o, tolerance)
    assert_close(lse, want_lse, FP32)
    return o, lse


def check_mode(q, k, v, mode, **options):
    """A mode against the reference, in the mean: a near tie may fall either way."""
    options = {"mode": mode, "return_lse": True} | options
    for got, want in zip(
        twofour.attention(q, k, v, **options),
        twofour.attention(q, k, v, **options, kernel=REFERENCE),
        strict=True,
    ):
        finite = torch.isfinite(want)
        assert torch.equal(torch.isfinite(got), finite)
        if finite.any():
            assert (got - want)[finite].double().abs().mean() <= 10 * TOLERANCE[q.dtype]


@pytest.mark.parametrize("d", [8, 16, 40, 56, 64, 80, 96, 112, 128, 160, 192, 256])
def test_row_1_head_dims(d):
    q, k, v = make_qkv(1, 70, 130, 2, 1, d)
    check_dense(q, k, v)
    q, k, v = make_qkv(1, 200, 450, 2, 1, d)
    for mode in ("score", "int8", "refined"):
        check_mode(q, k, v, mode)


@pytest.mark.parametrize("d", [12, 63, 512])
def test_row_1_head_dims_that_may_be_unsupported(d):
    """Exact, or refused by name with the list of those that are supported."""
    q, k, v = make_qkv(1, 70, 130, 2, 1, d)
    try:
        check_dense(q, k, v)
    except twofour.UnsupportedError as error:
        assert f"unsupported: head_dim {d}, supported are the multiples of 8" in str(error)
    check_dense(q, k, v, kernel=REFERENCE)


@pytest.mark.parametrize(("d", "dv"), [(192, 128), (64, 256), (64, 8), (128, 130)])
def test_row_2_other_head_dim_of_v(d, dv):
    q, k, v = make_qkv(1, 70, 130, 2, 1, d, dv)
    try:
        check_dense(q, k, v)
    except twofour.UnsupportedError as error:
        assert "head_dim_v" in str(error) and dv % 8 != 0


def test_row_3_masks_that_cannot_be_used():
    q, k, v = make_qkv(1, 8)
    for mask in (torch.zeros(8, 8), torch.zeros(8, 8, dtype=torch.bfloat16)):
        with pytest.raises(twofour.UnsupportedError, match="mask: expected bool"):
            dense(q, k, v, mask=mask)
    cu = torch.tensor([0, 8], dtype=torch.int32)
    with pytest.raises(twofour.UnsupportedError, match="mask: expected none with cu_seqlens"):
        twofour.attention(
            q[0], k[0], v[0], cu_seqlens_q=cu, cu_seqlens_k=cu, mask=torch.ones(8, 8).bool()
        )


@pytest.mark.parametrize("mode", twofour.MODES)
def test_row_4_rows_without_a_live_key(mode):
    # The first rows of a bottom-right causal with M > N.
    q, k, v = make_qkv(1, 300, 100)
    o, lse = twofour.attention(q, k, v, mode=mode, causal=True, return_lse=True)
    assert torch.all(o[:, :200] == 0) and torch.all(lse[:, :, :200] == -torch.inf)
    assert torch.isfinite(o).all() and torch.isfinite(lse[:, :, 200:]).all()
    assert (o[:, 200:] != 0).any(-1).all()
    # An all-false row, and leading key blocks that are masked for every row.
    q, k, v = make_qkv(1, 200, 600)
    mask = torch.ones(200, 600, dtype=torch.bool)
    mask[7] = False
    mask[:, :300] = False
    o, lse = twofour.attention(q, k, v, mode=mode, mask=mask, return_lse=True)
    assert torch.all(o[:, 7] == 0) and torch.all(lse[:, :, 7] == -torch.inf)
    assert torch.isfinite(o).all()
    others = torch.arange(200) != 7
    assert torch.isfinite(lse[:, :, others]).all()
    if mode == "dense":
        check_dense(q, k, v, mask, mask=mask)


@pytest.mark.parametrize("mode", twofour.MODES)
def test_row_4_dead_keys_may_hold_nan(mode):
    q, k, v = make_qkv(1, 200, 600)
    mask = torch.ones(200, 600, dtype=torch.bool)
    mask[:, 500:] = False
    want = twofour.attention(q, k, v, mode=mode, mask=mask)
    k[:, 500:], v[:, 500:] = torch.nan, torch.inf
    assert torch.equal(twofour.attention(q, k, v, mode=mode, mask=mask), want)


def test_row_5_logits_of_1e4():
    q, k, v = make_qkv(1, 100, 300)
    for factor in (1e4, -1e4):
        o, lse = dense(q, k, v, scale=factor)
        want_o, want_lse = exact_attention(q, k, v, scale=factor)
        assert torch.isfinite(o).all() and torch.isfinite(lse).all()
        # fp32 scores of 1e5 carry an absolute error of about 1e-2 each.
        assert (lse - want_lse).abs().max() <= 1e-6 * want_lse.abs().max() + 1e-2
        assert (o.double() - want_o).abs().mean() <= 1e-2


def test_row_5_a_constant_added_to_every_key():
    q, k, v = make_qkv(1, 100, 300)
    shifted = k + 100.0
    o, lse = dense(q, shifted, v)
    want_o, want_lse = exact_attention(q, shifted, v)
    assert_close(lse, want_lse, 1e-4)
    assert_close(o, want_o, 1e-3)
    # int8 subtracts the mean, so the shift costs it next to nothing.
    q, k, v = make_qkv(1, 100, 600)
    moved, moved_lse = twofour.attention(q, k + 100.0, v, mode="int8", return_lse=True)
    _, want_lse = exact_attention(q, k + 100.0, v)
    assert (moved - twofour.attention(q, k, v, mode="int8")).abs().mean() < 5e-3
    plain_o, plain_lse = twofour.attention(q, k, v, mode="int8", return_lse=True)
    offset = (q.double().sum(-1) * 100 / 8).transpose(1, 2)
    assert (moved_lse - plain_lse - offset).abs().max() < 0.05
    assert torch.isfinite(plain_o).all()


@pytest.mark.parametrize("mode", twofour.MODES)
def test_row_5_large_values_in_fp16(mode):
    q, k, v = make_qkv(1, 200, 600, dtype=torch.float16)
    v = (torch.rand(v.shape) * 1.2e5 - 6e4).half()
    o = twofour.attention(q, k, v, mode=mode)
    assert torch.isfinite(o).all()
    want = twofour.attention(q, k, v, mode=mode, kernel=REFERENCE)
    assert (o.double() - want.double()).abs().mean() <= 6e4 * 1e-3
    # All values the same: the weights must sum to one, and nothing may overflow on the way.
    same = twofour.attention(q, k, torch.full_like(v, 6e4), mode=mode)
    assert_close(same / 6e4, torch.ones_like(same), 2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["dense", "int8"])
def test_row_6_more_than_2_to_31_elements(mode):
    """A view of over 2^31 elements and 2^33 bytes on memory that really spans them.

    Only the pages that are touched exist: the first rows, and the last ones, which are compared.
    """
    rows, heads, d = 600, 2, 64
    stride = 2**31 // (rows - 1) + 1
    storage = torch.empty(stride * rows, dtype=torch.float32)
    q, k, v = make_qkv(1, rows, rows, heads, d=d)
    big = [storage[i * 4096 :].as_strided((1, rows, heads, d), (0, stride, d, 1)) for i in range(3)]
    assert all(view.stride(1) * (rows - 1) > 2**31 for view in big)
    for view, value in zip(big, (q, k, v), strict=True):
        view.copy_(value)
    got = twofour.attention(*big, mode=mode, causal=True)
    assert torch.equal(got, twofour.attention(q, k, v, mode=mode, causal=True))


@pytest.mark.slow
def test_row_6_more_than_2_to_31_elements_of_output():
    """O itself has over 2^31 elements (bf16: 4.3 GB); Q is expanded, and two keys keep it quick."""
    memory = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(memory["MemAvailable"].split()[0])  # KiB
    heads, d = 64, 256
    m = 2**31 // (heads * d) + 192
    if free < (m * heads * d * 2 + m * heads * 4) / 1024 * 1.25:
        pytest.skip(f"needs about 5.5 GB of free memory, {free // 2**20} GB are free")
    q = torch.randn(1, 1, 1, d, dtype=torch.bfloat16).expand(1, m, heads, d)
    k = torch.randn(1, 2, heads, d, dtype=torch.bfloat16)
    v = torch.randn(1, 2, heads, d, dtype=torch.bfloat16)
    o = twofour.attention(q, k, v, mode="dense")
    assert o.numel() > 2**31
    want = exact_attention(q[:, :1], k, v)[0]
    for row in (0, m // 2, m - 1):
        assert_close(o[:, row : row + 1], want, TOLERANCE[torch.bfloat16])


@pytest.mark.parametrize("count", [65_535, 65_536, 70_000])
@pytest.mark.parametrize("axis", ["batch", "heads", "blocks"])
def test_row_7_counts_past_16_bits(axis, count):
    if axis == "batch":
        q, k, v = make_qkv(count, 1, 2, 1, d=8)
    elif axis == "heads":
        q, k, v = make_qkv(1, 1, 2, count, count // 5 if count % 5 == 0 else count, d=8)
    else:
        q, k, v = make_qkv(1, 1, count * 64, 1, d=8)
    check_dense(q, k, v)
    if axis == "blocks":
        got, lse = twofour.attention(q, k, v, mode="exact/pair64/s1/l0", return_lse=True)
        options = {"mode": "exact/pair64/s1/l0", "return_lse": True, "kernel": REFERENCE}
        want, want_lse = twofour.attention(q, k, v, **options)
        assert_close(got, want, FP32)
        assert_close(lse, want_lse, FP32)


@pytest.mark.parametrize("mode", twofour.MODES)
@pytest.mark.parametrize(
    "lengths", [[0, 0, 5, 5], [0], [1], [0, 1, 0], [300, 0, 1, 200], []], ids=str
)
def test_row_8_variable_lengths(lengths, mode):
    total = sum(lengths)
    cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
    q, k, v = (t[0] for t in make_qkv(1, total, total, 2, 1))
    o, lse = twofour.attention(
        q, k, v, mode=mode, causal=True, cu_seqlens_q=cu, cu_seqlens_k=cu, return_lse=True
    )
    assert o.shape == (total, 2, 64) and lse.shape == (2, total)
    for b, length in enumerate(lengths):
        rows = slice(int(cu[b]), int(cu[b]) + length)
        alone = (t[None, rows] for t in (q, k, v))
        want = twofour.attention(*alone, mode=mode, causal=True)
        assert torch.equal(o[rows], want[0])


def test_row_8_queries_without_keys_and_keys_without_queries():
    q, k, v = (t[0] for t in make_qkv(1, 7, 9, 1))
    cu_q = torch.tensor([0, 4, 4, 7], dtype=torch.int32)
    cu_k = torch.tensor([0, 0, 9, 9], dtype=torch.int32)
    o, lse = dense(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    assert torch.all(o == 0) and torch.all(lse == -torch.inf)
    q, k, v = make_qkv(2, 7, 0, 1)
    o, lse = dense(q, k, v)
    assert torch.all(o == 0) and torch.all(lse == -torch.inf) and o.shape == (2, 7, 1, 64)
    for b, m in ((0, 5), (2, 0)):
        o, lse = dense(*make_qkv(b, m, 5, 1))
        assert o.shape == (b, m, 1, 64) and lse.shape == (b, 1, m)


@pytest.mark.parametrize("mode", twofour.MODES)
def test_row_9_strides(mode):
    b, n, hq, hkv, d = 2, 400, 4, 2, 64
    want_inputs = make_qkv(b, n, n, hq, hkv, d)
    want = twofour.attention(*want_inputs, mode=mode, causal=True)
    q, k, v = want_inputs

    fused = torch.cat([t.flatten(2) for t in want_inputs], -1)
    sliced = fused.split([hq * d, hkv * d, hkv * d], -1)
    views = [t.unflatten(-1, (-1, d)) for t in sliced]
    transposed = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in want_inputs]
    odd = torch.empty(q.numel() + 3)[3:].view(q.shape).copy_(q)  # 12 bytes off
    padded = torch.empty(b, n, hkv, d + 1)[..., :d].copy_(v)
    cases = {
        "fused": views,
        "transposed": transposed,
        "offset": (odd, k, v),
        "different": (q, transposed[1], padded),
        "last stride 2": (torch.stack([q, q], -1)[..., 0], k, v),
    }
    for name, inputs in cases.items():
        got = twofour.attention(*inputs, mode=mode, causal=True)
        assert torch.equal(got, want), name
    expanded = [k[:, :, :1].expand(b, n, hkv, d), v[:, :, :1].expand(b, n, hkv, d)]
    copied = [t.contiguous() for t in expanded]
    assert torch.equal(
        twofour.attention(q, *expanded, mode=mode), twofour.attention(q, *copied, mode=mode)
    )


@pytest.mark.parametrize(
    ("m", "n"),
    [
        *((m, n) for m in (1, 191, 192, 193) for n in (1, 127, 128, 129)),
        *[(113, 203), (1023, 1024), (799, 3), (64, 63), (65, 255), (33, 257)],
    ],
)
def test_row_10_ragged_lengths(m, n):
    # The rows around the tensors are NaN: reading past the end would show.
    q, k, v = make_qkv(1, m, n, 2, 1)
    framed = []
    for t in (q, k, v):
        frame = torch.full((1, t.size(1) + 2, *t.shape[2:]), torch.nan)
        frame[:, 1:-1] = t
        framed.append(frame[:, 1:-1])
    check_dense(*framed)
    for mode in ("score", "int8", "refined"):
        got = twofour.attention(*framed, mode=mode, causal=True)
        assert torch.equal(got, twofour.attention(q, k, v, mode=mode, causal=True))


@pytest.mark.parametrize("align", ["bottom_right", "top_left"])
@pytest.mark.parametrize("m", [1, 5, 128])
@pytest.mark.parametrize("n", [5, 1, 300])
def test_row_11_causal_with_other_lengths(m, n, align):
    q, k, v = make_qkv(1, m, n)
    live = live_pairs(m, n, True, align)
    o, _ = check_dense(q, k, v, live, causal=True, align=align)
    if align == "top_left":  # torch's is_causal
        want = F.scaled_dot_product_attention(
            *(t.transpose(1, 2) for t in (q, k, v)), is_causal=True
        )
        assert_close(o, want.transpose(1, 2), FP32)


@pytest.mark.parametrize(("hq", "hkv"), [(9, 3), (7, 1), (24, 8), (5, 5)])
def test_row_12_grouped_heads(hq, hkv):
    q, k, v = make_qkv(2, 60, 150, hq, hkv)
    check_dense(q, k, v, live_pairs(60, 150, True), causal=True)
    q, k, v = make_qkv(1, 200, 450, hq, hkv)
    for mode in ("score", "int8", "refined"):
        check_mode(q, k, v, mode)


# Row 13, torch.compile and fake tensors: test_compile.py. Row 14 is about CUDA graphs.
# Rows 15 and 16, repeats and alone against in a batch: test_ops_modes.py.
# Row 17, a build without kernels for the device: test_ops.py, test_available_explain_kernels.


@pytest.mark.parametrize("mode", twofour.MODES)
def test_row_18_masks_of_density_0_and_1(mode):
    q, k, v = make_qkv(1, 300, 500, 2)
    none = torch.zeros(1, 1, dtype=torch.bool)
    o, lse = twofour.attention(q, k, v, mode=mode, mask=none, return_lse=True)
    assert torch.all(o == 0) and torch.all(lse == -torch.inf)
    every = torch.ones(1, 1, dtype=torch.bool)
    assert torch.equal(
        twofour.attention(q, k, v, mode=mode, mask=every), twofour.attention(q, k, v, mode=mode)
    )


def in_chunks(q, k, v, ends, **options):
    """(o, lse) of a causal prompt whose rows arrive in chunks over a growing cache."""
    parts = [
        twofour.attention(q[:, a:b], k[:, :b], v[:, :b], causal=True, return_lse=True, **options)
        for a, b in zip([0, *ends], ends, strict=False)
    ]
    return torch.cat([part[0] for part in parts], 1), torch.cat([part[1] for part in parts], 2)


# Ends of chunks: uneven with a decode step at both ends, and at multiples of a unit's 64 rows.
UNEVEN = [1, 191, 448, 512, 699, 700]
BY_UNIT = [64, 128, 448, 640, 700]


@pytest.mark.parametrize("ends", [UNEVEN, BY_UNIT], ids=["uneven", "by unit"])
@pytest.mark.parametrize("mode", twofour.MODES)
def test_row_19_chunked_prefill_and_decode(mode, ends):
    q, k, v = make_qkv(1, 700, 700, 2, 1)
    want, want_lse = twofour.attention(q, k, v, mode=mode, causal=True, return_lse=True)
    o, lse = in_chunks(q, k, v, ends, mode=mode)
    if mode == "int8":
        assert (o - want).abs().mean() <= INT8_CHUNK_TOLERANCE
        assert (lse - want_lse).abs().mean() <= INT8_CHUNK_TOLERANCE
    elif mode == "refined" and ends is UNEVEN:
        # A unit is refined when one of the rows of the call asks: a cut unit asks fewer.
        assert (o - want).abs().mean() <= 1e-2
    else:
        assert_close(o, want, FP32)
        assert_close(lse, want_lse, FP32)


@pytest.mark.parametrize("mode", ["dense", "score"])
def test_row_20_merge_over_two_halves_of_the_keys(mode):
    q, k, v = make_qkv(1, 200, 768, 2)
    # A cut at a multiple of the block, and no sinks: both halves prune as the whole does.
    mode = "exact/pair128/s0/l0" if mode == "score" else mode
    whole, whole_lse = twofour.attention(q, k, v, mode=mode, return_lse=True)
    halves = [
        twofour.attention(q, k[:, part], v[:, part], mode=mode, return_lse=True)
        for part in (slice(0, 384), slice(384, 768))
    ]
    o, lse = twofour.merge(*halves[0], *halves[1])
    assert_close(o, whole, FP32)
    assert_close(lse, whole_lse, FP32)
