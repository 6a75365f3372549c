"""The execution contexts of one engine: few, shared by all calls, and never used by two of them at once.

On CUDA a call returns while its work still runs, so an idle context may be busy on the device: contexts know their
stream, and wait for it when they go to another one (see `trt_runtime.context`).
"""

from __future__ import annotations

from typing import Final

from trt_runtime.context import EngineContext

MOST_IDLE: Final = 8
"""Contexts that an engine keeps while nobody uses them."""


class ContextPool:
    """Lends contexts to calls, from any number of threads.

    A call gets the context that last ran on its stream, else makes one while there are few, else gets the one that has
    been idle for longest. Where all are busy it makes one beyond that number, which is given up afterwards.

    There is no lock, so that a process may fork at any time: contexts change hands by single operations on a list.
    """

    def __init__(self) -> None:
        self._idle: list[EngineContext] = []
        self._captured: list[EngineContext] = []

    def __len__(self) -> int:
        return len(self._idle)

    def take(self, stream: int) -> EngineContext | None:
        """Lends a context for a call on a stream; None where the call shall make one.

        Args:
            stream: Handle of the CUDA stream; 0 on the CPU.
        """
        try:
            context = self._idle.pop()
        except IndexError:
            return None
        return context if context.stream == stream else self._take_elsewhere(context, stream)

    def give_back(self, context: EngineContext) -> None:
        """Takes a context back."""
        if len(self._idle) < MOST_IDLE:
            self._idle.append(context)
        else:
            context.wait()  # or its memory would be freed under work that still runs

    def retire(self, context: EngineContext) -> None:
        """Takes back a context that a CUDA graph has captured: its memory belongs to the graph from now on."""
        self._captured.append(context)

    def _take_elsewhere(self, last: EngineContext, stream: int) -> EngineContext | None:
        """Looks further down; the last one ran on another stream."""
        others = [last]
        found: EngineContext | None = None
        try:
            while (context := self._idle.pop()).stream != stream:
                others.append(context)
            found = context
        except IndexError:
            if len(others) >= MOST_IDLE:
                found = others.pop()
        self._idle.extend(reversed(others))
        return found
