"""Plans that a call finds again follow everything that decides them."""

import itertools

import pytest
import torch

import twofour
from conftest import REFERENCE, assert_close, exact_attention, make_qkv


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def error_of(*tensors, **options):
    with pytest.raises(twofour.TwofourError) as caught:
        twofour.attention(*tensors, **options)
    return type(caught.value), str(caught.value)


def test_the_kernel_of_the_environment_is_followed(monkeypatch):
    qkv = make_qkv(1, 64, 64, 2)
    chosen = twofour.explain(*qkv, mode="dense")
    twofour.attention(*qkv, mode="dense")
    monkeypatch.setenv("TWOFOUR_KERNEL", REFERENCE)
    assert chosen.kernel != REFERENCE
    assert twofour.explain(*qkv, mode="dense").kernel == REFERENCE
    twofour.attention(*qkv, mode="dense")
    # The same call with a variable that names nothing, or no kernel for this mode.
    for name, start in (
        ("attention.x", "TWOFOUR_KERNEL: expected one of "),
        ("A", "TWOFOUR_KERNEL: expected a kernel id that `twofour info` lists, such as attention."),
        ("attention.cpu.int8.none", "TWOFOUR_KERNEL attention.cpu.int8.none cannot serve"),
    ):
        monkeypatch.setenv("TWOFOUR_KERNEL", name)
        assert error_of(*qkv, mode="dense")[1].startswith(start)
    monkeypatch.delenv("TWOFOUR_KERNEL")
    assert str(twofour.explain(*qkv, mode="dense")) == str(chosen)
    twofour.attention(*qkv, mode="dense")


def test_the_instruction_set_of_the_environment_is_followed(monkeypatch):
    qkv = make_qkv(1, 64, 64, 2)
    widest = str(twofour.explain(*qkv, mode="dense"))
    twofour.attention(*qkv, mode="dense")
    monkeypatch.setenv("TWOFOUR_CPU_TARGET", "none_such")
    assert error_of(*qkv, mode="dense")[1].startswith("TWOFOUR_CPU_TARGET: expected one of ")
    monkeypatch.setenv("TWOFOUR_CPU_TARGET", "sse4")
    if widest.splitlines()[1].find(" (avx") >= 0:
        assert " (sse4, " in str(twofour.explain(*qkv, mode="dense"))
        assert_close(twofour.attention(*qkv, mode="dense"), exact_attention(*qkv)[0], 2e-5)
    monkeypatch.delenv("TWOFOUR_CPU_TARGET")
    assert str(twofour.explain(*qkv, mode="dense")) == widest


def test_the_threads_of_torch_are_followed(threads):
    qkv = make_qkv(1, 64, 64, 2)
    want = exact_attention(*qkv)[0]
    for count in (1, 2, 1, 3):
        torch.set_num_threads(count)
        unit = "thread" if count == 1 else "threads"
        assert f", {count} {unit})" in str(twofour.explain(*qkv, mode="dense")).splitlines()[1]
        # A plan for fewer threads than run would have too little workspace.
        assert_close(twofour.attention(*qkv, mode="dense"), want, 2e-5)


def test_calls_that_differ_in_one_thing_differ():
    """More calls than plans are kept, twice, in an order that lets each be found and be lost."""
    calls = [
        dict(zip(("mode", "causal", "window", "scale", "align"), values, strict=True))
        for values in itertools.product(
            ("dense", "score", "auto"),
            (False, True),
            (None, (3, None), (None, 3)),
            (None, 0.25),
            ("bottom_right", "top_left"),
        )
    ]
    assert len(calls) > 64
    qkv = make_qkv(1, 40, 48, 2)
    first = [twofour.attention(*qkv, **call) for call in calls]
    for call, o in zip(calls, first, strict=True):
        assert torch.equal(twofour.attention(*qkv, **call), o)
        assert torch.equal(twofour.attention(*qkv, **call), o)
        # Against a plan that is made by another name, so found in none of the others.
        reference = twofour.attention(*qkv, **call, kernel=REFERENCE)
        assert_close(o, reference, 2e-5)


def test_errors_are_the_same_every_time():
    qkv = make_qkv(1, 8, 8, 2)
    odd = make_qkv(1, 8, 8, 2, d=7)
    for tensors, options in (
        (odd, {"mode": "dense"}),
        (odd, {"mode": "auto"}),
        (qkv, {"mode": "fast"}),
        (qkv, {"kernel": "attention.x"}),
        (qkv, {"mode": "dense", "kernel": "attention.cpu.int8.none"}),
        (qkv, {"scale": float("nan")}),
    ):
        first = error_of(*tensors, **options)
        assert error_of(*tensors, **options) == first
        twofour.attention(*qkv, mode="dense")
        assert error_of(*tensors, **options) == first


def test_a_calibration_that_needs_a_gradient_gets_none():
    """Calls go below autograd, but not past its refusal."""
    from conftest import balanced_calibration

    qkv = make_qkv(1, 8, 8, 2)
    calibration = balanced_calibration(2, 64)
    calibration.t_q.requires_grad_()
    o = twofour.attention(*qkv, mode="dual", calibration=calibration)
    with pytest.raises(NotImplementedError, match="no backward"):
        o.sum().backward()
    with torch.no_grad():
        assert not twofour.attention(*qkv, mode="dual", calibration=calibration).requires_grad


def test_function_transforms_see_a_call():
    q, k, v = make_qkv(1, 8, 8, 2)

    def without_gradient(x):
        with torch.no_grad():
            o = twofour.attention(x, k, v, mode="dense")
        return (o * x).sum()

    want = twofour.attention(q, k, v, mode="dense")
    assert torch.equal(torch.func.grad(without_gradient)(q), want)
    both = torch.func.vmap(lambda x: twofour.attention(x, k, v, mode="dense"))(
        torch.stack([q, 2 * q])
    )
    assert torch.equal(both[0], want)
