#!/usr/bin/env python3
"""Runs every planted fault that cuda_build.py has built, on this machine's GPU.

One line each: noticed (a wrong result or an error), hangs (noticed as well), NOT noticed, or for a
control passes. Exit code 1 when a control does not pass or a fault that must be noticed is not.

    python3 FOLDER/run.py [--only TEXT] [--seconds N] [--jobs N]
"""

import argparse
import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def verify(folder: Path, fault: dict, device: str, seconds: float) -> tuple[str, str]:
    """(outcome, detail): passes, noticed or hangs."""
    libraries = os.pathsep.join(
        [str(folder / fault["name"]), str(folder / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    )
    command = [folder / "bin" / "twofour", "verify", "--json", "--device", device]
    command += ["--filter", "attention.fp16.sm90.d128."]
    command += ["--cases", folder / "cases" / f"{fault['mode']}.cases"]
    process = subprocess.Popen(
        [str(part) for part in command],
        env={**os.environ, "LD_LIBRARY_PATH": libraries},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "hangs", f"stopped after {seconds:.0f} s"
    try:
        document = json.loads(out)
    except ValueError:
        document = {}
    if document.get("ok") and process.returncode == 0:
        return "passes", f"{sum(row['passed'] for row in document['rows'])} checks"
    failures = document.get("failures", [])
    if failures:
        return "noticed", f"{len(failures)} failures, first: {failures[0]['message']}"
    said = errors.strip().splitlines() or [f"exit code {process.returncode}"]
    # Not run at all (no GPU, a missing library) is no notice of a fault.
    if process.returncode >= 0:
        return "did not run", said[-1]
    return "noticed", f"signal {-process.returncode}: {said[-1]}"


def judge(fault: dict, outcome: str) -> tuple[str, bool]:
    """What to print, and whether it is as it must be."""
    if outcome == "did not run":
        return outcome, False
    if fault["expect"] == "passes":
        return ("passes", True) if outcome == "passes" else (f"FAILS ({outcome})", False)
    if outcome == "passes":
        maybe = fault["expect"] == "maybe"
        return ("not observable here" if maybe else "NOT noticed"), maybe
    return outcome, True


def report(fault: dict, outcome: str, detail: str, seconds: float) -> bool:
    """Prints the line of a fault; whether it is as it must be."""
    text, good = judge(fault, outcome)
    if outcome == "passes" and fault["why"]:
        detail += f": {fault['why']}"
    if fault["ptxas"]:
        detail += f" (ptxas: {', '.join(fault['ptxas'])})"
    line = f"{fault['name']:24} {text:19} {seconds:5.1f} s  {fault['what']}; {detail}"
    print(line, flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="faults whose name holds TEXT, and the controls")
    parser.add_argument("--seconds", type=float, default=20, help="after which a run hangs")
    parser.add_argument("--jobs", type=int, default=1, help="faults at once, after the controls")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    faults = json.loads((HERE / "faults.json").read_text())
    controls = [f for f in faults if f["expect"] == "passes"]
    faults = [f for f in faults if options.only in f["name"] and f not in controls]
    start = time.monotonic()

    unchanged = {control["name"] for control in controls}

    def attempt(fault: dict) -> tuple[str, str, float]:
        if fault["same_as"] in unchanged:
            return "passes", f"the compiler makes the code of {fault['same_as']} of it", 0
        began = time.monotonic()
        return *verify(HERE, fault, options.device, options.seconds), time.monotonic() - began

    bad = 0
    for control in controls:
        good = report(control, *attempt(control))
        bad += not good
        if not good and control["name"] == "control":
            print("the unchanged kernel does not pass: nothing below would mean anything")
            return 1
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for fault, result in zip(faults, pool.map(attempt, faults), strict=True):
            bad += not report(fault, *result)
    total = len(controls) + len(faults)
    print(f"{total - bad} of {total} as they must be, {time.monotonic() - start:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
