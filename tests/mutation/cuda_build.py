#!/usr/bin/env python3
"""Builds the Hopper kernel with each fault of cuda_faults.py; no GPU is needed.

The folder that results can be copied to a machine with a GPU, where its run.py says which faults
are noticed. It holds one command line program, and for every fault a small library with the kernel
of one mode (fp16, head_dim 128). The working tree is never written to. Exit code 1 when a string
to replace no longer occurs exactly once, or a fault does not compile.

    python3 tests/mutation/cuda_build.py --build build/release --out faults [--only TEXT] [--jobs N]
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from cuda_faults import FAULTS, Edit, Fault

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
UNIT = "src/cuda/sm90/attention.cu"  # whose flags a library takes
ROW_COUNT = 64
ROWS_OF_LIBRARY = 8  # the first ones: fp16, head_dim 128
ROWS = {"dual": 3, "refined": 4, "int8": 2}  # the row of a mode
# Several items a multiprocessor, long rings, every kind of block, values no row may see. The text
# after `mode=` and the shape.
STRESS = """\
batch=8 heads=20/5 len=192x400 input=peaky
heads=4/2 len=400x900 causal=bottom_right input=peaky
heads=2/1 len=100x4000 input=peaky
len=300x800 window=250:40 input=random,poison
packed=100x300+20x640+65x257+0x9+7x0 causal=bottom_right
len=70x800 input=huge,poison,spread causal=bottom_right,top_left
"""


def run(command: list, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


def edited(edits: tuple[Edit, ...], root: Path = ROOT) -> dict[str, str]:
    """The changed text of every file that the edits touch."""
    texts: dict[str, str] = {}
    for edit in edits:
        text = texts.get(edit.file) or (root / edit.file).read_text()
        found = text.count(edit.old)
        if found != 1:
            raise ValueError(f"{edit.file}: expected once, found {found} times: {edit.old!r}")
        texts[edit.file] = text.replace(edit.old, edit.new)
    return texts


def stubs(rows: Iterable[int]) -> str:
    """C++: rows that no case reaches."""
    return "\n".join(
        f"template <> Compiled compiled_row<{row}>() {{ return {{}}; }}" for row in rows
    )


def source_of(mode: str) -> str:
    row = ROWS[mode]
    return f"""\
