"""The operator inside torch: opcheck, fake tensors, torch.compile, threads, one OpenMP runtime."""

import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import twofour
from conftest import REFERENCE, balanced_calibration, make_qkv

LIBRARY = Path(twofour.__file__).with_name("_twofour.so")


def arguments(mode="dense", packed=False, mask=False, calibrated=False, causal=True, dtype=None):
    q, k, v = make_qkv(2, 20, 33, 4, 2, dtype=dtype or torch.float32)
    cu_q = cu_k = bits = t_q = t_k = w = None
    if packed:
        q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
        cu_q = torch.tensor([0, 15, 40], dtype=torch.int32)
        cu_k = torch.tensor([0, 30, 66], dtype=torch.int32)
    if mask:
        bits = (torch.rand(2, 1, 20, 33) > 0.5).expand(2, 4, 20, 33)
    if calibrated:
        c = balanced_calibration(2, 64)
        t_q, t_k, w = c.t_q, c.t_k, c.w
    longest = (25, 36) if packed else (-1, -1)
    return (
        *(q, k, v, bits, cu_q, cu_k, t_q, t_k, w),
        *(mode, causal, False, -1, -1, None, *longest, ""),
    )


CASES = {
    "dense": {},
    "auto": {"mode": "auto"},
    "int8": {"mode": "int8"},
    "refined": {"mode": "refined", "calibrated": True},
    "packed": {"mode": "score", "packed": True},
    "mask": {"mask": True, "causal": False},
    "bf16": {"dtype": torch.bfloat16},
}


@pytest.mark.parametrize("case", CASES)
def test_opcheck_attention(case):
    torch.library.opcheck(torch.ops.twofour.attention.default, arguments(**CASES[case]))


@pytest.mark.parametrize("kernel", ["", REFERENCE], ids=["chosen", "reference"])
@pytest.mark.parametrize("case", CASES)
def test_opcheck_trace(case, kernel):
    args = (*arguments(**CASES[case])[:-1], kernel)
    torch.library.opcheck(torch.ops.twofour.trace.default, args)


def test_fake_tensors_have_the_real_shapes_and_strides():
    from torch._subclasses import FakeTensorMode

    for case in CASES.values():
        args = (*arguments(**case)[:-1], REFERENCE)
        for op in (torch.ops.twofour.attention.default, torch.ops.twofour.trace.default):
            real = op(*args)
            with FakeTensorMode() as fake:
                fakes = op(*(fake.from_tensor(a) if torch.is_tensor(a) else a for a in args))
            for a, b in zip(real, fakes, strict=True):
                assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


def test_meta_tensors():
    q = torch.empty(2, 300, 8, 64, device="meta", dtype=torch.bfloat16)
    k = torch.empty(2, 500, 2, 64, device="meta", dtype=torch.bfloat16)
    v = torch.empty(2, 500, 2, 128, device="meta", dtype=torch.bfloat16)
    o, lse = twofour.attention(q, k, v, return_lse=True)
    assert o.shape == (2, 300, 8, 128) and o.dtype == torch.bfloat16 and o.device.type == "meta"
    assert lse.shape == (2, 8, 300) and lse.dtype == torch.float32


@pytest.fixture
def counter():
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    yield CompileCounter()
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [None, True], ids=["automatic", "dynamic"])
def test_compile_fullgraph_with_changing_lengths(counter, dynamic):
    def f(q, k, v):
        return twofour.attention(q * 2, k, v, causal=True, return_lse=True)

    compiled = torch.compile(f, fullgraph=True, dynamic=dynamic, backend=counter)
    frames = []
    # Also across the length at which "auto" changes its mind, which must not be a guard.
    for n in (100, 130, 577, 1023, 1024, 1500):
        q, k, v = make_qkv(1, n, n, 2, 1)
        for got, want in zip(compiled(q, k, v), f(q, k, v), strict=True):
            assert torch.equal(got, want)
        frames.append(counter.frame_count)
    assert frames[-1] <= (1 if dynamic else 2), frames


def test_compile_with_inductor_mask_and_window(counter):
    def f(q, k, v, mask):
        o = twofour.attention(q, k, v, mask=mask, window=(40, 0), mode="score", layout="bhmd")
        return o.transpose(1, 2).flatten(2) + 1

    compiled = torch.compile(f, fullgraph=True)
    q, k, v = (t.transpose(1, 2) for t in make_qkv(2, 50, 60))
    mask = torch.rand(2, 1, 1, 60) > 0.3
    assert torch.equal(compiled(q, k, v, mask), f(q, k, v, mask))


