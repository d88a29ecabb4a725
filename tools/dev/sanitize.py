"""./dev sanitize: the GPU kernels under compute-sanitizer.

memcheck, racecheck and synccheck watch `twofour verify` over cases/cuda/sanitize.cases, which must
also find every result right. initcheck watches calls through torch instead, whose outputs and
workspace start out unwritten: verify fills them. racecheck sees no writes of the TMA unit, so a
missing barrier there is for tests/mutation/cuda_build.py. Needs a GPU and compute-sanitizer.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "cases" / "cuda" / "sanitize.cases"
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
FOUND = 99  # the exit code that compute-sanitizer is asked for

# Runs in the watched process. The caching allocator would hand out memory written before.
CALLS = """
import warnings, torch, twofour
warnings.simplefilter("ignore")
modes = [*twofour.MODES, "exact/pair/s1/d6", "int8/pair/s1/d6", "nm24/pair/s1/l1/r2/d6"]
for dtype in (torch.float16, torch.bfloat16):
    for d in (40, 64, 128):
        for mode in modes:
            q = torch.randn(1, 100, 2, d, device="cuda", dtype=dtype)
            k, v = (torch.randn(1, 1000, 1, d, device="cuda", dtype=dtype) for _ in range(2))
            out = twofour.attention(q, k, v, mode=mode, causal=True, return_lse=True)
            cu_q = torch.tensor([0, 30, 30, 100], dtype=torch.int32, device="cuda")
            cu_k = torch.tensor([0, 7, 307, 1000], dtype=torch.int32, device="cuda")
            options = dict(mode=mode, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, return_lse=True)
            out += twofour.attention(q[0], k[0], v[0], **options)
            # Reading them back is a read that must find them written.
            assert all(torch.isfinite(t.clone()).all() for t in out), (dtype, d, mode)
print("calls done")
"""


def find_sanitizer(given: str) -> str:
    found = shutil.which(given or "compute-sanitizer")
    if not found and not given:
        beside = Path("/usr/local/cuda/bin/compute-sanitizer")
        found = str(beside) if beside.exists() else None
    if not found:
        sys.exit(f"sanitize: expected {given or 'compute-sanitizer'} (CUDA toolkit), found none")
    return found


def watch(sanitizer: str, tool: str, program: Path, seconds: float) -> tuple[str, str]:
    """(verdict, all that was printed); the verdict is "clean" or what is wrong."""
    command = [sanitizer, "--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "20"]
    environment = dict(os.environ)
    if tool == "initcheck":
        environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        command += [sys.executable, "-c", CALLS]
        done = "calls done"
    else:
        command += [str(program), "verify", "--device", "cuda", "--cases", str(CASES)]
        done = " 0 failed, "
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        return f"not done after {seconds:.0f} s", said
    if "Device not supported" in said:
        return "compute-sanitizer does not support this machine", said
    summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", said)
    if process.returncode == FOUND or any(not s.startswith("0 ") for s in summary):
        return summary[-1] if summary else "errors", said
    if process.returncode != 0 or done not in said:
        return f"the program failed with exit code {process.returncode}", said
    if not summary:
        return "compute-sanitizer gave no summary", said
    return "clean", said


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev sanitize", description=__doc__)
    parser.add_argument("tools", nargs="*", metavar="TOOL", help=f"of {', '.join(TOOLS)}; all")
    program = ROOT / "build" / "release" / "tools" / "twofour"
    parser.add_argument("--program", type=Path, default=program, help="the command line to watch")
    parser.add_argument("--sanitizer", default="", help="compute-sanitizer, by path")
    parser.add_argument("--seconds", type=float, default=240, help="for each tool (default 240)")
    parser.add_argument("--logs", type=Path, default=ROOT / "build" / "log", help="for all output")
    parser.add_argument("--parse-only", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for tool in options.tools:
        if tool not in TOOLS:
            parser.error(f"expected {', '.join(TOOLS)}, got {tool!r}")
    sanitizer = find_sanitizer(options.sanitizer)
    if options.parse_only:  # ./dev asks before it sets up and builds
        return 0
    if not options.program.exists():
        sys.exit(f"sanitize: expected the command line at {options.program}; build it first")
    options.logs.mkdir(parents=True, exist_ok=True)
    bad = 0
    for tool in options.tools or TOOLS:
        start = time.monotonic()
        verdict, said = watch(sanitizer, tool, options.program, options.seconds)
        log = options.logs / f"sanitize-{tool}.log"
        log.write_text(said)
        print(f"{tool:10} {verdict} ({time.monotonic() - start:.0f} s)", flush=True)
        if verdict != "clean":
            bad += 1
            print("\n".join(said.splitlines()[:60]))
            print(f"... all of it in {log}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
