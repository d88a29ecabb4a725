"""Inputs that broke other attention libraries, on the GPU and in 16 bits: exact or a named error.

The rows are those of test_inputs.py. TWOFOUR_TEST_DEVICE=cpu runs what needs no GPU on the CPU, so
that the tests themselves can be tried there.
"""

import os

import pytest
import torch

import twofour
from conftest import REFERENCE, assert_close, exact_attention, live_pairs, make_qkv

DEVICE = os.environ.get("TWOFOUR_TEST_DEVICE", "cuda")
HERE = twofour.available()[DEVICE]
USABLE = HERE.available and (DEVICE == "cpu" or torch.cuda.is_available())
needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
# Weights of 2^-11 relative error against exact ones.
FP16 = 4e-3
LSE = 1e-3
INT8_CHUNK_TOLERANCE = 2e-2  # chunks quantise with other scales: in the mean

pytestmark = [
    pytest.mark.filterwarnings("ignore::twofour.UncalibratedWarning"),
    pytest.mark.skipif(not USABLE, reason=HERE.detail or "no CUDA torch"),
]


def inputs(*shape, dtype=torch.float16, **options):
    return tuple(t.to(DEVICE) for t in make_qkv(*shape, dtype=dtype, **options))


def offsets(lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device=DEVICE)


def check_dense(q, k, v, live=None, tolerance=FP16, **options):
    o, lse = twofour.attention(q, k, v, mode="dense", return_lse=True, **options)
    if live is not None:
        live = live.to(q.device)
    want_o, want_lse = exact_attention(q, k, v, live, options.get("scale"))
    assert_close(o, want_o, tolerance)
    assert_close(lse, want_lse, LSE)


def check_mode(q, k, v, mode, share=1.0, **options):
    """Against the reference in fp64, in the mean: a near tie may fall either way.

    `share` of what a whole unit in the last place of fp16 would be.
    """
    options = {"mode": mode, "return_lse": True} | options
    got = twofour.attention(q, k, v, **options)
    want = twofour.attention(*(t.cpu() for t in (q, k, v)), **options, kernel=REFERENCE)
    for ours, wanted in zip((t.cpu() for t in got), want, strict=True):
        assert ours.shape == wanted.shape
        finite = torch.isfinite(wanted)
        assert torch.equal(torch.isfinite(ours), finite)
        if finite.any():
            error = (ours.double() - wanted.double())[finite].abs()
            assert error.mean() <= 1e-2 * share * max(1.0, float(wanted[finite].abs().mean()))


@pytest.mark.parametrize("d", [8, 16, 40, 56, 64, 80, 96, 112, 128, 160, 192, 256, 512])
def test_row_1_head_dims(d):
    """Exact, or refused by name with the list of those that are supported."""
    try:
        check_dense(*inputs(1, 70, 130, 2, 1, d))
    except twofour.UnsupportedError as error:
        assert d > 128
        assert f"unsupported: head_dim {d}, supported are the multiples of 8" in str(error)
        return
    for mode in twofour.MODES[1:]:
        check_mode(*inputs(1, 200, 650, 2, 1, d), mode)


@pytest.mark.parametrize("d", [4, 12, 63])
def test_row_1_head_dims_of_no_kernel(d):
    with pytest.raises(twofour.UnsupportedError, match=f"unsupported: head_dim {d}, supported are"):
        twofour.attention(*inputs(1, 70, 130, 2, 1, d), mode="dense")


@pytest.mark.parametrize(
    ("d", "dv"), [(64, 8), (8, 64), (64, 128), (128, 64), (40, 120), (192, 128), (64, 256)]
)
def test_row_2_other_head_dim_of_v(d, dv):
    try:
        check_dense(*inputs(1, 70, 130, 2, 1, d, dv))
    except twofour.UnsupportedError as error:
        assert max(d, dv) > 128
        assert f"head_dim{'' if d > 128 else '_v'} {max(d, dv)}, supported are" in str(error)
        return
    for mode in ("score", "int8", "dual"):
        try:
            check_mode(*inputs(1, 200, 650, 2, 1, d, dv), mode)
        except twofour.UnsupportedError as error:  # a block for the smaller one
            assert d <= 64 < dv
            assert "block" in str(error)