def test_compile_packed(counter):
    def f(q, k, v, cu):
        return twofour.attention(
            q, k, v, cu_seqlens_q=cu, cu_seqlens_k=cu, causal=True, mode="score"
        )

    compiled = torch.compile(f, fullgraph=True, dynamic=True, backend=counter)
    for lengths in ([10, 20], [3, 300], [7, 5, 11]):
        q, k, v = (t[0] for t in make_qkv(1, sum(lengths)))
        cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
        assert torch.equal(compiled(q, k, v, cu), f(q, k, v, cu))
    assert counter.frame_count == 1


def test_compile_keeps_the_error_text(counter):
    compiled = torch.compile(
        lambda q: twofour.attention(q, q[:, :, :3], q[:, :, :3]), backend=counter
    )
    with pytest.raises(Exception, match="heads_q: expected a multiple of heads_kv = 3, got 4"):
        compiled(torch.randn(1, 8, 4, 64))


def test_export():
    class Attend(torch.nn.Module):
        def forward(self, q, k, v):
            return twofour.attention(q, k, v, causal=True, mode="dense")

    q, k, v = make_qkv(1, 40)
    length = torch.export.Dim("length", min=2, max=4096)
    program = torch.export.export(Attend(), (q, k, v), dynamic_shapes=[{1: length}] * 3)
    q, k, v = make_qkv(1, 77)
    assert torch.equal(program.module()(q, k, v), twofour.attention(q, k, v, causal=True))


def test_releases_the_gil():
    """While one thread is inside the operator, another runs Python."""
    q, k, v = make_qkv(1, 400, 400, 2)
    done = threading.Event()
    ticks = []

    def count():
        while not done.is_set():
            ticks.append(None)
            done.wait(0.0005)

    thread = threading.Thread(target=count)
    thread.start()
    before = len(ticks)
    twofour.attention(q, k, v, mode="dense", kernel=REFERENCE)
    during = len(ticks) - before
    done.set()
    thread.join()
    assert during >= 3


def test_threads_may_call_at_the_same_time():
    inputs = [make_qkv(1, 300, 300, 2) for _ in range(4)]
    wants = [twofour.attention(*i, mode="score", causal=True) for i in inputs]
    results = [None] * 4

    def work(i):
        for _ in range(10):
            results[i] = twofour.attention(*inputs[i], mode="score", causal=True)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for got, want in zip(results, wants, strict=True):
        assert torch.equal(got, want)


def test_torch_set_num_threads_is_obeyed_in_every_thread():
    threads = torch.get_num_threads()
    seen = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            seen.append(torch.ops.twofour.cpu_info()[2])
            worker = threading.Thread(target=lambda: seen.append(torch.ops.twofour.cpu_info()[2]))
            worker.start()
            worker.join()
    finally:
        torch.set_num_threads(threads)
    assert seen == [1, 1, 3, 3]


def test_a_run_in_a_new_thread_obeys_torch_set_num_threads():
    """OpenMP keeps its number of threads per thread; a new one starts from the environment's."""
    script = (
        "import os, threading, time, torch, twofour\n"
        "q = torch.randn(1, 512, 4, 64)\n"
        "tasks = lambda: len(os.listdir('/proc/self/task'))\n"
        "alone = tasks()\n"
        "def work():\n"
        "    before = tasks()\n"
        "    twofour.attention(q, q, q, mode='dense')\n"
        "    print(tasks() - before)\n"
        "for count in (1, 3):\n"
        "    torch.set_num_threads(count)\n"
        "    deadline = time.monotonic() + 10\n"
        "    while tasks() > alone and time.monotonic() < deadline:\n"
        "        time.sleep(0.001)\n"  # a thread is joined before the system is done with it
        "    t = threading.Thread(target=work); t.start(); t.join()\n"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "4"}
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    assert result.stdout.split() == ["0", "2"]  # helpers beside the calling thread


def test_one_openmp_runtime_in_the_process():
    script = (
        "import torch, twofour\n"
        "q = torch.randn(1, 64, 2, 64)\n"
        "twofour.attention(q, q, q); torch.mm(q[0, :, 0], q[0, :, 0].T)\n"
        "print(''.join(open('/proc/self/maps')))"
    )
    maps = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    runtimes = {
        line.split()[-1]
        for line in maps.stdout.splitlines()
        if re.search(r"/lib(g?omp|iomp5)[^/]*\.so", line)
    }
    assert len(runtimes) == 1, runtimes


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm of binutils")
def test_library_uses_nothing_of_torch_but_the_stable_shims():
    names = subprocess.run(
        ["nm", "-D", "--undefined-only", LIBRARY], capture_output=True, text=True, check=True
    ).stdout
    symbols = {line.split()[-1] for line in names.splitlines()}
    assert any(symbol.startswith("torch_library_impl") for symbol in symbols)
    # Mangled names of libtorch live in at::, c10:: and torch::.
    assert not [s for s in symbols if re.match(r"_ZN?K?(2at|3c10|5torch)", s)]
    assert not [s for s in symbols if s.startswith(("Py", "_Py"))]
