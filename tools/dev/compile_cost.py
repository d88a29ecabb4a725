"""Compiler launcher: runs the compile command and records what it cost beside the object.

`./dev build` hands it to CMake; `./dev check` holds the figures against the budgets. Processor time
is recorded, not elapsed time, so that a busy machine does not change the verdict. Of CUDA files it
also keeps what ptxas says of each kernel, which the same check reads.
"""

import json
import os
import resource
import subprocess
import sys


def is_of_ptxas(line: str) -> bool:
    """A remark of ptxas -v, or the line of figures that follows one."""
    return line.startswith("ptxas info") or "bytes stack frame" in line


def run(command: list[str]) -> int:
    if os.path.basename(command[0]) != "nvcc" or "-c" not in command or "-o" not in command:
        return subprocess.call(command)
    result = subprocess.run([*command, "-Xptxas=-v"], stderr=subprocess.PIPE, text=True)
    lines = result.stderr.splitlines(keepends=True)
    sys.stderr.writelines(line for line in lines if not is_of_ptxas(line))
    with open(command[command.index("-o") + 1] + ".ptxas", "w") as file:
        file.writelines(line for line in lines if is_of_ptxas(line))
    return result.returncode


def main(command: list[str]) -> int:
    code = run(command)
    if code == 0 and "-c" in command and "-o" in command:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        record = {
            "source": os.path.abspath(command[command.index("-c") + 1]),
            "seconds": round(usage.ru_utime + usage.ru_stime, 2),
            "mib": usage.ru_maxrss // 1024,
        }
        with open(command[command.index("-o") + 1] + ".cost", "w") as file:
            json.dump(record, file)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
