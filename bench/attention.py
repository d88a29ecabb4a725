"""twofour.attention in every mode beside FlashAttention-2, cuDNN and FlashAttention-3, on a GPU.

    python bench/attention.py                        everything that docs/performance.md shows
    python bench/attention.py --quick --causal       one length, fewer repetitions
    python bench/attention.py --fa3 libfa3.so        FlashAttention-3 from a library (gpu_peers.py)
    python bench/attention.py --inputs captured.safetensors --modes refined --head-dim 64

All run in this process, on the same tensors, and a row stands beside the peers' rates of the same
run and regime: single launches (burst) and back to back (sustained), see gpu_timing.py. What a mode
needs to prepare (quantisation of K, change of basis) is inside the timed call. Tensors are
[B, M, H, D] in memory. Errors (gpu_accuracy.py) are of the very calls that are timed.

Rows are appended to bench/results/<device>.csv (gpu_rows.py names the columns) after each shape,
and the plot is written beside it. The exit code is 1 when something asked for could not run.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent))
import gpu_accuracy as accuracy  # neighbours, not a package
import gpu_peers as peers
import gpu_rows
import gpu_timing as timing
import inputs
from common import FAILURES, ROOT, comma_separated, first_line, git, modified, positive, run
from gpu_rows import Row
from inputs import Problem

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
MODES = ("dense", "score", "int8", "dual", "refined")
# Short ones with more sequences, powers of two and the nearest multiples of a row block of 192.
LENGTHS = (2048, 4096, 8192, 16384, 16320, 32768, 32832)


@dataclass
class Contender:
    """A peer or a mode; `run` computes one problem, o [B,Hq,M,D]."""

    name: str
    run: Callable[[Problem], Tensor]
    mode: str = ""
    sparsity: str = ""
    transform: str = ""
    kernel: str = ""
    err_same: float | None = None
    err_exact: float | None = None
    shares: tuple[float | None, float | None] = (None, None)  # refined, dropped
    timings: dict[str, timing.Timing] = field(default_factory=dict)
    launch: str = "raw"


@dataclass
class Session:
    """What stays the same from shape to shape, and what is remembered of them."""

    options: argparse.Namespace
    gauge: timing.Gauge
    commit: str
    peers: dict[str, peers.Forward]
    failed: set[str]  # names of what could not run
    #: Random inputs of all lengths share one reduced problem's error: the reference is slow.
    same_errors: dict[tuple, float] = field(default_factory=dict)


@dataclass
class Shape:
    """What one group of rows has in common. Several problems (layers) are one call."""

    head_dim: int
    causal: bool
    source: str
    problems: list[Problem]

    @property
    def flops(self) -> float:
        return sum(
            gpu_rows.flops(q.size(0), q.size(1), q.size(2), k.size(2), q.size(3), self.causal)
            for q, k, *_ in self.problems
        )

    @property
    def bytes(self) -> int:
        return sum(t.nbytes for problem in self.problems for t in problem[:3])


def on_device(problem: Problem, dtype: torch.dtype, device: torch.device) -> Problem:
    """In the benchmark's type and with [B, M, H, D] in memory."""
    q, k, v = (
        t.to(device, dtype).transpose(1, 2).contiguous().transpose(1, 2) for t in problem[:3]
    )
    basis = problem.basis
    if basis is not None:
        found = (getattr(basis, name, None) for name in ("t_q", "t_k", "w"))
        basis = inputs.Basis(*(None if t is None else t.to(device).float() for t in found))
    return Problem(q, k, v, basis)


def with_transform(problem: Problem, transform: str) -> Problem:
    """With the basis asked for: none, a random orthogonal one, or that of the file."""
    if transform == "identity":
        return problem._replace(basis=None)
    if transform == "file":
        if problem.basis is None:
            raise ValueError("--transform file: the file has no t_q and t_k")
        return problem
    heads, head_dim = problem.k.size(1), problem.k.size(3)
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(heads, head_dim, head_dim, generator=generator))[0]
    basis = basis.contiguous().to(problem.k.device)
    return problem._replace(basis=inputs.Basis(basis, basis.clone()))


