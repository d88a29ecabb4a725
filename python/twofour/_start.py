"""Ctrl-C while the imports of a command run; imported before torch, which takes seconds to import.

``python -m twofour.demo`` imports the package before a line of the command itself runs, so the
command cannot catch this.
"""

import os
import signal
import sys
from types import FrameType

#: Exit code of an interrupted command, as a shell reports SIGINT.
INTERRUPTED = 130


def _command() -> str | None:
    """The command this process is about to run, as in ``python -m twofour.demo``."""
    if sys.argv[:1] != ["-m"]:  # what stands there until the module to run has been found
        return None
    names = (argument.removeprefix("-m") for argument in sys.orig_argv[1:])
    return next((name for name in names if name.startswith("twofour.")), None)


def line(prog: str) -> str:
    """What an interrupted command says."""
    return f"\n{prog}: interrupted, nothing was written\n"


def _stop(_number: int, _frame: FrameType | None) -> None:
    # Not an exception, which would pass through half-done imports: nothing needs tidying up yet.
    os.write(2, line(_COMMAND or "twofour").encode())
    os._exit(INTERRUPTED)


def hand_over() -> None:
    """From here on the command handles KeyboardInterrupt itself."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_COMMAND = _command()
if _COMMAND and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _stop)
