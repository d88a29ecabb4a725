"""twofour.attention in dense mode against the formula and torch's SDPA, and its plain interface."""

import pytest
import torch
import torch.nn.functional as F

import twofour
from conftest import REFERENCE, TOLERANCE, assert_close, exact_attention, live_pairs, make_qkv

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def run(q, k, v, kernel="", **options):
    return twofour.attention(q, k, v, mode="dense", return_lse=True, kernel=kernel, **options)


@pytest.fixture(params=["", REFERENCE], ids=["chosen", "reference"])
def kernel(request):
    return request.param


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1, 1), (2, 37, 53, 4, 2), (1, 200, 200, 3, 1)], ids=str
)
def test_equals_formula(shape, dtype, kernel):
    b, m, n, hq, hkv = shape
    q, k, v = make_qkv(b, m, n, hq, hkv, dtype=dtype)
    o, lse = run(q, k, v, kernel)
    want_o, want_lse = exact_attention(q, k, v)
    assert o.dtype == dtype and lse.dtype == torch.float32
    assert_close(o, want_o, TOLERANCE[dtype])
    assert_close(lse, want_lse, TOLERANCE[torch.float32])


@pytest.mark.parametrize("causal", [False, True])
def test_equals_sdpa(causal, kernel):
    q, k, v = make_qkv(2, 150, 150, 4, 2)
    o, _ = run(q, k, v, kernel, causal=causal)
    want = F.scaled_dot_product_attention(
        *(t.transpose(1, 2) for t in (q, k, v)), is_causal=causal, enable_gqa=True
    ).transpose(1, 2)
    assert_close(o, want, TOLERANCE[torch.float32])


