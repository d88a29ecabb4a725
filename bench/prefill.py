"""Time to first token of a model whose prompt is read with each attention, and where it goes.

    python bench/prefill.py --model smollm2 --calibration C.safetensors --fa3 libfa3.so
    python bench/prefill.py --model llama3-8b --fa3 libfa3.so --out llama3-8b.json
    python bench/prefill.py --model tiny --device cpu --lengths 1536 --modes sdpa,score

smollm2 reads the evaluation text; llama3-8b has that model's shape and random weights, and reads
random tokens. One sequence, no KV cache, logits of the last token alone, greedy: the time runs from
token ids on the device until the first new token is known to the host. All contenders run in turn
in this process, in the same model. Peers (gpu_peers.py) and modes ("sdpa" is torch's own choice)
stand behind transformers' attention interface; a mode's preparation is inside its time.

The parts come from passes of their own, with CUDA events around the attention function, the q, k,
v and o projections and the MLPs; the rest is norms, rotary embedding, residuals, embedding and
head, and whatever time the GPU waits for the host. MLPs take --mlp-chunk tokens at a time, for all
contenders alike. The JSON file is written anew after each length. The exit code is 1 when something
asked for could not run.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import shlex
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent))
import gpu_peers as peers  # neighbours, not a package
import gpu_timing as timing
import prefill_models as subjects
from common import (
    FAILURES,
    comma_separated,
    first_line,
    git,
    modified,
    positive,
    run,
    write_atomically,
)
from inputs import Problem

MODES = ("dense", "score", "int8", "dual", "refined")
PEERS = ("fa2", "cudnn", "fa3")
#: Ratios stand against those of these that ran.
BASELINES = ("sdpa", "fa2", "fa3")
LENGTHS = (8192, 32768, 131072)
PARTS = ("attention", "projections", "mlp")
#: The registered attention of all peers.
PEER_NAME = "bench_peer"


@dataclass
class Figures:
    """What one contender needed for one length."""

    name: str
    kernel: str = ""
    sparsity: str = ""
    refined_share: float | None = None
    dropped_share: float | None = None
    times_ms: list[float] = field(default_factory=list)
    parts_ms: dict[str, float] = field(default_factory=dict)  # with "rest" and "total"
    token: int = -1
    same_token: bool = True  # in every timed pass
    logits_error: float = 0.0  # relative to the first contender's
    logits: Tensor | None = field(default=None, repr=False)
    clock_mhz: int | None = None
    power_w: int | None = None
    peak_gib: float | None = None

    @property
    def ttft(self) -> timing.Timing:
        times = self.times_ms
        return timing.Timing(
            statistics.median(times), min(times), max(times), self.clock_mhz, self.power_w
        )

    def as_json(self, baselines: list[Figures]) -> dict[str, Any]:
        out = {
            name: getattr(self, name)
            for name in ("name", "kernel", "sparsity", "refined_share", "dropped_share", "token",
                         "same_token", "logits_error", "clock_mhz", "power_w", "peak_gib",
                         "parts_ms")
        }  # fmt: skip
        t = self.ttft
        out["ttft_ms"] = {
            "median": t.median,
            "min": t.best,
            "max": t.worst,
            "n": len(self.times_ms),
        }
        out["ratio"] = {b.name: b.ttft.median / t.median for b in baselines}
        out["attention_ratio"] = {
            b.name: b.parts_ms["attention"] / self.parts_ms["attention"] for b in baselines
        }
        return out


class Marks:
    """Start and end of parts of a pass, on the device's clock; nothing waits for them."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.parts: dict[str, list[tuple[Any, Any]]] = {}

    def now(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def add(self, part: str, start: Any) -> None:
        self.parts.setdefault(part, []).append((start, self.now()))

    def total_ms(self, part: str) -> float:
        """After the device has finished."""
        spans = self.parts.get(part, [])
        if self.cuda:
            return sum(start.elapsed_time(end) for start, end in spans)
        return 1e3 * sum(end - start for start, end in spans)


class Bench:
    """A model, and the switch between contenders."""

    def __init__(self, subject: subjects.Subject, options: argparse.Namespace) -> None:
        from twofour.calibration import Calibration

        self.subject, self.options = subject, options
        self.model: nn.Module = subject.model
        self.device: torch.device = subject.model.device
        self.gauge = timing.Gauge(self.device) if self.device.type == "cuda" else None
        given = options.calibration
        basis = Calibration.load(given) if given else subjects.random_basis(self.model)
        layers = tuple(layer.to(self.device) for layer in basis.layers)
        self.basis = dataclasses.replace(basis, layers=layers)
        self.peers, self.missing = peers.find(options.peers, options.fa3)
        self.failed = set(self.missing)
        self._peer: peers.Forward | None = None

    def names(self) -> list[str]:
        """Peers first, so that what follows is compared with them; "sdpa" before all."""
        modes = list(self.options.modes)
        first = [name for name in ("sdpa",) if name in modes]
        return first + list(self.peers) + [mode for mode in modes if mode != "sdpa"]

    def select(self, name: str) -> None:
        """The model's attention from now on."""
        from twofour import hf

        if name in self.peers:
            self._peer = self.peers[name]
            self.model.set_attn_implementation(PEER_NAME)
        else:
            hf.enable(self.model, mode=name, calibration=self.basis)

    def peer_forward(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor,
        attention_mask: Tensor | None, scaling: float | None = None, **_: Any,
    ) -> tuple[Tensor, None]:  # fmt: skip
        """The selected peer as transformers' attention function: ([B,M,H,D], None)."""
        default = query.size(-1) ** -0.5
        if attention_mask is not None or abs((scaling or default) / default - 1) > 1e-6:
            raise ValueError("peer attention: expected a plain causal call with the usual scale")
        o = self._peer(Problem(query, key, value, None), True)
        return o.transpose(1, 2).contiguous(), None

    def first_token(self, prompt: Tensor) -> Tensor:
        """Logits [vocabulary] of the token after the prompt."""
        return self.model(prompt, use_cache=False, logits_to_keep=1).logits[0, -1]

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def time_ms(self, prompt: Tensor) -> tuple[float, int]:
        """Milliseconds until the first token is known, and the token."""
        self.synchronize()
        start = time.perf_counter()
        token = int(self.first_token(prompt).argmax())
        return 1e3 * (time.perf_counter() - start), token

    def prepare(self, name: str, prompt: Tensor) -> Figures:
        """The first, untimed passes: what runs, what it prunes, what it computes."""
        from twofour import hf

        figures = Figures(name, kernel=name)
        self.select(name)
        if name not in self.peers and name != hf.SDPA:
            self._ask(figures, prompt)
        for _ in range(self.options.warmup):
            figures.logits = self.first_token(prompt).float()
        figures.token = int(figures.logits.argmax())
        if not bool(figures.logits.isfinite().all()):
            raise ValueError("the logits are not finite")
        return figures

    def _ask(self, figures: Figures, prompt: Tensor) -> None:
        """Kernel, sparsity and shares of a mode."""
        import twofour
        from twofour import hf

        layers = hf.attention_modules(self.model)

        def on_attention(layer: int, q: Tensor, k: Tensor, v: Tensor, scale: Any) -> None:
            if layer == min(layers):
                plan = twofour.explain(
                    q, k, v, mode=figures.name, causal=True, scale=scale, layout="bhmd",
                    calibration=self.basis.layers[0],
                )  # fmt: skip
                figures.kernel, figures.sparsity = plan.kernel, str(plan.sparsity)

        with hf.record(self.model, on_attention) as seen:
            self.first_token(prompt)
        if seen.units:
            figures.refined_share = seen.refined / seen.units
            figures.dropped_share = seen.dropped / seen.units

    def break_down(self, figures: Figures, prompt: Tensor) -> None:
        """Where the time goes, the median over passes of their own; clocks and peak memory."""
        self.select(figures.name)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        passes: list[dict[str, float]] = []
        readings: list[tuple[int, int]] = []
        for _ in range(self.options.breakdowns):
            self.synchronize()
            marks = Marks(self.device)
            with self.marked(marks):
                start = marks.now()
                logits = self.first_token(prompt)
                logits.argmax()
                marks.add("total", start)
            while self.gauge and not marks.parts["total"][0][1].query():
                if reading := self.gauge.read():
                    readings.append(reading)
                time.sleep(0.01)
            self.synchronize()
            found = {part: marks.total_ms(part) for part in (*PARTS, "total")}
            found["rest"] = found["total"] - sum(found[part] for part in PARTS)
            passes.append(found)
        figures.parts_ms = {
            part: statistics.median(found[part] for found in passes)
            for part in (*PARTS, "rest", "total")
        }
        if readings:
            figures.clock_mhz, figures.power_w = (
                round(statistics.median(column)) for column in zip(*readings, strict=True)
            )
        if self.device.type == "cuda":
            figures.peak_gib = torch.cuda.max_memory_allocated(self.device) / 2**30

    @contextlib.contextmanager
    def marked(self, marks: Marks) -> Iterator[None]:
        """Within the block, the parts of a pass are marked."""
        from transformers import AttentionInterface

        from twofour import hf

        handles = []
        for part, modules in (("projections", subjects.projections(self.model)),
                              ("mlp", subjects.mlps(self.model))):  # fmt: skip
            starts: list[Any] = []  # of the running module; these do not nest
            for module in modules:
                handles += [
                    module.register_forward_pre_hook(lambda *_, s=starts: s.append(marks.now())),
                    module.register_forward_hook(
                        lambda *_, s=starts, p=part: marks.add(p, s.pop())
                    ),
                ]

        def watched(inner: Callable) -> Callable:
            def forward(*arguments: Any, **options: Any) -> Any:
                start = marks.now()
                out = inner(*arguments, **options)
                marks.add("attention", start)
                return out

            return forward

        plain = {PEER_NAME: self.peer_forward, hf.NAME: hf.attention_forward}
        for name, function in plain.items():
            AttentionInterface.register(name, watched(function))
        try:
            yield
        finally:
            for name, function in plain.items():
                AttentionInterface.register(name, function)
            for handle in handles:
                handle.remove()

    def run(self, length: int) -> list[Figures]:
        """All contenders on one length; what cannot run is said, and remembered."""
        prompt = self.subject.prompt(length)
        able: list[Figures] = []
        for name in self.names():
            try:
                able.append(self.prepare(name, prompt))
            except FAILURES as error:
                self.failed.add(name)
                print(f"  {name}: cannot run: {first_line(error)}", flush=True)
            self._free()
        for _ in range(self.options.repeats):
            for figures in able:
                self.select(figures.name)
                time.sleep(self.options.pause)
                milliseconds, token = self.time_ms(prompt)
                figures.times_ms.append(milliseconds)
                figures.same_token &= token == figures.token
        for figures in able:
            self.break_down(figures, prompt)
            reference = able[0].logits.double()
            difference = figures.logits.double() - reference
            figures.logits_error = float(difference.norm() / reference.norm())
            t = figures.ttft
            state = f", {t.clock_mhz} MHz, {t.power_w} W" if t.clock_mhz else ""
            print(
                f"  {figures.name:10} {t.median:9.1f} ms ({t.best:.1f} .. {t.worst:.1f}), "
                f"logits {figures.logits_error:.1e} from {able[0].name}{state}",
                flush=True,
            )
        return able

    def _free(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def baselines_of(figures: list[Figures]) -> list[Figures]:
    return [f for name in BASELINES for f in figures if f.name == name]


def table(found: dict[int, list[Figures]]) -> str:
    """Medians in ms, ratios above 1 are faster: of the time to first token / of attention alone."""
    shown = [name for name in BASELINES if any(f.name == name for fs in found.values() for f in fs)]
    head = f"{'tokens':>7}  {'attention by':14}{'TTFT ms':>10}"
    head += "".join(f"{part:>13}" for part in (*PARTS, "rest"))
    head += "".join(f"{'vs ' + name:>16}" for name in shown)
    lines = [head, "-" * len(head)]
    for length, figures in found.items():
        by_name = {f.name: f for f in figures}
        for f in figures:
            line = f"{length:>7}  {f.name:14}{f.ttft.median:>10.1f}"
            line += "".join(f"{f.parts_ms[part]:>13.1f}" for part in (*PARTS, "rest"))
            for name in shown:
                cell = "-"
                if base := by_name.get(name):
                    whole = base.ttft.median / f.ttft.median
                    alone = base.parts_ms["attention"] / f.parts_ms["attention"]
                    cell = f"{whole:.2f}x / {alone:.2f}x"
                line += f"{cell:>16}"
            lines.append(line)
    return "\n".join(lines)


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/prefill.py", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    numbers, words = comma_separated(positive), comma_separated(str)
    known = ", ".join((subjects.SMOLLM2, *subjects.SHAPES))
    add("--model", default=subjects.SMOLLM2, help=f"{known}, a model directory or .gguf file")
    add("--layers", type=positive, help="of the random models; default: as many as it has")
    add("--dtype", choices=subjects.DTYPES, help="default: bf16 on a GPU, fp16 for smollm2")
    add("--device", default="cuda", help="cuda, cuda:N or cpu")
    add("--lengths", type=numbers, metavar="N,...",
        help=f"default: {','.join(map(str, LENGTHS))}, as far as the model goes")  # fmt: skip
    add("--modes", type=words, default=list(MODES), metavar="MODE,...",
        help="modes, canonical strings, or sdpa; '' for none")  # fmt: skip
    add("--peers", type=words, metavar="NAME,...",
        help=f"default: {','.join(PEERS)} on a GPU, none on the CPU")  # fmt: skip
    add("--fa3", type=Path, metavar="LIBRARY", help="shared library, described in gpu_peers.py")
    add("--calibration", type=Path, metavar="FILE",
        help="of dual and refined; default: a random basis, which refines other units")  # fmt: skip
    add("--mlp-chunk", type=int, default=32768, metavar="TOKENS",
        help="that an MLP takes at a time; 0 for all")  # fmt: skip
    add("--repeats", type=positive, default=5, help="timed passes of each contender")
    add("--warmup", type=positive, default=1, help="passes before them")
    add("--breakdowns", type=positive, default=1, help="passes with marks around the parts")
    add("--pause", type=float, default=0.0, help="seconds before each timed pass")
    add("--out", type=Path, metavar="FILE.json", help="written after each length")
    add("--commit", help="written to the file; default: git's")
    options = parser.parse_args(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    options.command = shlex.join(["bench/prefill.py", *given])
    on_cpu = options.device == "cpu"
    if options.peers is None:
        options.peers = [] if on_cpu else list(PEERS)
    if unknown := [name for name in options.peers if name not in PEERS]:
        parser.error(f"--peers: expected some of {','.join(PEERS)}, got {unknown[0]}")
    if on_cpu and options.peers:
        parser.error(f"--peers: expected none on the CPU, got {options.peers[0]}")
    if not options.modes and not options.peers:
        parser.error("expected --modes or --peers, got neither")
    if options.mlp_chunk < 0 or options.pause < 0:
        parser.error("--mlp-chunk and --pause: expected 0 or more")
    for name in ("fa3", "calibration"):
        given = getattr(options, name)
        if given and not given.is_file():
            parser.error(f"--{name}: {given}: no such file")
    return options


def lengths_of(options: argparse.Namespace, limit: int | None) -> list[int]:
    """Those that were asked for, or the usual ones the model was made for.

    Raises:
        ValueError: one of those asked for is beyond it.
    """
    if options.lengths is None:
        return [n for n in LENGTHS if limit is None or n <= limit] or [limit]
    if limit is not None and max(options.lengths) > limit:
        raise ValueError(f"--lengths: expected at most {limit}, got {max(options.lengths)}")
    return options.lengths


def document(bench: Bench, found: dict[int, list[Figures]]) -> dict[str, Any]:
    """The results as plain values."""
    from twofour import eval

    options = bench.options
    machine = eval.machine(str(bench.device))
    if bench.gauge:
        machine["device"] = timing.machine_text(bench.device, bench.gauge)
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "command": options.command,
        "commit": options.commit or git("rev-parse", "--short", "HEAD") + "+" * modified(),
        "machine": machine,
        "versions": eval.versions(),
        "model": subjects.describe(bench.model),
        "prompt": bench.subject.source,
        "basis": options.calibration.name if options.calibration else "random",
        "mlp_chunk": options.mlp_chunk,
        "missing": bench.missing,
        "lengths": {
            str(length): [f.as_json(baselines_of(figures)) for f in figures]
            for length, figures in found.items()
        },
    }


def main(arguments: list[str] | None = None) -> int:
    options = parse_options(arguments)
    device = torch.device(options.device)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError("expected a CUDA GPU that torch can use, found none; or --device cpu")
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
    from transformers import AttentionInterface

    from twofour import hf

    longest = max(options.lengths or LENGTHS)
    dtype = subjects.DTYPES[options.dtype] if options.dtype else None
    subject = subjects.load(options.model, device, dtype, options.layers, longest)
    if options.mlp_chunk:
        subjects.run_mlps_in_chunks(subject.model, options.mlp_chunk)
    bench = Bench(subject, options)
    AttentionInterface.register(PEER_NAME, bench.peer_forward)
    for peer, reason in bench.missing.items():
        print(f"{peer}: missing: {reason}")
    shape = subjects.describe(subject.model)
    title = (
        f"{shape['name']}: {shape['layers']} layers, heads {shape['heads']}/{shape['kv_heads']}, "
        f"head_dim {shape['head_dim']}, {shape['parameters'] / 1e9:.2f} B parameters in "
        f"{shape['dtype']}"
    )
    print(
        f"{timing.machine_text(device, bench.gauge) if bench.gauge else 'CPU'}\n{title}", flush=True
    )
    found: dict[int, list[Figures]] = {}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", hf.ApproximateWarning)  # modes are what is measured
        for length in lengths_of(options, subject.limit):
            print(f"{length} tokens", flush=True)
            found[length] = bench.run(length)
            if options.out:
                text = json.dumps(document(bench, found), indent=1, allow_nan=False)
                write_atomically(options.out, text + "\n")
    print(
        f"\n{title}; median of {options.repeats}; ratios of the time to first token / of attention"
    )
    print(table(found))
    if options.out:
        print(f"written: {options.out}")
    return 1 if bench.failed else 0


if __name__ == "__main__":
    run(main)
