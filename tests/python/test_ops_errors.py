"""Bad calls: a named error with one line that says what was expected and what came."""

import re
from types import SimpleNamespace

import pytest
import torch

import twofour
from conftest import REFERENCE, make_qkv
from twofour import InvalidArgumentError, NotFoundError, UnsupportedError

INT = torch.int32


def packed(**changes):
    options = {
        "cu_seqlens_q": torch.tensor([0, 3, 8], dtype=INT),
        "cu_seqlens_k": torch.tensor([0, 3, 8], dtype=INT),
    }
    return options | changes


def q4(*shape, **options):
    return torch.randn(*shape, **options)


Q = q4(1, 8, 4, 64)
P = q4(8, 4, 64)

# (q, k, v), options, class, words of the message
BAD = {
    "rank of q": (
        (P, Q, Q),
        {},
        InvalidArgumentError,
        r"q: expected \[batch, length, heads, dim\]",
    ),
    "rank, bhmd": ((P, Q, Q), {"layout": "bhmd"}, InvalidArgumentError, "batch, heads, length"),
    "rank, packed": ((Q, P, P), packed(), InvalidArgumentError, r"q: expected \[tokens"),
    "not a tensor": ((Q, [1], Q), {}, InvalidArgumentError, "k: expected a tensor, got list"),
    "sparse": ((Q.to_sparse(), Q, Q), {}, InvalidArgumentError, "q: expected a strided tensor"),
    "fp64": ((Q.double(), Q.double(), Q.double()), {}, InvalidArgumentError, "fp16.*got fp64"),
    "mixed dtypes": ((Q, Q.half(), Q), {}, InvalidArgumentError, "k: expected fp32, got fp16"),
    "complex": ((Q.to(torch.complex64), Q, Q), {}, InvalidArgumentError, "q: expected fp32"),
    "devices": ((Q, Q.to("meta"), Q), {}, InvalidArgumentError, "k: expected device cpu"),
    "batch": ((Q, q4(2, 8, 4, 64), q4(2, 8, 4, 64)), {}, InvalidArgumentError, "k: expected shape"),
    "head_dim of k": ((Q, q4(1, 8, 4, 32), Q), {}, InvalidArgumentError, "k: expected shape"),
    "keys of v": ((Q, Q, q4(1, 9, 4, 64)), {}, InvalidArgumentError, "v: expected shape"),
    "heads": ((Q, q4(1, 8, 3, 64), q4(1, 8, 3, 64)), {}, InvalidArgumentError, "multiple.*got 4"),
    "no heads": ((Q, q4(1, 8, 0, 64), q4(1, 8, 0, 64)), {}, InvalidArgumentError, "heads_kv"),
    "head_dim 513": (
        (q4(1, 2, 1, 513),) * 3,
        {},
        InvalidArgumentError,
        "head_dim: expected 1..512",
    ),
    "mode": ((Q, Q, Q), {"mode": "fast"}, InvalidArgumentError, 'expected a mode.*got "fast"'),
    "mode type": ((Q, Q, Q), {"mode": 3}, InvalidArgumentError, "mode: expected"),
    "sparsity": ((Q, Q, Q), {"mode": "exact/pair96"}, InvalidArgumentError, "block.*64"),
    "align": ((Q, Q, Q), {"align": "left"}, InvalidArgumentError, "align: expected"),
    "layout": ((Q, Q, Q), {"layout": "bdhm"}, InvalidArgumentError, "layout: expected"),
    "window": ((Q, Q, Q), {"window": 4}, InvalidArgumentError, r"window: expected \(left, right\)"),
    "window -2": ((Q, Q, Q), {"window": (-2, 0)}, InvalidArgumentError, "window.left: expected"),
    "scale nan": (
        (Q, Q, Q),
        {"scale": float("nan")},
        InvalidArgumentError,
        "scale: expected a fin",
    ),
    "scale inf": (
        (Q, Q, Q),
        {"scale": float("inf")},
        InvalidArgumentError,
        "scale: expected a fin",
    ),
    "float mask": ((Q, Q, Q), {"mask": torch.zeros(8, 8)}, UnsupportedError, "mask: expected bool"),
    "int mask": (
        (Q, Q, Q),
        {"mask": torch.ones(8, 8).int()},
        UnsupportedError,
        "mask: expected bool",
    ),
    "mask shape": (
        (Q, Q, Q),
        {"mask": torch.ones(8, 7).bool()},
        InvalidArgumentError,
        r"broadcasts to .*\[1, 4, 8, 8\], got \[8, 7\]",
    ),
    "mask rank": (
        (Q, Q, Q),
        {"mask": torch.ones(1, 1, 1, 8, 8).bool()},
        InvalidArgumentError,
        "mask",
    ),
    "mask packed": ((P, P, P), packed(mask=torch.ones(8, 8).bool()), UnsupportedError, "mask"),
    "dropout": ((Q, Q, Q), {"dropout_p": 0.1}, UnsupportedError, "dropout_p: expected 0"),
    "softcap": ((Q, Q, Q), {"softcap": 30.0}, UnsupportedError, "softcap: expected none"),
    "sinks": ((Q, Q, Q), {"sinks": torch.zeros(4)}, UnsupportedError, "sinks: expected none"),
    "bias": ((Q, Q, Q), {"bias": torch.zeros(8, 8)}, UnsupportedError, "bias: expected none"),
    "kernel": (
        (Q, Q, Q),
        {"kernel": "attention.x"},
        NotFoundError,
        'kernel: expected one of.*"att',
    ),
    "one cu_seqlens": (
        (P, P, P),
        packed(cu_seqlens_k=None),
        InvalidArgumentError,
        "both or neither",
    ),
    "cu_seqlens int64": (
        (P, P, P),
        packed(cu_seqlens_q=torch.tensor([0, 3, 8])),
        InvalidArgumentError,
        "cu_seqlens_q: expected a contiguous int32 vector.*got int64",
    ),
    "cu_seqlens rank": (
        (P, P, P),
        packed(cu_seqlens_k=torch.zeros(1, 3, dtype=INT)),
        InvalidArgumentError,
        "cu_seqlens_k: expected a contiguous int32 vector",
    ),
    "cu_seqlens empty": (
        (P, P, P),
        packed(cu_seqlens_k=torch.zeros(0, dtype=INT)),
        InvalidArgumentError,
        "cu_seqlens_k: expected a contiguous int32 vector",
    ),
    "cu_seqlens count": (
        (P, P, P),
        packed(cu_seqlens_k=torch.tensor([0, 8], dtype=INT)),
        InvalidArgumentError,
        "cu_seqlens_k: expected 3 offsets",
    ),
    "cu_seqlens start": (
        (P, P, P),
        packed(cu_seqlens_q=torch.tensor([1, 3, 8], dtype=INT)),
        InvalidArgumentError,
        r"cu_seqlens_q\[0\]: expected 0, got 1",
    ),
    "cu_seqlens end": (
        (P, P, P),
        packed(cu_seqlens_q=torch.tensor([0, 3, 7], dtype=INT)),
        InvalidArgumentError,
        "total_q",
    ),
    "cu_seqlens past the end": (
        (P, P, P),
        packed(cu_seqlens_k=torch.tensor([0, 3, 2_000_000_000], dtype=INT)),
        InvalidArgumentError,
        r"cu_seqlens_k\[2\]",
    ),
    "cu_seqlens descending": (
        (P, P, P),
        packed(cu_seqlens_q=torch.tensor([0, 9, 8], dtype=INT)),
        InvalidArgumentError,
        r"cu_seqlens_q\[2\]: expected at least 9, got 8",
    ),
    "max_seqlen too small": (
        (P, P, P),
        packed(max_seqlen_q=4),
        InvalidArgumentError,
        "max_seqlen_q: expected at least 5.*got 4",
    ),
    "packed bhmd": (
        (P, P, P),
        packed(layout="bhmd"),
        InvalidArgumentError,
        "layout: expected bmhd",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_call(name):
    (q, k, v), options, error, words = BAD[name]
    with pytest.raises(error, match=words) as caught:
        twofour.attention(q, k, v, **options)
    assert caught.value.code == error.code
    assert "\n" not in str(caught.value) and "[twofour:" not in str(caught.value)


def test_errors_are_the_builtin_kinds():
    assert issubclass(InvalidArgumentError, ValueError)
    assert issubclass(UnsupportedError, NotImplementedError)
    assert issubclass(NotFoundError, LookupError)
    assert all(
        issubclass(e, twofour.TwofourError) for e in (InvalidArgumentError, UnsupportedError)
    )


@pytest.mark.parametrize("which", range(3), ids="qkv")
def test_inputs_that_require_grad(which):
    inputs = [t.clone() for t in (Q, Q, Q)]
    inputs[which].requires_grad_()
    with pytest.raises(UnsupportedError, match=f"{'qkv'[which]}: .* require grad"):
        twofour.attention(*inputs)


def test_the_bare_operator_raises_on_backward():
    q = Q.clone().requires_grad_()
    rest = (None,) * 6 + ("dense", False, False, -1, -1, None, -1, -1, "")
    o, _, _ = torch.ops.twofour.attention(q, Q, Q, *rest)
    with pytest.raises(NotImplementedError, match="no backward"):
        o.sum().backward()


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("t_q", torch.zeros(4, 64, 63), r"t_q: expected contiguous fp32 \[4, 64, 64\], got fp32"),
        ("t_k", torch.zeros(2, 64, 64), "t_k: expected"),
        ("t_q", torch.zeros(4, 64, 64).half(), "t_q: expected contiguous fp32.*got fp16"),
        ("t_k", torch.zeros(4, 64, 64).transpose(1, 2), "t_k: expected a contiguous"),
        ("w", torch.zeros(4, 63), r"w: expected contiguous fp32 \[4, 64\]"),
        ("w", torch.zeros(4, 64), r"transform.w\[0\]: expected a finite weight > 0"),
        ("t_q", None, "calibration.t_q: expected a tensor"),
    ],
)
def test_bad_calibration(field, value, words):
    from conftest import balanced_calibration

    calibration = balanced_calibration(4, 64)
    setattr(calibration, field, value)
    with pytest.raises(InvalidArgumentError, match=words):
        twofour.attention(Q, Q, Q, mode="dual", calibration=calibration)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"qk": "fp8"}, "qk: expected exact, nm24 or int8, got fp8"),
        ({"score": "24"}, "score: expected none, pair"),
        ({"score": "pair", "block": 100}, "block: expected.*100"),
        ({"sink_blocks": -1}, "sink_blocks: expected.*-1"),
        ({"local_blocks": 1 << 40}, "local_blocks: expected"),
        ({"refine": 1.0}, "refine: expected qk nm24"),
        ({"score": "pair", "drop": float("nan")}, "drop: expected"),
    ],
)
def test_bad_sparsity_fields(options, words):
    with pytest.raises(InvalidArgumentError, match=words):
        twofour.Sparsity(**options)