#include "cuda/sm90/attention.cuh"
#include "cuda/sm90/kernels.h"
namespace twofour::cuda::sm90 {{
static_assert(kRowCount == {ROW_COUNT} && kRows[{row}].dtype == DType::kF16);
static_assert(kRows[{row}].head_dim == 128 && !kRows[{row}].drop && !kRows[{row}].trace);
static_assert(kRows[{row}].refine == {str(mode == "refined").lower()});
static_assert(kRows[{row}].qk == QKProduct::{"kInt8" if mode == "int8" else "kNm24"});
template <> Compiled compiled_row<{row}>() {{
  const auto* kernel = reinterpret_cast<const void*>(&attention_kernel<{row}>);
  return {{kernel, Shared<kRows[{row}]>::kAllocated}};
}}
{stubs(i for i in range(ROWS_OF_LIBRARY) if i != row)}
}}  // namespace twofour::cuda::sm90
"""


def compile_flags(build: Path) -> list[str]:
    """Of the kernel file in `build`, without source, output and hidden symbols."""
    entries = json.loads((build / "compile_commands.json").read_text())
    command = next((e["command"] for e in entries if e["file"] == str(ROOT / UNIT)), None)
    if command is None:
        sys.exit(f"{build}: expected a build with CUDA kernels")
    kept = []
    parts = iter(shlex.split(command))
    for part in parts:
        if part == "-o":
            next(parts)
        elif part not in ("-c", str(ROOT / UNIT)) and "-fvisibility" not in part:
            kept.append(part)
    return kept


def build_fault(fault: Fault, flags: list[str], out: Path) -> tuple[str, list[str]]:
    """What went wrong, "" for nothing, and the numbers of ptxas warnings."""
    try:
        texts = edited(fault.edits)
    except ValueError as error:
        return str(error), []
    folder = out / fault.name
    overlay = out / "work" / fault.name
    for file, text in texts.items():
        (overlay / file).parent.mkdir(parents=True, exist_ok=True)
        (overlay / file).write_text(text)
    folder.mkdir(parents=True, exist_ok=True)
    overlay.mkdir(parents=True, exist_ok=True)
    (overlay / "unit.cu").write_text(source_of(fault.mode))
    compiler, rest = flags[0], flags[1:]
    seen_first = ["-I", overlay / "src"]  # before the tree's own files
    done = run([compiler, *seen_first, *rest, "-c", overlay / "unit.cu", "-o", overlay / "unit.o"])
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if "error" in line] or ["no reason"]
        return f"does not compile: {lines[0]}", []
    library = folder / "libplanted.so"
    options = ["-shared", "-cudart", "shared", "-Xlinker", "-soname=libplanted.so"]
    linked = run([compiler, *options, overlay / "unit.o", "-o", library])
    if linked.returncode != 0:
        return f"does not link: {linked.stdout.strip().splitlines()[-1]}", []
    run(["strip", library])
    return "", sorted(set(re.findall(r"\bC751[0-8]\b", done.stdout)))


def code_of(library: Path) -> str:
    """A hash of the machine code for the GPU."""
    with tempfile.NamedTemporaryFile() as code:
        command = ["objcopy", "-O", "binary", "--only-section=.nv_fatbin", library, code.name]
        if run(command).returncode != 0:
            sys.exit(f"{library}: expected machine code of a GPU")
        return hashlib.sha256(Path(code.name).read_bytes()).hexdigest()


def mark_unchanged(listed: list[dict], out: Path) -> None:
    """`same_as`: the fault before it, most often the control, whose machine code it shares."""
    seen: dict[str, str] = {}
    for fault in listed:
        code = code_of(out / fault["name"] / "libplanted.so")
        fault["same_as"] = seen.setdefault(code, fault["name"])
        if fault["same_as"] == fault["name"]:
            fault["same_as"] = ""


def build_program(build: Path, toolkit: Path, out: Path) -> None:
    """The command line, whose kernels for fp16 and head_dim 128 come from libplanted.so."""
    objects = sorted((build / "tools/CMakeFiles/twofour_cli.dir/twofour").glob("*.o"))
    library = build / "libtwofour.a"
    if not objects or not library.exists():
        sys.exit(f"{build}: expected twofour_cli to be built there")
    headers = max(p.stat().st_mtime for p in (ROOT / "src/cuda").rglob("*.h"))
    if library.stat().st_mtime < headers:
        print(f"note: {library} is older than a header of src/cuda; the control tells", flush=True)
    stub = out / "work" / "others.cc"
    others = stubs(range(ROWS_OF_LIBRARY, ROW_COUNT))
    stub.write_text(
        '#include "cuda/sm90/kernels.h"\n'
        f"namespace twofour::cuda::sm90 {{\n{others}\n}}  // namespace twofour::cuda::sm90\n"
    )
    include = [f"-I{ROOT}/include", f"-I{ROOT}/src", f"-I{toolkit}/include"]
    runtime = toolkit / "lib64" / "libcudart.so"
    for folder in ("bin", "lib"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    control = out / FAULTS[0].name
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", *include, *objects, stub]
    command += ["-Wl,--no-as-needed", f"-L{control}", "-lplanted", "-Wl,--as-needed", library]
    command += [runtime, "-lfmt", "-fopenmp", "-ldl", "-lrt", "-lpthread"]
    done = run([*command, "-o", out / "bin" / "twofour"])
    if done.returncode != 0:
        sys.exit(f"the program does not link:\n{done.stdout}")
    run(["strip", out / "bin" / "twofour"])
    shutil.copy(runtime.resolve(), out / "lib")
    ldd = run(["ldd", out / "bin" / "twofour"]).stdout
    for path in re.findall(r"=> (\S*libfmt\S*)", ldd):
        shutil.copy(Path(path).resolve(), out / "lib" / Path(path).name)


def toolkit_of(compiler: str) -> Path:
    """The folder of the CUDA toolkit, as the compiler itself says."""
    said = run([compiler, "--dryrun", "-x", "cu", "-c", "/dev/null", "-o", "/dev/null"]).stdout
    top = re.search(r"^#\$ TOP=(\S+)", said, re.MULTILINE)
    return Path(top.group(1)) if top else Path(shutil.which(compiler) or compiler).parents[1]


def write_cases(out: Path) -> None:
    (out / "cases").mkdir(exist_ok=True)
    for mode in ROWS:
        lines = [f"mode={mode} dtype=fp16 dim=128 {line}" for line in STRESS.splitlines()]
        (out / "cases" / f"{mode}.cases").write_text("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True, help="a CMake build with CUDA")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--only", default="", help="faults whose name holds TEXT, and the controls")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    out, build = options.out.resolve(), options.build.resolve()
    faults = [f for f in FAULTS if options.only in f.name or f.expect == "passes"]
    start = time.monotonic()
    shutil.rmtree(out / "work", ignore_errors=True)
    (out / "work").mkdir(parents=True)
    flags = compile_flags(build)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lambda f: build_fault(f, flags, out), faults))
    listed, bad = [], 0
    for fault, (wrong, warnings) in zip(faults, results, strict=True):
        bad += bool(wrong)
        if wrong:
            print(f"{fault.name}: {wrong}")
            continue
        listed.append({key: getattr(fault, key) for key in ("name", "what", "mode", "expect")})
        listed[-1] |= {"why": fault.why, "ptxas": warnings}
    if FAULTS[0].name in (f["name"] for f in listed):
        build_program(build, toolkit_of(flags[0]), out)
    write_cases(out)
    mark_unchanged(listed, out)
    (out / "faults.json").write_text(json.dumps(listed, indent=1) + "\n")
    shutil.copy(HERE / "cuda_run.py", out / "run.py")
    shutil.rmtree(out / "work")
    size = sum(p.stat().st_size for p in out.rglob("*") if p.is_file()) / 2**20
    seconds = time.monotonic() - start
    print(f"{len(listed)} of {len(faults)} built in {seconds:.0f} s, {size:.0f} MiB in {out}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