def shapes(options: argparse.Namespace, device: torch.device) -> list[Callable[[], Shape]]:
    """Makers, since all at once would not fit."""
    dtype = DTYPES[options.dtype]
    makers: list[Callable[[], Shape]] = []

    def finished(problems: list[Problem], causal: bool, source: str) -> Shape:
        problems = [
            with_transform(on_device(p, dtype, device), options.transform) for p in problems
        ]
        return Shape(problems[0].q.size(3), causal, source, problems)

    def random(head_dim: int, length: int, causal: bool) -> Shape:
        batch = options.batch or max(1, options.tokens // length)
        share = options.force_refined
        problem = inputs.random_problem(
            length, head_dim, options.heads, options.kv_heads,
            1.0 if share else options.score_std, batch, device,
        )  # fmt: skip
        if share:
            import twofour

            block = twofour.Sparsity.parse("refined", head_dim).block
            problem = inputs.force_refined(with_transform(problem, options.transform), share, block)
        return finished([problem], causal, "forced" if share else "random")

    for causal in options.masks:
        if options.inputs:
            problems = inputs.load(options.inputs)
            if any(q.size(2) != k.size(2) for q, k, *_ in problems):
                raise ValueError(f"{options.inputs}: expected as many queries as keys")
            makers.append(lambda c=causal, p=problems: finished(p, c, options.inputs.stem))
            continue
        for head_dim in options.head_dim:
            for length in options.lengths:
                makers.append(lambda d=head_dim, n=length, c=causal: random(d, n, c))
    return makers


def peer_contenders(found: dict[str, peers.Forward], causal: bool) -> list[Contender]:
    return [
        Contender(name, lambda p, f=forward: f(p, causal), kernel=name)
        for name, forward in found.items()
    ]


def mode_contender(mode: str, shape: Shape, session: Session) -> Contender:
    import twofour

    sparsity = twofour.Sparsity.parse(mode, shape.head_dim)
    call = {"mode": sparsity, "causal": shape.causal, "layout": "bhmd"}

    def calibrated(problem: Problem) -> dict[str, Any]:
        return call | {"calibration": problem.basis if sparsity.needs_calibration else None}

    def run(problem: Problem, **more: Any) -> Any:
        return twofour.attention(*problem[:3], **calibrated(problem), **more)

    contender = Contender(mode, run, mode, str(sparsity))
    contender.transform = session.options.transform if sparsity.needs_calibration else ""
    first = shape.problems[0]
    contender.kernel = twofour.explain(*first[:3], **calibrated(first)).kernel
    counts = torch.zeros(len(twofour.STATS_FIELDS), dtype=torch.int64)
    for problem in shape.problems:
        counts += run(problem, return_stats=True)[1].cpu()
    units, refined, dropped = counts.tolist()[:3]
    contender.shares = refined / max(units, 1), dropped / max(units, 1)
    key = str(sparsity), shape.source, shape.head_dim, shape.causal
    if key not in session.same_errors:
        kept = first if sparsity.needs_calibration else first._replace(basis=None)
        same = {"mode": sparsity, "causal": shape.causal}
        session.same_errors[key] = accuracy.same_error(kept, same)
    contender.err_same = session.same_errors[key]
    return contender


def measure(shape: Shape, contenders: list[Contender], session: Session) -> None:
    """Fills in the timings."""
    options = session.options
    device = shape.problems[0].q.device
    l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    copies = [shape.problems]
    while len(copies) < timing.copies_needed(shape.bytes, l2_bytes):
        copies.append([p._replace(q=p.q.clone(), k=p.k.clone(), v=p.v.clone()) for p in copies[0]])

    def on_copy(contender: Contender) -> Callable[[int], Any]:
        def call(copy: int) -> Any:
            return [contender.run(problem) for problem in copies[copy]]

        return call

    calls = {c.name: on_copy(c) for c in contenders}
    guesses = {name: timing.estimate(call, len(copies)) for name, call in calls.items()}
    # All or none, so that every launch costs the same.
    as_graphs = options.launch == "graph" or (
        options.launch == "auto" and any(timing.needs_graph(*guess) for guess in guesses.values())
    )
    launches = {}
    for contender in contenders:
        name = contender.name
        launches[name] = timing.Launch(calls[name], len(copies), "raw")
        if as_graphs:
            try:
                launches[name] = timing.captured(calls[name], len(copies))
            except RuntimeError as error:
                print(f"  {name}: not captured in a graph: {first_line(error)}")
        contender.launch = launches[name].kind
    rotation = timing.Rotation(len(copies))
    bursts = timing.burst(launches, rotation, options.repeats, options.pause)
    for contender in contenders:
        name = contender.name
        contender.timings["burst"] = bursts[name]
        if options.seconds > 0:
            contender.timings["sustained"] = timing.sustained(
                launches[name], rotation, bursts[name].median, options.seconds, session.gauge
            )


def rows_of(shape: Shape, contenders: list[Contender], session: Session) -> list[Row]:
    q, k, *_ = shape.problems[0]
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    found = []
    for regime in gpu_rows.REGIMES:
        timed = [(c, c.timings[regime]) for c in contenders if regime in c.timings]
        rates = {c.name: shape.flops / t.median / 1e9 for c, t in timed}
        for c, t in timed:
            row = Row(
                date=today,
                kernel=c.kernel,
                mode=c.mode,
                sparsity=c.sparsity,
                dtype=session.options.dtype,
                head_dim=shape.head_dim,
                causal=int(shape.causal),
                B=q.size(0),
                Hq=q.size(1),
                Hkv=k.size(1),
                M=q.size(2),
                N=k.size(2),
                regime=regime,
                tflops=rates[c.name],
                tflops_fa2=rates.get("fa2"),
                tflops_cudnn=rates.get("cudnn"),
                tflops_fa3=rates.get("fa3"),
                err_same=c.err_same,
                err_exact=c.err_exact,
                commit=session.commit,
                tflops_min=shape.flops / t.worst / 1e9,
                tflops_max=shape.flops / t.best / 1e9,
                inputs=shape.source,
                transform=c.transform,
                launch=c.launch,
                refined_share=c.shares[0],
                dropped_share=c.shares[1],
                clock_mhz=t.clock_mhz,
                power_w=t.power_w,
            )
            found.append(row)
    return found


def bench_shape(shape: Shape, session: Session) -> list[Row]:
    """The rows of one shape; what cannot run is said, and remembered."""
    options = session.options
    q, k, *_ = shape.problems[0]
    layers = f"{len(shape.problems)} layers, " if len(shape.problems) > 1 else ""
    print(
        f"{options.dtype}, head_dim {shape.head_dim}, {'causal' if shape.causal else 'full'}, "
        f"B {q.size(0)}, heads {q.size(1)}/{k.size(1)}, {q.size(2)} x {k.size(2)}, {layers}"
        f"{shape.source}",
        flush=True,
    )
    makers = [(c.name, lambda c=c: c) for c in peer_contenders(session.peers, shape.causal)]
    makers += [(mode, lambda m=mode: mode_contender(m, shape, session)) for mode in options.modes]
    able = []
    for name, make in makers:
        try:
            contender = make()
            o = contender.run(shape.problems[0])
            contender.err_exact = accuracy.exact_error(o, shape.problems[0], shape.causal)
            able.append(contender)
        except FAILURES as error:
            session.failed.add(name)
            print(f"  {name}: cannot run: {first_line(error)}", flush=True)
    if not able:
        return []
    measure(shape, able, session)
    rows = rows_of(shape, able, session)
    for row in rows:
        state = f"  {row.clock_mhz} MHz, {row.power_w} W" if row.clock_mhz else ""
        print(
            f"  {row.label:8} {row.regime:9} {row.tflops:6.0f} TFLOPS "
            f"({row.tflops_min:.0f} .. {row.tflops_max:.0f}), {row.launch}{state}",
            flush=True,
        )
    return rows


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/attention.py", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    numbers, words = comma_separated(positive), comma_separated(str)
    add("--dtype", choices=DTYPES, default="fp16")
    add("--head-dim", type=numbers, default=[64, 128], metavar="N,...")
    mask = parser.add_mutually_exclusive_group()
    mask.add_argument("--causal", action="store_const", dest="masks", const=[True])
    mask.add_argument("--full", action="store_const", dest="masks", const=[False])
    mask.add_argument("--both", action="store_const", dest="masks", const=[False, True],
                      help="full and causal, the default")  # fmt: skip
    add("--lengths", type=numbers, metavar="N,...", help=f"default: {','.join(map(str, LENGTHS))}")
    add("--heads", type=positive, default=16)
    add("--kv-heads", type=positive, help="default: as many as --heads")
    add("--batch", type=positive, help="default: --tokens over the length, at least 1")
    add("--tokens", type=positive, default=16384, help="of all sequences of a batch")
    add("--modes", type=words, default=list(MODES), metavar="MODE,...",
        help="modes or canonical strings such as int8/pair192/s1/l0/d6; '' for none")  # fmt: skip
    add("--peers", type=words, default=["fa2", "cudnn", "fa3"], metavar="NAME,...",
        help=f"of {','.join(peers.NAMES)}")  # fmt: skip
    add("--fa3", type=Path, metavar="LIBRARY", help="shared library, described in gpu_peers.py")
    add("--inputs", type=Path, metavar="FILE",
        help="q, k, v [B,H,M,D], .npz or .safetensors; bench/inputs.py writes one")  # fmt: skip
    add("--transform", choices=("identity", "random", "file"),
        help="of dual and refined; default: the file's if it has one, else random")  # fmt: skip
    add("--score-std", type=float, default=1.0, help="of random scores")
    add("--force-refined", type=float, metavar="SHARE", default=0.0,
        help="random inputs of which refined recomputes this share of the units")  # fmt: skip
    add("--repeats", type=positive, default=15, help="launches of a burst")
    add("--pause", type=float, default=0.02, help="seconds before each launch of a burst")
    add("--seconds", type=float, default=0.7, help="of a sustained run; 0 for bursts only")
    add("--launch", choices=("auto", "graph", "raw"), default="auto",
        help="auto: CUDA graphs where Python could be slower than a kernel")  # fmt: skip
    add("--quick", action="store_true", help="one length and fewer repetitions")
    add("--out", type=Path, metavar="FILE.csv", help="default: bench/results/<device>.csv")
    add("--commit", help="written to the rows; default: git's")
    options = parser.parse_args(arguments)
    options.masks = options.masks or [False, True]
    options.kv_heads = options.kv_heads or options.heads
    options.lengths = options.lengths or ([16384] if options.quick else list(LENGTHS))
    if options.quick:
        options.repeats = min(options.repeats, 5)
    if options.heads % options.kv_heads:
        parser.error(f"--heads: expected a multiple of {options.kv_heads}, got {options.heads}")
    if unknown := [name for name in options.peers if name not in peers.NAMES]:
        parser.error(f"--peers: expected some of {','.join(peers.NAMES)}, got {unknown[0]}")
    if options.fa3 and not options.fa3.is_file():
        parser.error(f"--fa3: {options.fa3}: no such file")
    if options.inputs and not options.inputs.is_file():
        parser.error(f"--inputs: {options.inputs}: no such file")
    if not 0 <= options.force_refined <= 1:
        parser.error(f"--force-refined: expected 0 .. 1, got {options.force_refined}")
    if options.transform == "file" and not options.inputs:
        parser.error("--transform file: expected --inputs as well")
    return options


def device_slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def main() -> int:
    options = parse_options()
    if not torch.cuda.is_available():
        raise ValueError("expected a CUDA GPU that torch can use, found none")
    if options.modes and not importlib.util.find_spec("twofour"):
        raise ValueError("twofour is not installed; `pip install .`, or --modes '' for peers alone")
    device = torch.device("cuda", torch.cuda.current_device())
    gauge = timing.Gauge(device)
    name = torch.cuda.get_device_name(device)
    out = options.out or ROOT / "bench/results" / f"{device_slug(name)}.csv"
    gpu_rows.check_columns(out)
    if options.transform is None:
        from_file = options.inputs and inputs.load(options.inputs)[0].basis is not None
        options.transform = "file" if from_file else "random"
    commit = options.commit or git("rev-parse", "--short", "HEAD") + ("+" if modified() else "")
    machine = timing.machine_text(device, gauge)
    print(machine)
    found, missing = peers.find(options.peers, options.fa3)
    for peer, reason in missing.items():
        print(f"{peer}: missing: {reason}")
    session = Session(options, gauge, commit, found, set(missing))
    rows: list[Row] = []
    with torch.no_grad(), warnings.catch_warnings():
        # --transform identity is asked for.
        warnings.filterwarnings("ignore", message=".*without calibration")
        for make in shapes(options, device):
            added = bench_shape(make(), session)
            gpu_rows.append(out, added)
            rows += added
            torch.cuda.empty_cache()
    print()
    print(gpu_rows.table(rows))
    print(f"written: {out}")
    if rows:
        try:
            gpu_rows.plot(rows, out.with_suffix(".svg"), machine.split(";")[0])
            print(f"written: {out.with_suffix('.svg')}")
        except ImportError as error:
            print(f"no plot: {error}")
    return 1 if session.failed else 0


if __name__ == "__main__":
    run(main)