@pytest.mark.parametrize("shape", [(200, 600), (1, 1), (600,), (1, 2, 200, 600)], ids=str)
def test_row_3_masks_are_used_or_refused(shape):
    q, k, v = inputs(1, 200, 600, 2)
    mask = torch.rand(shape, device=DEVICE) > 0.3
    try:
        check_dense(q, k, v, mask, mask=mask)
    except twofour.UnsupportedError as error:
        assert "takes no boolean mask" in str(error)
    for additive in (mask.float(), mask.to(q.dtype)):
        with pytest.raises(twofour.UnsupportedError, match="mask: expected bool"):
            twofour.attention(q, k, v, mask=additive)


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("mode", twofour.MODES)
def test_row_4_rows_without_a_live_key(mode, d):
    q, k, v = inputs(1, 700, 500, d=d)
    o, lse = twofour.attention(q, k, v, mode=mode, causal=True, return_lse=True)
    assert torch.all(o[:, :200] == 0) and torch.all(lse[:, :, :200] == -torch.inf)
    assert torch.isfinite(o).all() and torch.isfinite(lse[:, :, 200:]).all()
    assert (o[:, 200:] != 0).any(-1).all()
    check_mode(q, k, v, mode, causal=True)
    # Leading key blocks that no later row sees.
    q, k, v = inputs(1, 900, 900, d=d)
    check_mode(q, k, v, mode, causal=True, window=(50, 0))


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("mode", twofour.MODES)
def test_row_4_dead_keys_may_hold_nan(mode, d):
    q, k, v = inputs(1, 100, 900, d=d)
    options = dict(mode=mode, causal=True, align="top_left")
    want = twofour.attention(q, k, v, **options)
    k[:, 100:], v[:, 100:] = torch.nan, torch.inf
    assert torch.equal(twofour.attention(q, k, v, **options), want)


@pytest.mark.parametrize("factor", [1e4, -1e4])
def test_row_5_logits_of_1e4(factor):
    q, k, v = inputs(1, 100, 600)
    o, lse = twofour.attention(q, k, v, mode="dense", scale=factor, return_lse=True)
    want_o, want_lse = exact_attention(q, k, v, scale=factor)
    assert torch.isfinite(o).all() and torch.isfinite(lse).all()
    # fp32 scores of 1e5 carry an absolute error of about 1e-2 each.
    assert (lse - want_lse).abs().max() <= 1e-6 * want_lse.abs().max() + 2e-2
    assert (o.double() - want_o).abs().mean() <= 1e-2
    for mode in twofour.MODES[1:]:
        o, lse = twofour.attention(q, k, v, mode=mode, scale=factor, return_lse=True)
        assert torch.isfinite(o).all() and torch.isfinite(lse).all()


@pytest.mark.parametrize("d", [64, 128])
def test_row_5_a_constant_added_to_every_key(d):
    q, k, v = inputs(1, 100, 600, d=d)
    check_dense(q, k + 100, v, tolerance=1e-2)
    for mode in twofour.MODES[1:]:
        check_mode(q, k + 100, v, mode)


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("mode", twofour.MODES)
def test_row_5_large_values_in_fp16(mode, d):
    q, k, v = inputs(1, 200, 600, d=d)
    v = ((torch.rand(v.shape) * 1.2e5 - 6e4).half()).to(DEVICE)
    check_mode(q, k, v, mode)
    same = twofour.attention(q, k, torch.full_like(v, 6e4), mode=mode)
    assert_close(same / 6e4, torch.ones_like(same), 2e-3)


