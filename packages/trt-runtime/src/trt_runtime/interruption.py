"""What Ctrl-C says while `python -m trt_runtime` is imported, when no command can catch it yet.

Python imports a package before it runs it, and this one imports PyTorch, which takes seconds.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Final

INTERRUPTED: Final = 130
"""What shells say of a process that Ctrl-C has ended."""


def _hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    sys.stderr.write("interrupted\n")
    sys.stderr.flush()
    os._exit(INTERRUPTED)  # else Python ends by the signal; nothing that was imported has anything to finish


_given: Final = sys.orig_argv
if "-m" in _given and _given[_given.index("-m") + 1 :][:1] == [__name__.partition(".")[0]]:
    sys.excepthook = _hook
