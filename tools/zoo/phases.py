"""Where the seconds of a case go: a timer looks now and then at which part of PyTorch or of this project is running."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Final

_EVERY_SECONDS: Final = 0.25

_OWNERS: Final = (
    ("/torch/_dynamo/convert_frame.py", "Dynamo"),
    ("/torch/_dynamo/guards.py", "Dynamo's guards"),
    ("/torch/_functorch/", "AOTAutograd"),
    ("/torch/_inductor/", "Inductor"),
    ("/torch/export/", "export"),
    ("/trt_frontends/", "frontend"),
    ("/trt_lowering/", "lowering"),
    ("/trt_partition/", "partitioning"),
    ("/trt_converters/", "conversion"),
    ("/trt_runtime/", "calls"),
    ("/trt_portable/", "build"),
)
"""What the file of a frame says about who is at work; the innermost frame that says anything is right."""

_WITHIN: Final = frozenset({"build", "calls"})
"""Owners that what they call belongs to: Inductor, asked for a kernel, is part of the build."""


def owner_of(frame: FrameType | None) -> str:
    """Returns who is at work in a frame, the innermost one of a stack; "eager" where nobody compiles anything."""
    files = []
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    owner = "eager"
    for file in reversed(files):
        found = next((name for fragment, name in _OWNERS if fragment in file), None)
        if found is not None:
            owner = found
            if owner in _WITHIN:
                break
    return owner


@contextmanager
def watched(told: Callable[[Mapping[str, float]], None]) -> Iterator[Mapping[str, float]]:
    """Counts the seconds of each owner while its body runs, which must be in the main thread.

    Time in which Python waits for a library counts when it comes back.

    Args:
        told: Called with the seconds so far each time they are counted.

    Yields:
        Wall-clock seconds by owner, filled as time goes by.
    """
    seconds: dict[str, float] = {}
    last = time.monotonic()

    def look(_: int, frame: FrameType | None) -> None:
        nonlocal last
        now = time.monotonic()
        owner = owner_of(frame)
        seconds[owner] = seconds.get(owner, 0.0) + now - last
        last = now
        told(dict(seconds))

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _EVERY_SECONDS, _EVERY_SECONDS)
    try:
        yield seconds
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def described(phases: Mapping[str, float], limit: int = 3) -> str:
    """Returns the largest shares as text, such as `120 s in AOTAutograd, 20 s in Dynamo`."""
    largest = sorted(phases.items(), key=lambda item: -item[1])[:limit]
    return ", ".join(f"{seconds:.0f} s in {owner}" for owner, seconds in largest if seconds >= 1)