@pytest.mark.parametrize(
    "text", ["", "/", "exact", "exact/pair/x1", "exact/pair/s1/s2", "a" * 9999]
)
def test_bad_sparsity_strings(text):
    with pytest.raises(InvalidArgumentError):
        twofour.Sparsity.parse(text)


def test_sparsity_parse_wants_a_string():
    with pytest.raises(InvalidArgumentError, match="expected a string, got int"):
        twofour.Sparsity.parse(3)


def test_a_refusal_names_the_kernels_tried():
    q, k, v = make_qkv(1, 4, 4, 1, d=7)
    with pytest.raises(UnsupportedError) as caught:
        twofour.attention(q, k, v, mode="dense")
    families = {
        ".".join(kernel.split(".")[:2]) for kernel in twofour.kernels() if ".cpu." in kernel
    }
    assert families == {"attention.cpu"}
    for text in (*families, "attention.ref", "head_dim"):
        assert text in str(caught.value)


def test_trace_is_refused_by_kernels_that_cannot():
    q, k, v = make_qkv(1, 4, 4, 1)
    untraced = twofour.explain(q, k, v, mode="dense").kernel
    assert untraced != REFERENCE
    with pytest.raises(UnsupportedError, match="writes no decisions"):
        twofour.trace(q, k, v, mode="dense", kernel=untraced)


