"""The execution contexts of one engine and profile: few, shared by all calls, never used by two of them at once.

On CUDA a call returns while its work still runs, so an idle context may be busy on the device: contexts know their
stream, and wait for it when they go to another one (see `trt_runtime.engine_context`).
"""

from __future__ import annotations

import contextlib
import contextvars
from typing import Final

from trt_core.temporary import with_value
from trt_runtime.engine_context import EngineContext

MOST_IDLE: Final = 8
"""Contexts that an engine keeps while nobody uses them."""


Captured = list[tuple["ContextPool", EngineContext]]
"""Contexts that one CUDA graph holds, with the pools that they came from."""

_captured: contextvars.ContextVar[Captured | None] = contextvars.ContextVar("captured", default=None)


class ContextPool:
    """Lends contexts to calls, from any number of threads.

    A call gets the context that last ran on its stream, else makes one while there are few, else gets the one that has
    been idle for longest. Where all are busy it makes one beyond that number, which is given up afterwards.

    There is no lock, so that a process may fork at any time: contexts change hands by single operations on a list.

    Args:
        profile: The optimization profile that its contexts use.

    Attributes:
        profile: As given.
        most_idle: Contexts that it keeps while nobody uses them. Each keeps the memory that it computes in.
    """

    def __init__(self, profile: int = 0) -> None:
        self.profile = profile
        self.most_idle = MOST_IDLE
        self._idle: list[EngineContext] = []
        self._kept_for_graphs: list[EngineContext] = []

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
        if len(self._idle) < self.most_idle:
            self._idle.append(context)
        else:
            context.wait()  # or its memory would be freed under work that still runs

    def clear(self) -> None:
        """Gives up idle contexts, once the device is done with what they ran."""
        while self._idle:
            try:
                context = self._idle.pop()
            except IndexError:  # another thread took it
                return
            context.wait()

    def forget_ahead(self) -> None:
        """Has idle contexts free what they allocated for the next call."""
        for context in tuple(self._idle):
            context.forget_ahead()

    def take_for_capture(self, stream: int) -> EngineContext | None:
        """Lends a context for a call that is being captured; calls of one graph share theirs."""
        for pool, context in _captured.get() or ():
            if pool is self:
                return context
        return self.take(stream)

    def keep_for_graph(self, context: EngineContext) -> None:
        """Takes back a context that a CUDA graph has captured: its memory belongs to the graph from now on."""
        held = _captured.get()
        if held is None:
            self._kept_for_graphs.append(context)  # nobody says when that graph ends
        elif all(context is not other for _, other in held):
            held.append((self, context))

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


def captured_contexts() -> contextlib.AbstractContextManager[Captured]:
    """Collects the contexts that are captured inside the block; `give_back_captured` ends their service."""
    return with_value(_captured, [])


def give_back_captured(held: Captured) -> None:
    """Returns the contexts of a graph that will not run again, and is done, to their pools."""
    while held:
        pool, context = held.pop()
        pool.give_back(context)
