"""Work that the garbage collector does not disturb."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from trt_core.temporary import undone


@contextlib.contextmanager
def paused_collection() -> Iterator[None]:
    """Keeps the garbage collector from running.

    A generator under `torch.no_grad` that was left half-way switches gradients when it is collected. A trace before
    dispatch records that as a step of its own, and fails where it comes while the trace is written down. And where much
    is made that stays, as in a capture or a conversion, going through all of it again and again finds nothing.
    """
    with undone(gc.enable if gc.isenabled() else lambda: None):
        gc.disable()
        yield