def test_tensors_on_a_device_that_cannot_be_used():
    # No such tensor can be made here; one without memory says the same of its device.
    with torch._subclasses.FakeTensorMode():
        q = torch.empty(1, 8, 2, 64, device="xpu")
        with pytest.raises(UnsupportedError, match="expected cpu or cuda, got xpu"):
            twofour.attention(q, q, q)
        if twofour.available()["cuda"].available:
            return
        q = torch.empty(1, 8, 2, 64, device="cuda")
        with pytest.raises(UnsupportedError) as caught:
            twofour.attention(q, q, q)
        assert str(caught.value).startswith("device: expected cpu, got cuda:0; CUDA: ")
        assert str(caught.value).endswith(twofour.available()["cuda"].detail)


def test_forward_mode_derivatives_are_refused():
    q, k, v = (torch.randn(1, 8, 1, 16) for _ in range(3))
    with pytest.raises(twofour.UnsupportedError, match="q: expected a tensor without a tangent"):
        torch.func.jvp(lambda x: twofour.attention(x, k, v, mode="dense"), (q,), (q,))


def test_more_memory_than_can_be_counted_is_refused():
    k = torch.zeros(1, 1, 1, 256).half().expand(2**20, 1, 2**30, 256)
    q = torch.empty(2**20, 0, 2**30, 256).half()
    with pytest.raises(twofour.UnsupportedError, match="more than 2\\^46 bytes"):
        twofour.attention(q, k, k, mode="exact/none512")


