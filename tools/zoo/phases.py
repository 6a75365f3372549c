"""Where the seconds of a case go: a thread looks now and then at which part of PyTorch or of this project runs."""

from __future__ import annotations

import sys
import threading
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
    """Counts the seconds of each owner while its body runs.

    Time in which Python waits for a library that lets nobody else run counts when it comes back.

    Args:
        told: Called with the seconds so far each time they are counted, in a thread of its own.

    Yields:
        Wall-clock seconds by owner, filled as time goes by.
    """
    seconds: dict[str, float] = {}
    ended = threading.Event()
    thread = threading.get_ident()

    def look() -> None:
        last = time.monotonic()
        while not ended.wait(_EVERY_SECONDS):
            owner = owner_of(sys._current_frames().get(thread))
            now = time.monotonic()
            seconds[owner] = seconds.get(owner, 0.0) + now - last
            last = now
            told(dict(seconds))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield seconds
    finally:
        ended.set()
        looking.join()


def described(phases: Mapping[str, float], limit: int = 3) -> str:
    """Returns the largest shares as text, such as `120 s in AOTAutograd, 20 s in Dynamo`."""
    largest = sorted(phases.items(), key=lambda item: -item[1])[:limit]
    return ", ".join(f"{seconds:.0f} s in {owner}" for owner, seconds in largest if seconds >= 1)
