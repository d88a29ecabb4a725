"""CUDA through the torch operator: what can be judged without a GPU, and on one the rest."""

import pytest
import torch

import twofour
from twofour import _arguments, models, plans
from twofour.errors import InvalidArgumentError, UnsupportedError

CUDA = torch.cuda.is_available() and twofour.available()["cuda"].available
on_gpu = pytest.mark.skipif(not CUDA, reason=twofour.available()["cuda"].detail or "no CUDA torch")


def offsets(*lengths):
    return torch.tensor([0, *lengths]).cumsum(0).int()


def test_given_lengths_are_not_read():
    # A meta tensor has nothing to read.
    unreadable = torch.empty(3, dtype=torch.int32, device="meta")
    assert _arguments._longest_on_cuda(unreadable, 9, 7, "q") == 7
    assert _arguments._longest_on_cuda(offsets(2, 7), 9, None, "q") == 7


def test_lengths_must_be_given_where_nothing_can_be_read(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with pytest.raises(InvalidArgumentError, match="max_seqlen_k: expected the longest sequence"):
        _arguments._longest_on_cuda(offsets(2, 7), 9, None, "k")
    assert _arguments._longest_on_cuda(offsets(2, 7), 9, 8, "k") == 8


def test_lengths_that_are_read_are_checked():
    with pytest.raises(InvalidArgumentError, match="ascend from 0 to 10, the tokens of q"):
        _arguments._longest_on_cuda(offsets(2, 7), 10, None, "q")
    with pytest.raises(InvalidArgumentError, match="expected an int32 vector"):
        _arguments._longest_on_cuda(offsets(2, 7).long(), 9, None, "q")


def test_a_plan_for_a_device_that_cannot_be_used_says_why():
    q = torch.empty(1, 64, 2, 64, dtype=torch.float16, device="meta")
    with pytest.raises(InvalidArgumentError, match="device: expected cpu or cuda, got tpu"):
        twofour.explain(q, q, q, device="tpu")
    if CUDA:
        return
    with pytest.raises((UnsupportedError, LookupError)) as caught:
        twofour.explain(q, q, q, device="cuda")
    assert str(caught.value).startswith("CUDA")


def test_available_names_the_device_or_the_reason(monkeypatch):
    monkeypatch.setattr(plans, "cuda_info", lambda index: ("H200", "sm_90", 132, ""))
    assert plans.available()["cuda"] == (True, "H200, sm_90, 132 multiprocessors")
    monkeypatch.setattr(plans, "cuda_info", lambda index: ("", "", 0, "CUDA: no driver"))
    assert plans.available()["cuda"] == (False, "CUDA: no driver")


def test_models_go_where_they_can_run(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for usable, want in ((True, "cuda"), (False, "cpu")):
        found = {"cuda": plans.Availability(usable, "CUDA: why")}
        monkeypatch.setattr(models, "available", lambda found=found: found)
        assert models._device(None).type == want
    assert models._device("cpu").type == "cpu"
    with pytest.raises(UnsupportedError, match="device: expected cpu, got cuda:1; CUDA: why"):
        models._device("cuda:1")
    with pytest.raises(InvalidArgumentError, match="expected cpu, cuda or cuda:N, got abacus"):
        models._device("abacus")
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert models._default_dtype(cuda, torch.float16) == torch.float16
    assert models._default_dtype(cuda, torch.float32) == torch.bfloat16
    assert models._default_dtype(cpu, torch.float16) == torch.float32


# From here on with a GPU.


def make(*shape, seed=0, dtype=torch.float16, device="cuda"):
    """Numbers that do not depend on the device."""
    numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return numbers.to(device=device, dtype=dtype)


def qkv(batch=1, rows=300, keys=300, heads=4, heads_kv=2, dim=64):
    return (
        make(batch, rows, heads, dim, seed=1),
        make(batch, keys, heads_kv, dim, seed=2),
        make(batch, keys, heads_kv, dim, seed=3),
    )


def reference(q, k, v, **options):
    """The CPU's answer to the same fp16 numbers, computed in fp32."""
    return twofour.attention(*(t.cpu().float() for t in (q, k, v)), mode="dense", **options)


def close(got, want):
    torch.testing.assert_close(got.cpu().float(), want, atol=4e-3, rtol=4e-3)


@on_gpu
@pytest.mark.parametrize("dim", [40, 64, 128])
def test_dense_is_the_cpu(dim):
    q, k, v = qkv(2, 333, 500, dim=dim)
    out, lse, stats = twofour.attention(
        q, k, v, mode="dense", causal=True, return_lse=True, return_stats=True
    )
    assert out.device == lse.device == stats.device == q.device and out.dtype == q.dtype
    close(out, reference(q, k, v, causal=True))
    assert stats.tolist()[4] == 2 * 4 * sum(500 - 333 + i + 1 for i in range(333))


@on_gpu
def test_memory_that_lies_oddly_is_copied():
    q, k, v = qkv()
    want = twofour.attention(q, k, v, mode="dense")
    storage = torch.zeros(q.numel() + 1, dtype=q.dtype, device="cuda")
    shifted = storage[1:].view(q.shape).copy_(q)  # 2 bytes off
    wide = torch.zeros(*k.shape[:-1], k.size(-1) + 3, dtype=k.dtype, device="cuda")
    wide[..., :-3] = k
    turned = v.transpose(-1, -2).contiguous().transpose(-1, -2)
    got = twofour.attention(shifted, wide[..., :-3], turned, mode="dense")
    assert torch.equal(got, want)
    per_head = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
    got = twofour.attention(*per_head, mode="dense", layout="bhmd")
    assert torch.equal(got.transpose(1, 2), want)


@on_gpu
@pytest.mark.parametrize("given", [False, True])
def test_packed(given):
    lengths = [5, 300, 0, 77]
    q, k, v = (t[0] for t in qkv(1, sum(lengths), sum(lengths)))
    cu = offsets(*lengths)
    longest = dict(max_seqlen_q=300, max_seqlen_k=310) if given else {}
    got = twofour.attention(
        q,
        k,
        v,
        mode="dense",
        causal=True,
        cu_seqlens_q=cu.cuda(),
        cu_seqlens_k=cu.cuda(),
        **longest,
    )
    close(got, reference(q, k, v, causal=True, cu_seqlens_q=cu, cu_seqlens_k=cu))


@on_gpu
def test_wrong_offsets_are_refused_when_they_are_read():
    q, k, v = (t[0] for t in qkv(1, 20, 20))
    cu = offsets(5, 14).cuda()
    with pytest.raises(InvalidArgumentError, match="ascend from 0 to 20"):
        twofour.attention(q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu)


@on_gpu
def test_the_current_stream_is_used():
    q, k, v = qkv(rows=2000, keys=2000)
    want = twofour.attention(q, k, v, mode="dense")
    side = torch.cuda.Stream()
    later = torch.zeros_like(q)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        later.copy_(q)  # only a run on the same stream sees it
        got = twofour.attention(later, k, v, mode="dense")
    side.synchronize()
    assert torch.equal(got, want)


@on_gpu
@pytest.mark.parametrize("mode", ["dense", "score", "int8"])
def test_graph_replay_is_eager(mode):
    q, k, v = qkv(rows=1024, keys=1024)
    twofour.attention(q, k, v, mode=mode, causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = twofour.attention(q, k, v, mode=mode, causal=True)
    for seed in (5, 6):
        q.copy_(make(*q.shape, seed=seed))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, twofour.attention(q, k, v, mode=mode, causal=True))


@on_gpu
def test_packed_capture_needs_the_longest_sequence():
    q, k, v = (t[0] for t in qkv(1, 400, 400))
    cu = offsets(150, 250).cuda()
    options = dict(mode="dense", cu_seqlens_q=cu, cu_seqlens_k=cu)
    want = twofour.attention(q, k, v, **options)
    refused = pytest.raises(InvalidArgumentError, match="max_seqlen_q: expected the longest")
    with refused, torch.cuda.graph(torch.cuda.CUDAGraph()):
        twofour.attention(q, k, v, **options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = twofour.attention(q, k, v, **options, max_seqlen_q=250, max_seqlen_k=250)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, want)


@on_gpu
def test_compile():
    def call(q, k, v):
        return twofour.attention(q, k, v, mode="score", causal=True) * 2

    q, k, v = qkv(rows=1500, keys=1500)
    compiled = torch.compile(call, fullgraph=True, dynamic=True)
    assert torch.equal(compiled(q, k, v), call(q, k, v))


@on_gpu
def test_runs_repeat_and_a_sequence_is_alone_in_a_batch():
    q, k, v = qkv(3, 700, 700)
    for mode in ("score", "int8"):
        want = twofour.attention(q, k, v, mode=mode, causal=True)
        for _ in range(10):
            assert torch.equal(twofour.attention(q, k, v, mode=mode, causal=True), want)
        alone = twofour.attention(q[1:2], k[1:2], v[1:2], mode=mode, causal=True)
        assert torch.equal(alone[0], want[1])


@on_gpu
@pytest.mark.filterwarnings("ignore::twofour.UncalibratedWarning")
@pytest.mark.parametrize("mode", ["dense", "score", "int8", "dual"])
def test_split_keys_are_the_same_alone_and_in_a_batch(mode):
    q, k, v = qkv(3, 100, 8200)
    options = dict(mode=mode, causal=True, return_lse=True)
    assert "chosen, splits keys in 4" in twofour.explain(q, k, v, mode=mode, causal=True).text
    out, lse = twofour.attention(q, k, v, **options)
    for _ in range(10):
        again = twofour.attention(q, k, v, **options)
        assert torch.equal(again[0], out) and torch.equal(again[1], lse)
    for b in range(3):
        alone = twofour.attention(q[b : b + 1], k[b : b + 1], v[b : b + 1], **options)
        assert torch.equal(alone[0][0], out[b]) and torch.equal(alone[1][0], lse[b])
    # Nor do the other heads decide.
    heads = twofour.attention(q[:, :, :2], k[:, :, :1], v[:, :, :1], **options)
    assert torch.equal(heads[0], out[:, :, :2]) and torch.equal(heads[1], lse[:, :2])
    if mode == "dense":
        close(out, reference(q, k, v, causal=True))


@on_gpu
def test_split_keys_in_a_graph():
    q, k, v = qkv(1, 64, 9000)
    want = twofour.attention(q, k, v, mode="int8", causal=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = twofour.attention(q, k, v, mode="int8", causal=True)
    for _ in range(3):
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, want)


@on_gpu
def test_refusals_name_the_reason():
    q, k, v = qkv()
    with pytest.raises(UnsupportedError, match="CPU only"):
        twofour.attention(
            q.float(), k.float(), v.float(), mode="dense", kernel="attention.cpu.exact.none"
        )
    with pytest.raises(UnsupportedError, match="no kernel serves this problem"):
        twofour.attention(q.float(), k.float(), v.float())
    with pytest.raises(InvalidArgumentError, match="k: expected device cuda:0"):
        twofour.attention(q, k.cpu(), v)


@on_gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_a_device_that_is_not_current():
    q, k, v = qkv()
    want = twofour.attention(q, k, v, mode="int8")
    with torch.cuda.device(0):
        got = twofour.attention(*(t.to("cuda:1") for t in (q, k, v)), mode="int8")
        assert torch.cuda.current_device() == 0
    assert got.device == torch.device("cuda:1") and torch.equal(got.cpu(), want.cpu())
