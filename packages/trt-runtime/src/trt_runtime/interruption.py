"""What Ctrl-C does while a command line imports.

Python imports a package before it runs it, and this one imports PyTorch, which takes seconds; commands import more.
Where an import is interrupted, libraries go on with what they have by then, and the command with them: to its end, or
to an error that tells nothing.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Final

INTERRUPTED: Final = 130
"""What shells say of a process that Ctrl-C has ended."""


def end_imports_at_interrupts() -> None:
    """Has an interrupt end this process at once while it imports; else it is a `KeyboardInterrupt`, as ever.

    For processes that are one command. Where somebody else handles interrupts, that stays.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)


def _interrupted(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            sys.stderr.write("interrupted\n")
            sys.stderr.flush()
            os._exit(INTERRUPTED)  # nothing that was imported has anything to finish
        frame = frame.f_back
    raise KeyboardInterrupt


_given: Final = sys.orig_argv
if "-m" in _given and _given[_given.index("-m") + 1 :][:1] == [__name__.partition(".")[0]]:
    end_imports_at_interrupts()
