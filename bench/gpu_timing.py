"""Timing on a GPU: burst, sustained, a cold L2 and CUDA graphs.

- **burst**: single launches, each after a pause, contenders in turn; the card is at its full clock.
- **sustained**: back to back for --seconds, the last third; the card is at its power limit.

Figures of one regime say nothing about the other. Every launch reads another copy of the inputs
than the one before it, of so many that all of them are more than twice the L2. In a burst the GPU
first spins until the launch has been queued, so that Python's part of a launch is not in the time;
back to back it is hidden as long as it is shorter than the kernel. Where it may not be
(`needs_graph`), all calls are captured in CUDA graphs; a call that cannot be captured runs as it
is, and its row says so.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

#: A kernel shorter than this many times the host's part of a launch is captured in a graph.
GRAPH_MARGIN = 4.0
#: The last third of a sustained run is timed in this many parts, for the extremes.
PARTS = 8
_SPIN_HZ = 2e9  # at least the clock, so that a spin lasts at least as long as asked
_SPIN_MS, _MAX_SPIN_MS = 1.0, 200.0
_SETTLE_S = 0.25  # between sustained runs, so that each starts from a card as cool as the last


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call in one regime."""

    median: float
    best: float
    worst: float
    clock_mhz: int | None = None
    power_w: int | None = None


@dataclass
class Launch:
    """One contender on all copies of the inputs; `at(i)` launches it on copy i."""

    at: Callable[[int], Any]
    copies: int
    kind: str  # "graph" or "raw"


class Rotation:
    """Copy numbers in turn, shared by all contenders: the last copy read is never the next."""

    def __init__(self, copies: int) -> None:
        self.copies = copies
        self._next = 0

    def next(self) -> int:
        self._next = (self._next + 1) % self.copies
        return self._next


def copies_needed(bytes_of_inputs: int, l2_bytes: int) -> int:
    """So many copies that they are more than twice the L2 together; at least two."""
    return max(2, 2 * l2_bytes // bytes_of_inputs + 1)


def needs_graph(device_ms: float, host_ms: float) -> bool:
    return device_ms < GRAPH_MARGIN * host_ms


class Gauge:
    """SM clock in MHz and power in W, through NVML where its Python package is, or nvidia-smi."""

    def __init__(self, device: torch.device) -> None:
        self._uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        self._nvml = None
        with contextlib.suppress(Exception):  # no package, or no library: nvidia-smi then
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(self._uuid)
            self._nvml = pynvml

    def query(self, fields: str) -> list[str]:
        """What nvidia-smi says; empty where it is missing."""
        command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run([*command, "-i", self._uuid], capture_output=True, text=True)
        except FileNotFoundError:
            return []
        return [part.strip() for part in done.stdout.split(",")] if done.returncode == 0 else []

    def read(self) -> tuple[int, int] | None:
        if self._nvml is None:
            found = self.query("clocks.sm,power.draw.instant")
            with contextlib.suppress(ValueError):
                return (int(found[0]), round(float(found[1]))) if len(found) == 2 else None
            return None
        clock = self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_SM)
        # The plain reading is the mean of the last second, longer than a run.
        field = self._nvml.NVML_FI_DEV_POWER_INSTANT
        value = self._nvml.nvmlDeviceGetFieldValues(self._handle, [field])[0]
        return clock, round(value.value.uiVal / 1000)


def events(count: int) -> list[torch.cuda.Event]:
    return [torch.cuda.Event(enable_timing=True) for _ in range(count)]


def estimate(call: Callable[[int], Any], copies: int) -> tuple[float, float]:
    """(device, host) milliseconds of a call after a warm-up, roughly."""
    for copy in range(min(copies, 3)):
        call(copy)
    torch.cuda.synchronize()
    host = []
    start, end = events(2)
    start.record()
    for copy in range(3):
        begin = time.perf_counter()
        call(copy % copies)
        host.append(1e3 * (time.perf_counter() - begin))
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 3, min(host)


def captured(call: Callable[[int], Any], copies: int) -> Launch:
    """The call as CUDA graphs, one a copy.

    Raises:
        RuntimeError: something in the call cannot be captured.
    """
    graphs = []
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call(0)  # on the stream of the capture, which may want a workspace of its own
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    for copy in range(copies):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            call(copy)
        graphs.append(graph)
    launch = Launch(lambda copy: graphs[copy].replay(), copies, "graph")
    for copy in range(copies):
        launch.at(copy)
    torch.cuda.synchronize()
    return launch


def single(launch: Launch, copy: int, spin_ms: float) -> float | None:
    """Milliseconds of a launch that was queued while the GPU was spinning; None if it came late."""
    start, end = events(2)
    torch.cuda._sleep(int(spin_ms / 1e3 * _SPIN_HZ))
    start.record()
    launch.at(copy)
    end.record()
    late = start.query()
    end.synchronize()
    return None if late else start.elapsed_time(end)


def burst(
    launches: dict[str, Launch], rotation: Rotation, repeats: int, pause_s: float
) -> dict[str, Timing]:
    """Single launches in turn, each after a pause."""
    times: dict[str, list[float]] = {name: [] for name in launches}
    spin_ms = _SPIN_MS
    for _ in range(repeats):
        for name, launch in launches.items():
            time.sleep(pause_s)
            while (found := single(launch, rotation.next(), spin_ms)) is None:
                if spin_ms > _MAX_SPIN_MS:
                    raise RuntimeError(f"{name}: a launch waits for the GPU, so has no burst time")
                spin_ms *= 2
            times[name].append(found)
    return {
        name: Timing(statistics.median(found), min(found), max(found))
        for name, found in times.items()
    }


def sustained(
    launch: Launch, rotation: Rotation, call_ms: float, seconds: float, gauge: Gauge
) -> Timing:
    """Back to back; the last third, with the clock and power during it.

    Args:
        call_ms: of a call in a burst, so that the run lasts at least `seconds`.
    """
    per_part = max(1, round(1e3 * seconds / call_ms / (3 * PARTS)))
    marks = events(PARTS + 1)
    time.sleep(_SETTLE_S)
    for _ in range(2 * PARTS * per_part):
        launch.at(rotation.next())
    marks[0].record()
    for mark in marks[1:]:
        for _ in range(per_part):
            launch.at(rotation.next())
        mark.record()
    readings = []
    while not marks[-1].query():
        reading = gauge.read()
        if reading and marks[0].query():
            readings.append(reading)
        time.sleep(0.01)
    parts = [a.elapsed_time(b) / per_part for a, b in itertools.pairwise(marks)]
    clock, power = (
        (round(statistics.median(column)) for column in zip(*readings, strict=True))
        if readings
        else (None, None)
    )
    return Timing(marks[0].elapsed_time(marks[-1]) / (PARTS * per_part), min(parts), max(parts),
                  clock, power)  # fmt: skip


def machine_text(device: torch.device, gauge: Gauge) -> str:
    properties = torch.cuda.get_device_properties(device)
    driver = gauge.query("driver_version,power.limit,clocks.max.sm")
    said = f", driver {driver[0]}, limits {driver[1]} W and {driver[2]} MHz" if driver else ""
    return (
        f"{properties.name}, {properties.multi_processor_count} SMs, "
        f"L2 {properties.L2_cache_size >> 20} MiB{said}; torch {torch.__version__}, "
        f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    )