@pytest.mark.slow
@needs_gpu
@pytest.mark.parametrize("mode", twofour.MODES)
def test_row_6_more_than_2_to_31_elements_of_queries_and_output(mode):
    heads, d = 64, 128
    m = 192 * (2**31 // (192 * heads * d) + 1)
    q = torch.randn(1, m, heads, d, dtype=torch.float16, device=DEVICE)
    k, v = (torch.randn(1, 700, heads, d, dtype=torch.float16, device=DEVICE) for _ in range(2))
    assert q.numel() > 2**31
    o, lse = twofour.attention(q, k, v, mode=mode, return_lse=True)
    for rows in (slice(0, 192), slice(m // 384 * 192, m // 384 * 192 + 192), slice(m - 192, m)):
        # A row block sees the same keys wherever it is.
        want, want_lse = twofour.attention(q[:, rows], k, v, mode=mode, return_lse=True)
        assert torch.equal(o[:, rows], want) and torch.equal(lse[:, :, rows], want_lse)
    if mode == "dense":
        assert_close(o[:, -5:], exact_attention(q[:, -5:], k, v)[0], FP16)


@pytest.mark.slow
@needs_gpu
@pytest.mark.parametrize("mode", twofour.MODES)
def test_row_6_more_than_2_to_31_elements_of_keys(mode):
    heads, d, seen = 64, 128, 192 * 6
    n = 192 * (2**31 // (192 * heads * d) + 1)
    k, v = (torch.randn(1, n, heads, d, dtype=torch.float16, device=DEVICE) for _ in range(2))
    q = torch.randn(1, 192, heads, d, dtype=torch.float16, device=DEVICE)
    assert k.numel() > 2**31
    options = dict(mode=mode, causal=True, window=(seen - 192, 0), return_lse=True)
    got = twofour.attention(q, k, v, **options)
    # The rows see only the last keys, which start at a block boundary.
    want = twofour.attention(q, k[:, n - seen :], v[:, n - seen :], **options)
    for ours, wanted in zip(got, want, strict=True):
        if mode == "int8":  # the mean of K is summed in another order
            assert (ours - wanted).double().abs().mean() <= INT8_CHUNK_TOLERANCE
        else:
            assert torch.equal(ours, wanted)


@pytest.mark.slow
@needs_gpu
def test_row_6_byte_offsets_between_rows_past_2_to_32():
    heads, d, rows = 2, 128, 600
    stride = 2**32 // (rows - 1) + 8
    stride -= stride % 8
    storage = torch.empty(stride * (rows - 1) + 65536, dtype=torch.float16, device=DEVICE)
    q, k, v = inputs(1, rows, rows, heads, d=d)
    spread = [storage[i * 4096 :].as_strided(q.shape, (0, stride, d, 1)) for i in range(3)]
    for view, value in zip(spread, (q, k, v), strict=True):
        view.copy_(value)
    for mode in twofour.MODES:
        got = twofour.attention(*spread, mode=mode, causal=True)
        assert torch.equal(got, twofour.attention(q, k, v, mode=mode, causal=True)), mode


@pytest.mark.parametrize("count", [65_535, 65_536, 70_000])
@pytest.mark.parametrize("axis", ["batch", "heads", "key blocks", "row blocks", "packed"])
def test_row_7_counts_past_16_bits(axis, count):
    if axis == "batch":
        check_dense(*inputs(count, 1, 2, 1, d=8))
    elif axis == "heads":
        check_dense(*inputs(1, 1, 2, count, count // 5 if count % 5 == 0 else count, d=8))
    elif axis == "key blocks":
        q, k, v = inputs(1, 1, count * 128, 1, d=8)
        check_dense(q, k, v)
        _, lse = twofour.attention(q, k, v, mode="exact/pair128/s1/l0", return_lse=True)
        # Half of the scores survive, the larger of each pair.
        assert -0.7 < lse.item() - exact_attention(q, k, v)[1].item() < 0
    elif axis == "row blocks":
        check_dense(*inputs(1, count * 192, 5, 1, d=8))
    else:
        q, k, v = (t[0] for t in inputs(1, count + 2, count + 2, 1, d=8))
        cu = torch.arange(count + 1, dtype=torch.int32, device=DEVICE)
        cu[-1] += 2  # one key each, and the last sequence has three
        got = twofour.attention(q, k, v, mode="dense", cu_seqlens_q=cu, cu_seqlens_k=cu)
        assert_close(got[None, : count - 1], v[None, : count - 1], FP16)
        last = (t[None, count - 1 :] for t in (q, k, v))
        assert_close(got[None, count - 1 :], exact_attention(*last)[0], FP16)


@pytest.mark.parametrize("mode", twofour.MODES)
@pytest.mark.parametrize(
    "lengths", [[0, 0, 5, 5], [0], [1], [0, 1, 0], [300, 0, 1, 200, 900], []], ids=str
)
@pytest.mark.parametrize("d", [64, 128])
def test_row_8_variable_lengths(lengths, mode, d):
    total = sum(lengths)
    cu = offsets(lengths)
    q, k, v = (t[0] for t in inputs(1, total, total, 2, 1, d))
    o, lse = twofour.attention(
        q, k, v, mode=mode, causal=True, cu_seqlens_q=cu, cu_seqlens_k=cu, return_lse=True
    )
    assert o.shape == (total, 2, d) and lse.shape == (2, total)
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        start += length
        alone = (t[None, rows] for t in (q, k, v))
        want, want_lse = twofour.attention(*alone, mode=mode, causal=True, return_lse=True)
        assert torch.equal(o[rows], want[0]) and torch.equal(lse[:, rows], want_lse[0])


def test_row_8_queries_without_keys_and_keys_without_queries():
    q, k, v = (t[0] for t in inputs(1, 7, 9, 1))
    cu_q = torch.tensor([0, 4, 4, 7], dtype=torch.int32, device=DEVICE)
    cu_k = torch.tensor([0, 0, 9, 9], dtype=torch.int32, device=DEVICE)
    for mode in twofour.MODES:
        options = dict(mode=mode, return_lse=True)
        o, lse = twofour.attention(q, k, v, **options, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
        assert torch.all(o == 0) and torch.all(lse == -torch.inf)
        o, lse = twofour.attention(*inputs(2, 7, 0, 1), **options)
        assert torch.all(o == 0) and torch.all(lse == -torch.inf) and o.shape == (2, 7, 1, 64)
        for b, m in ((0, 5), (2, 0)):
            o, lse = twofour.attention(*inputs(b, m, 5, 1), **options)
            assert o.shape == (b, m, 1, 64) and lse.shape == (b, 1, m)


@pytest.mark.parametrize("d", [40, 64, 128])
@pytest.mark.parametrize("mode", twofour.MODES)
def test_row_9_strides(mode, d):
    b, n, hq, hkv = 2, 700, 4, 2
    q, k, v = inputs(b, n, n, hq, hkv, d)
    want = twofour.attention(q, k, v, mode=mode, causal=True)
    fused = torch.cat([t.flatten(2) for t in (q, k, v)], -1)
    views = [t.unflatten(-1, (-1, d)) for t in fused.split([hq * d, hkv * d, hkv * d], -1)]
    turned = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]

    def shifted(t, by):
        return torch.empty(t.numel() + by, dtype=t.dtype, device=DEVICE)[by:].view(t.shape).copy_(t)

    def padded(t, by):
        return torch.empty(b, n, hkv, d + by, dtype=t.dtype, device=DEVICE)[..., :d].copy_(t)

    cases = {
        "fused": views,
        "transposed": turned,
        "addresses at 2, 6 and 8 bytes": (shifted(q, 1), shifted(k, 3), shifted(v, 4)),
        "strides of 2 bytes more": (q, padded(k, 1), padded(v, 1)),
        "different": (q, turned[1], padded(v, 8)),
        "positions apart": (q, torch.stack([k, v], 2)[:, :, 0], torch.stack([k, v], 2)[:, :, 1]),
        "last stride 2": (torch.stack([q, q], -1)[..., 0], k, v),
        "every other batch": tuple(t.repeat_interleave(2, 0)[::2] for t in (q, k, v)),
    }
    for name, given in cases.items():
        assert torch.equal(twofour.attention(*given, mode=mode, causal=True), want), name
    expanded = [t[:, :, :1].expand(b, n, hkv, d) for t in (k, v)]
    copied = [t.contiguous() for t in expanded]
    got = twofour.attention(q, *expanded, mode=mode)
    assert torch.equal(got, twofour.attention(q, *copied, mode=mode))
    one = q[:1].expand(3, n, hq, d), k[:1].expand(3, n, hkv, d), v[:1].expand(3, n, hkv, d)
    got = twofour.attention(*one, mode=mode, causal=True)
    assert all(torch.equal(got[i], want[0]) for i in range(3))


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize(
    ("m", "n"),
    [
        *((m, n) for m in (1, 191, 192, 193) for n in (1, 127, 128, 129, 191, 192, 193)),
        *[(113, 203), (1023, 1024), (799, 3), (64, 63), (65, 255), (33, 257), (385, 577)],
    ],
)
def test_row_10_ragged_lengths(m, n, d):
    # The rows around the tensors are NaN: reading past the end would show.
    q, k, v = inputs(1, m, n, 2, 1, d)
    framed = []
    for t in (q, k, v):
        frame = torch.full((1, t.size(1) + 2, *t.shape[2:]), torch.nan, dtype=t.dtype)
        frame = frame.to(DEVICE)
        frame[:, 1:-1] = t
        framed.append(frame[:, 1:-1])
    check_dense(*framed)
    for mode in twofour.MODES:
        got = twofour.attention(*framed, mode=mode, causal=True)
        assert torch.equal(got, twofour.attention(q, k, v, mode=mode, causal=True)), mode


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("align", ["bottom_right", "top_left"])
@pytest.mark.parametrize("m", [1, 5, 128, 400])
@pytest.mark.parametrize("n", [5, 1, 300, 900])
def test_row_11_causal_with_other_lengths(m, n, align, d):
    q, k, v = inputs(1, m, n, d=d)
    check_dense(q, k, v, live_pairs(m, n, True, align), causal=True, align=align)
    if min(m, n) >= 300:
        for mode in twofour.MODES[1:]:
            check_mode(q, k, v, mode, causal=True, align=align)


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize(("hq", "hkv"), [(9, 3), (7, 1), (24, 8), (5, 5)])
def test_row_12_grouped_heads(hq, hkv, d):
    q, k, v = inputs(2, 60, 150, hq, hkv, d)
    check_dense(q, k, v, live_pairs(60, 150, True), causal=True)
    for mode in twofour.MODES[1:]:
        check_mode(*inputs(1, 200, 650, hq, hkv, d), mode)


@pytest.fixture
def counter():
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    yield CompileCounter()
    torch._dynamo.reset()


@pytest.mark.parametrize("mode", ["auto", *twofour.MODES])
def test_row_13_compile_with_changing_lengths(counter, mode):
    def f(q, k, v):
        return twofour.attention(q * 2, k, v, mode=mode, causal=True, return_lse=True)

    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend=counter)
    for n in (100, 130, 577, 1023, 1024, 1500):
        q, k, v = inputs(1, n, n, 2, 1)
        for got, want in zip(compiled(q, k, v), f(q, k, v), strict=True):
            assert torch.equal(got, want)
    assert counter.frame_count == 1


def test_row_13_compile_packed_with_changing_lengths(counter):
    def f(q, k, v, cu):
        options = dict(cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=512, max_seqlen_k=512)
        return twofour.attention(q, k, v, mode="score", causal=True, **options)

    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend=counter)
    for lengths in ([10, 20], [3, 300], [7, 5, 11], [500, 2, 30]):
        q, k, v = (t[0] for t in inputs(1, sum(lengths)))
        cu = offsets(lengths)
        assert torch.equal(compiled(q, k, v, cu), f(q, k, v, cu))
    assert counter.frame_count == 1


@pytest.mark.parametrize("mode", twofour.MODES)
@pytest.mark.parametrize("packed", [False, True])
def test_row_13_opcheck(mode, packed):
    q, k, v = inputs(2, 70, 200, 4, 2)
    cu = (None, None)
    longest = (-1, -1)
    if packed:
        q, k, v = (t.flatten(0, 1) for t in (q, k, v))
        cu = offsets([60, 80]), offsets([150, 250])
        longest = (80, 250)
    given = (q, k, v, None, *cu, None, None, None, mode, True, False, -1, -1, None, *longest, "")
    torch.library.opcheck(torch.ops.twofour.attention.default, given)


@needs_gpu
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("mode", twofour.MODES)
def test_row_14_graph_replay_of_packed_sequences_with_new_contents(mode, d):
    """New numbers and new lengths below the same maximum."""
    total, longest = 1500, 900
    q, k, v = (t[0] for t in inputs(1, total, total, 4, 2, d))
    cu = offsets([600, 0, 900])
    packed = dict(cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=longest, max_seqlen_k=longest)
    options = dict(mode=mode, causal=True, return_lse=True, return_stats=True)
    twofour.attention(q, k, v, **options, **packed)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = twofour.attention(q, k, v, **options, **packed)
    for lengths in ([700, 800, 0], [1, 899, 600], [600, 0, 900]):
        for tensor in (q, k, v):
            tensor.copy_(torch.randn(tensor.shape))
        cu.copy_(offsets(lengths))
        for tensor in out:
            tensor.fill_(-1)
        graph.replay()
        torch.cuda.synchronize()
        for got, want in zip(out, twofour.attention(q, k, v, **options, **packed), strict=True):
            assert torch.equal(got, want)


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("mode", [*twofour.MODES, "int8/pair/s1/d6", "nm24/pair/s1/l1/r2/d6"])
@pytest.mark.parametrize("causal", [False, True])
def test_row_15_100_runs_are_bitwise_equal(mode, d, causal):
    # More items than multiprocessors, so that their order differs from run to run.
    q, k, v = inputs(*((2, 900, 900, 24, 8, d) if DEVICE == "cuda" else (1, 300, 300, 2, 1, d)))
    options = dict(mode=mode, causal=causal, return_lse=True, return_stats=True)
    want = twofour.attention(q, k, v, **options)
    for i in range(100 if DEVICE == "cuda" else 2):
        for got, wanted in zip(twofour.attention(q, k, v, **options), want, strict=True):
            assert torch.equal(got, wanted), i


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("mode", twofour.MODES)
def test_row_16_alone_and_in_a_batch(mode, d):
    q, k, v = inputs(5, 500, 900, 4, 2, d)
    options = dict(mode=mode, causal=True)
    want = twofour.attention(q, k, v, **options)
    for b in range(5):
        alone = twofour.attention(q[b : b + 1], k[b : b + 1], v[b : b + 1], **options)
        assert torch.equal(alone[0], want[b])
    packed = twofour.attention(
        *(t.flatten(0, 1) for t in (q, k, v)),
        cu_seqlens_q=offsets([500] * 5),
        cu_seqlens_k=offsets([900] * 5),
        **options,
    )
    assert torch.equal(packed, want.flatten(0, 1))
    # Heads do not know of each other either.
    alone = twofour.attention(q[:, :, 2:], k[:, :, 1:], v[:, :, 1:], **options)
    assert torch.equal(alone, want[:, :, 2:])


@pytest.mark.parametrize(("d", "block"), [(64, 128), (128, 192)])
def test_row_18_schedules_of_density_0_and_1(d, block):
    q, k, v = inputs(1, 300, 1000, 2, d=d)
    dense, lse = twofour.attention(q, k, v, mode="dense", return_lse=True)
    # Every block a sink: nothing is pruned in any pattern.
    for mode in (f"exact/pair{block}/s99/l0", f"nm24/pair{block}/s99/l0/r0"):
        got, got_lse, stats = twofour.attention(
            q, k, v, mode=mode, return_lse=True, return_stats=True
        )
        assert_close(got, dense, FP16)
        assert_close(got_lse, lse, LSE)
        assert dict(zip(twofour.STATS_FIELDS, stats.tolist(), strict=True))["pruned_pairs"] == 0
    # No block at all: every key lies after every row.
    got, lse = twofour.attention(
        *(inputs(1, 300, 0, 2, d=d)), mode="score", causal=True, return_lse=True
    )
    assert torch.all(got == 0) and torch.all(lse == -torch.inf)
    # No plain block: with neither sinks nor a ragged end all pairs are pruned.
    q, k, v = inputs(1, 200, 5 * block, 2, d=d)
    mode = f"exact/pair{block}/s0/l0"
    stats = twofour.attention(q, k, v, mode=mode, return_stats=True)[1]
    assert stats.tolist()[3] == stats.tolist()[4] == 2 * 200 * 5 * block
    check_mode(q, k, v, mode)


# Ends of chunks: uneven with a decode step at both ends, and at multiples of a unit's 64 rows.
UNEVEN = [1, 191, 448, 512, 899, 900]
BY_UNIT = [64, 128, 448, 640, 900]


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("ends", [UNEVEN, BY_UNIT], ids=["uneven", "by unit"])
@pytest.mark.parametrize("mode", twofour.MODES)
def test_row_19_chunked_prefill_and_decode(mode, ends, d):
    q, k, v = inputs(1, 900, 900, 2, 1, d)
    options = dict(mode=mode, causal=True, return_lse=True)
    want, want_lse = twofour.attention(q, k, v, **options)
    parts = [
        twofour.attention(q[:, a:b], k[:, :b], v[:, :b], **options)
        for a, b in zip([0, *ends], ends, strict=False)
    ]
    o = torch.cat([part[0] for part in parts], 1)
    lse = torch.cat([part[1] for part in parts], 2)
    if mode == "int8" or (mode == "refined" and ends is UNEVEN):
        # A unit is refined when one of the rows of the call asks: a cut unit asks fewer.
        assert (o - want).double().abs().mean() <= INT8_CHUNK_TOLERANCE
        assert (lse - want_lse).double().abs().mean() <= INT8_CHUNK_TOLERANCE
    else:
        assert_close(o, want, FP16)
        assert_close(lse, want_lse, LSE)


@pytest.mark.parametrize(("d", "block"), [(64, 128), (128, 192)])
@pytest.mark.parametrize("pattern", ["dense", "exact/pair{}/s0/l0", "nm24/pair{}/s0/l0"])
def test_row_20_merge_over_two_halves_of_the_keys(pattern, d, block):
    q, k, v = inputs(1, 200, 6 * block, 2, d=d)
    options = dict(mode=pattern.format(block), return_lse=True)
    whole, whole_lse = twofour.attention(q, k, v, **options)
    halves = [
        twofour.attention(q, k[:, part], v[:, part], **options)
        for part in (slice(0, 3 * block), slice(3 * block, None))
    ]
    o, lse = twofour.merge(*halves[0], *halves[1])
    assert_close(o, whole, FP16)
    assert_close(lse, whole_lse, LSE)


@needs_gpu
@pytest.mark.parametrize("mode", twofour.MODES)
def test_every_element_is_written(mode):
    """Freed memory full of NaN comes back as the outputs and the workspace of the next call."""
    for d, m, n in ((64, 113, 703), (128, 385, 577), (40, 1, 900), (96, 200, 193)):
        q, k, v = inputs(2, m, n, 4, 2, d)
        wants = twofour.attention(q, k, v, mode=mode, causal=True, return_lse=True)
        for _ in range(3):
            poison = [torch.full((2**size,), torch.nan, device=DEVICE) for size in range(8, 23)]
            del poison
            got = twofour.attention(q, k, v, mode=mode, causal=True, return_lse=True)
            for ours, wanted in zip(got, wants, strict=True):
                assert torch.equal(ours, wanted)