@pytest.mark.parametrize("window", [(1.5, 0), ("a", 0), (2**63, 0), (True, 0)])
def test_windows_are_whole_numbers(window):
    q = torch.randn(1, 8, 1, 16)
    with pytest.raises(twofour.InvalidArgumentError, match="window: expected two whole numbers"):
        twofour.attention(q, q, q, window=window)


@pytest.mark.parametrize("name", BAD)
def test_explain_refuses_what_attention_refuses(name):
    (q, k, v), options, error, words = BAD[name]
    with pytest.raises(error) as caught:
        twofour.explain(q, k, v, **options)
    assert caught.value.code == error.code and "\n" not in str(caught.value)
    # The same text but for the values of offsets, of which one line covers all.
    if not name.startswith("cu_seqlens"):
        assert re.search(words, str(caught.value))


def test_explain_without_shapes():
    with pytest.raises(InvalidArgumentError, match="explain: expected q, k and v"):
        twofour.explain(mode="int8")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scale": "a"}, "scale: expected a number, got 'a'"),
        ({"scale": "1"}, "scale: expected a number, got '1'"),
        ({"scale": [1.0]}, r"scale: expected a number, got \[1.0\]"),
        ({"scale": 10**400}, "scale: expected a number"),
        ({"scale": torch.zeros(2)}, "scale: expected a number"),
        ({"calibration": "x"}, "calibration: expected the basis of one layer.*, got str"),
        ({"calibration": {"t_q": 1}}, "calibration: expected the basis of one layer.*, got dict"),
        ({"kernel": 3}, "kernel: expected str, got 3"),
        ({"max_seqlen_q": 1.5}, "max_seqlen_q: expected a whole number, got 1.5"),
    ],
)
def test_values_of_another_kind(options, words):
    with pytest.raises(InvalidArgumentError, match=words) as caught:
        twofour.attention(Q, Q, Q, **options)
    assert "\n" not in str(caught.value)


def test_fields_of_another_kind():
    with pytest.raises(InvalidArgumentError, match="block: expected int, got 'a'"):
        twofour.Sparsity(block="a")


def test_memory_that_is_not_there_is_named():
    """Sizes that no machine has, from tensors that take none: refused by the allocator."""
    row = torch.zeros(1, 1, 1, 64)
    keys = row.expand(1, 2**26, 1, 64)
    with pytest.raises(twofour.OutOfMemoryError, match=r"out of memory.*heads \* rows \* keys"):
        twofour.trace(row.expand(1, 2**26, 1, 64), keys, keys, mode="score", kernel=REFERENCE)
    many = torch.zeros(1).expand(1, 2**30, 2**10, 64)  # 256 TiB
    with pytest.raises(twofour.OutOfMemoryError, match="a contiguous copy of q needs fp32") as no:
        twofour.attention(many, many[:, :1], many[:, :1], mode="dense")
    assert isinstance(no.value, MemoryError) and "\n" not in str(no.value)