@pytest.mark.parametrize("window", [(0, 0), (10, 0), (None, 3), (7, None), (200, 5)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_window(window, causal, kernel):
    q, k, v = make_qkv(1, 90, 130)
    o, lse = run(q, k, v, kernel, causal=causal, window=window)
    sides = tuple(-1 if side is None else side for side in window)
    want_o, want_lse = exact_attention(q, k, v, live_pairs(90, 130, causal, window=sides))
    assert_close(o, want_o, TOLERANCE[torch.float32])
    assert_close(lse, want_lse, TOLERANCE[torch.float32])


def test_scale(kernel):
    q, k, v = make_qkv(1, 40, 40)
    o, lse = run(q, k, v, kernel, scale=0.3)
    want_o, want_lse = exact_attention(q, k, v, scale=0.3)
    assert_close(o, want_o, TOLERANCE[torch.float32])
    assert_close(lse, want_lse, TOLERANCE[torch.float32])


@pytest.mark.parametrize(
    "shape", [(2, 4, 60, 90), (1, 1, 60, 90), (2, 1, 1, 90), (60, 1), (90,), (4, 1, 90)], ids=str
)
def test_mask_broadcasts_as_in_sdpa(shape, kernel):
    q, k, v = make_qkv(2, 60, 90, 4, 2)
    mask = torch.rand(shape) > 0.4
    o, lse = run(q, k, v, kernel, mask=mask)
    want_o, want_lse = exact_attention(q, k, v, mask.expand(2, 4, 60, 90))
    assert_close(o, want_o, TOLERANCE[torch.float32])
    assert_close(lse, want_lse, TOLERANCE[torch.float32])


def test_mask_and_causal_both_apply(kernel):
    q, k, v = make_qkv(1, 70, 70)
    mask = torch.rand(1, 2, 70, 70) > 0.5
    o, _ = run(q, k, v, kernel, mask=mask, causal=True)
    want, _ = exact_attention(q, k, v, mask & live_pairs(70, 70, causal=True))
    assert_close(o, want, TOLERANCE[torch.float32])


@pytest.mark.parametrize("causal", [False, True])
def test_packed_equals_one_by_one(causal, kernel):
    lengths_q, lengths_k = [3, 70, 1, 0, 33], [5, 70, 20, 4, 33]
    q, k, v = make_qkv(1, sum(lengths_q), sum(lengths_k), 4, 2)
    q, k, v = q[0], k[0], v[0]
    cu_q = torch.tensor([0, *torch.tensor(lengths_q).cumsum(0)], dtype=torch.int32)
    cu_k = torch.tensor([0, *torch.tensor(lengths_k).cumsum(0)], dtype=torch.int32)
    o, lse = run(q, k, v, kernel, causal=causal, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    assert o.shape == (sum(lengths_q), 4, 64) and lse.shape == (4, sum(lengths_q))
    for i in range(len(lengths_q)):
        rows, keys = slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i + 1])
        live = live_pairs(lengths_q[i], lengths_k[i], causal)
        want_o, want_lse = exact_attention(q[None, rows], k[None, keys], v[None, keys], live)
        assert_close(o[rows], want_o[0], TOLERANCE[torch.float32])
        assert_close(lse[:, rows], want_lse[0], TOLERANCE[torch.float32])


def test_layout_bhmd_is_torch_order(kernel):
    q, k, v = make_qkv(2, 30, 41, 4, 2)
    o, lse = run(q, k, v, kernel)
    turned = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
    o_bhmd, lse_bhmd = run(*turned, kernel, layout="bhmd")
    assert torch.equal(o_bhmd.transpose(1, 2), o)
    assert torch.equal(lse_bhmd, lse)


def test_copies_when_the_last_stride_is_not_one(kernel):
    q, k, v = make_qkv(1, 30, 41)
    strided = [t.transpose(-1, -2).contiguous().transpose(-1, -2) for t in (q, k, v)]
    assert strided[0].stride(-1) != 1
    assert torch.equal(run(*strided, kernel)[0], run(q, k, v, kernel)[0])


def test_return_values():
    q, k, v = make_qkv(1, 20)
    o = twofour.attention(q, k, v)
    o2, lse, stats = twofour.attention(q, k, v, return_lse=True, return_stats=True)
    o3, stats3 = twofour.attention(q, k, v, return_stats=True)
    assert isinstance(o, torch.Tensor) and torch.equal(o, o2) and torch.equal(o, o3)
    assert lse.shape == (1, 2, 20)
    assert stats.dtype == torch.int64 and stats.shape == (len(twofour.STATS_FIELDS),)
    assert torch.equal(stats, stats3)
    assert dict(zip(twofour.STATS_FIELDS, stats.tolist(), strict=True))["live_pairs"] == 2 * 20 * 20


def test_stats_count_pruned_pairs(kernel):
    q, k, v = make_qkv(1, 512, 512, 1)
    _, stats = twofour.attention(
        q, k, v, mode="score", causal=True, return_stats=True, kernel=kernel
    )
    pruned = 0
    for row_block in range(3):  # 192 positions, of which 512 exist
        rows = min(512 - 192 * row_block, 192)
        # Full key blocks of 128 below the diagonal ones, without the first block.
        pruned += rows * 128 * max(192 * row_block // 128 - 1, 0)
    units, refined, dropped, pruned_pairs, live = stats.tolist()
    assert pruned_pairs == pruned > 0
    assert units == pruned // (64 * 64)
    assert live == 512 * 513 // 2
    assert refined == dropped == 0


def test_merge_over_a_split_of_the_keys():
    q, k, v = make_qkv(2, 40, 100, 4, 2)
    o, lse = run(q, k, v)
    first = run(q, k[:, :37], v[:, :37])
    second = run(q, k[:, 37:], v[:, 37:])
    merged_o, merged_lse = twofour.merge(*first, *second)
    assert_close(merged_o, o, TOLERANCE[torch.float32])
    assert_close(merged_lse, lse, TOLERANCE[torch.float32])
    turned = [t.transpose(1, 2) if t.dim() == 4 else t for t in (*first, *second)]
    turned_o, _ = twofour.merge(*turned, layout="bhmd")
    assert torch.equal(turned_o.transpose(1, 2), merged_o)


def test_merge_with_rows_without_keys():
    q, k, v = make_qkv(1, 8, 8)
    o, lse = run(q, k, v)
    dead = run(q, k, v, mask=torch.zeros(8, 8, dtype=torch.bool))
    merged_o, merged_lse = twofour.merge(o, lse, *dead)
    assert_close(merged_o, o, 1e-6)
    assert_close(merged_lse, lse, 1e-6)
    both_o, both_lse = twofour.merge(*dead, *dead)
    assert torch.equal(both_o, torch.zeros_like(o)) and torch.all(both_lse == -torch.inf)


def test_merge_refuses_shapes_that_do_not_match():
    q, k, v = make_qkv(1, 8, 8, 4)
    o, lse = run(q, k, v)
    with pytest.raises(twofour.InvalidArgumentError, match="same shapes"):
        twofour.merge(o, lse, o[:, :4], lse)
    with pytest.raises(twofour.InvalidArgumentError, match="layout bhmd"):
        twofour.merge(o, lse, o, lse, layout="bhmd")


def test_runs_under_no_grad_and_inference_mode():
    q, k, v = make_qkv(1, 20)
    want = twofour.attention(q, k, v)
    q.requires_grad_()
    with torch.no_grad():
        assert torch.equal(twofour.attention(q, k, v), want)
    with torch.inference_mode():
        assert torch.equal(twofour.attention(q, k, v), want)


def test_available_explain_kernels():
    ids = twofour.kernels()
    assert ids[-1] == REFERENCE and len(ids) > 1 and len(set(ids)) == len(ids)
    assert twofour.available()["cpu"].available
    cuda = twofour.available()["cuda"]
    assert ("sm_" in cuda.detail) if cuda.available else cuda.detail.startswith("CUDA")
    q = torch.empty(1, 4096, 8, 64, device="meta")
    plan = twofour.explain(q, q, q, causal=True)
    assert plan.kernel in ids and plan.sparsity.startswith("int8/pair128")
    for kernel_id in ids:
        assert kernel_id in str(plan)
    assert twofour.explain(q, q, q, kernel=REFERENCE).kernel == REFERENCE


def test_explain_packed_needs_lengths_on_meta():
    q = torch.empty(4096, 8, 64, device="meta")
    cu = torch.empty(3, dtype=torch.int32, device="meta")
    with pytest.raises(twofour.InvalidArgumentError, match="max_seqlen_q"):
        twofour.explain(q, q, q, cu_seqlens_q=cu, cu_seqlens_k=cu)
    options = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 3000, "max_seqlen_k": 3000}
    assert twofour.explain(q, q, q, **options).sparsity.startswith("int8")


def test_version_matches_the_package():
    from importlib.metadata import version

    assert twofour.__version__ == version("twofour")


def test_autocast_gives_one_dtype():
    q, k, v = (torch.randn(1, 70, 2, 16) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        found = twofour.attention(q, k, v.bfloat16(), mode="dense")
    expected = twofour.attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), mode="dense")
    assert found.dtype == torch.bfloat16 and torch.equal(found, expected)
