"""Compiler launcher: runs the compile command and records what it cost beside the object.

`./dev build` hands it to CMake; `./dev check` holds the figures against the budgets. Processor time
is recorded, not elapsed time, so that a busy machine does not change the verdict.
"""

import json
import os
import resource
import subprocess
import sys


def main(command: list[str]) -> int:
    code = subprocess.call(command)
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