@pytest.mark.parametrize("causal", ["no", "False", 2, None, [True]])
def test_causal_is_a_truth_value(causal):
    q, k, v = make_qkv()
    with pytest.raises(InvalidArgumentError, match="causal: expected True or False, got"):
        twofour.attention(q, k, v, causal=causal)


@pytest.mark.parametrize("causal", [1, torch.tensor(True)])
def test_causal_may_be_anything_that_is_one(causal):
    q, k, v = make_qkv()
    want = twofour.attention(q, k, v, mode="dense", causal=True)
    assert torch.equal(twofour.attention(q, k, v, mode="dense", causal=causal), want)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_seqlen_q": 5}, "max_seqlen_q: expected none without cu_seqlens_q, got 5"),
        ({"scale": 1e300}, "scale: expected a finite fp32 number, got 1e.300"),
    ],
)
@pytest.mark.parametrize("function", [twofour.attention, twofour.explain])
def test_values_that_would_be_ignored_or_overflow(function, options, text):
    q, k, v = make_qkv()
    with pytest.raises(InvalidArgumentError, match=text):
        function(q, k, v, **options)


def test_lengths_are_not_negative():
    q, k, v = (t[0] for t in make_qkv())
    offsets = torch.tensor([0, 64], dtype=torch.int32)
    with pytest.raises(InvalidArgumentError, match="max_seqlen_k: expected a length >= 0, got -7"):
        twofour.attention(q, k, v, cu_seqlens_q=offsets, cu_seqlens_k=offsets, max_seqlen_k=-7)


def test_strided_offsets_are_named():
    q, k, v = (t[0] for t in make_qkv())
    offsets = torch.tensor([0, 9, 64, 9], dtype=torch.int32)[::2]
    for function in (twofour.attention, twofour.explain):
        with pytest.raises(InvalidArgumentError, match="cu_seqlens_q: expected a contiguous"):
            function(q, k, v, cu_seqlens_q=offsets, cu_seqlens_k=offsets)


def test_meta_tensors_are_refused_as_real_ones():
    q, k, v = (t.to("meta") for t in make_qkv(hq=4, hkv=2))
    with pytest.raises(InvalidArgumentError, match=r"k: expected shape \[1, 64, 2, 64\]"):
        twofour.attention(q, k[..., :32], v)
    with pytest.raises(InvalidArgumentError, match="heads_q: expected a multiple of heads_kv = 3"):
        twofour.attention(
            q, *(t.expand(1, 64, 1, 64).repeat(1, 1, 3, 1) for t in (k[:, :, :1],) * 2)
        )


def test_a_transposed_basis_is_named():
    q, k, v = make_qkv()
    basis = SimpleNamespace(t_q=torch.eye(64).repeat(2, 1, 1).mT, t_k=torch.eye(64), w=None)
    with pytest.raises(InvalidArgumentError, match=r"calibration\.t_q: expected a contiguous"):
        twofour.attention(q, k, v, mode="dual", calibration=basis)


@pytest.mark.parametrize("function", [twofour.trace, twofour.explain])
def test_unknown_options_name_the_function(function):
    q, k, v = make_qkv()
    with pytest.raises(TypeError, match=rf"{function.__name__}\(\) got an unexpected keyword"):
        function(q, k, v, foo=1)


def test_merge_names_what_it_cannot_take():
    q, k, v = make_qkv()
    o, lse = twofour.attention(q, k, v, return_lse=True)
    for arguments, text in (
        ((None, lse, o, lse), "o1: expected a tensor, got NoneType"),
        ((o, lse.int(), o, lse), "lse1: expected fp32, got int32"),
        ((o, lse.half(), o, lse), "lse1: expected fp32, got fp16"),
        ((o.half(), lse, o, lse), "o2: expected fp16, got fp32"),
        ((o, lse, o.to("meta"), lse), "o2: expected device cpu as for o1, got meta"),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            twofour.merge(*arguments)
