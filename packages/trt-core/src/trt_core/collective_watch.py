"""A time limit for collectives in CUDA graphs, which PyTorch does not watch over.

PyTorch's watchdog ends a process whose collective has not ended within its group's time limit, but only one that
the process started itself: of those in a graph it knows nothing, so when another rank dies, a replay would wait for
it on the GPU for ever, and the host behind it. Here a thread looks at the last replay of whatever communicates,
an engine's own recordings or those of a whole module, and treats one that is late as PyTorch would.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import os
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from trt_core.device import driver
from trt_core.forked_lock import ForkedLock
from trt_core.process_groups import LOOK_AT_OTHERS, Collective, GroupMembers, own_rank, show_ranks, time_limit

HANDLING: Final = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
"""PyTorch's variable for what a failed collective does: "0" and "2" let the process live; it ends by default."""

_SECONDS_BETWEEN_LOOKS: Final = 1.0
_RELAXED: Final = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_log: Final = logging.getLogger(__name__)


class Completion(Protocol):
    """Says whether what was enqueued before it is done: a CUDA event."""

    def query(self) -> bool:
        """Whether it is done."""


@dataclass(eq=False)
class ReplayedCollectives:
    """What is communicated in the CUDA graphs of one engine, or of one module.

    Attributes:
        device: Where that is.
        operations: What the collectives are: `ALL_REDUCE`.
        groups: The groups that they run in.
        replays: How many were enqueued.
        done: Comes behind the last of them.
    """

    device: torch.device
    operations: tuple[str, ...]
    groups: tuple[GroupMembers, ...]
    replays: int = 0
    done: Completion | None = None
    _seen: int = 0
    _since: float = 0.0
    _told: bool = False

    def enqueued(self, done: Completion) -> None:
        """Counts a replay.

        Args:
            done: Comes behind it; recorded already.
        """
        self.done = done
        self.replays += 1

    def late_seconds(self, now: float) -> float:
        """How long the last replay has been under way, as far as it was looked at; 0 where it is done.

        Args:
            now: Seconds of a monotonic clock.
        """
        if self.replays != self._seen:  # the host goes on, so it waits for nothing
            self._seen, self._since = self.replays, now
            return 0.0
        if self.done is None or self.done.query():
            self._since = now
            return 0.0
        return now - self._since

    def limit_seconds(self) -> float:
        """The longest time limit of the groups; endless where a group is gone."""
        return max(time_limit(group, self.device) for group in self.groups)

    def look(self, now: float) -> None:
        """Ends the process where the last replay is over its time limit, unless PyTorch was told not to."""
        late = self.late_seconds(now)
        if late == 0.0:
            self._told = False
            return
        if self._told or late <= (limit := self.limit_seconds()):
            return
        self._told = True
        ranks = "; ".join(dict.fromkeys(show_ranks(group.ranks) for group in self.groups))
        ends = os.environ.get(HANDLING, "3") not in ("0", "2")
        _log.critical(
            "a replayed run with %s of the ranks %s has not ended on %s within the %g s of its process group; %s%s",
            ", ".join(dict.fromkeys(self.operations)),
            ranks,
            own_rank(),
            limit,
            LOOK_AT_OTHERS,
            f". This process ends, as PyTorch ends it for a collective outside of graphs ({HANDLING}=0 lets it wait)"
            if ends
            else "",
        )
        if ends:
            os.abort()


def watch_collectives(collectives: Sequence[Collective], device: torch.device) -> ReplayedCollectives | None:
    """Begins to look at replays, until nobody keeps what is returned.

    Args:
        collectives: What each of them communicates.
        device: A CUDA device.

    Returns:
        Where replays are counted; None where nothing is communicated.
    """
    if not collectives:
        return None
    operations = tuple(each.operation for each in collectives)
    replayed = ReplayedCollectives(device, operations, tuple(dict.fromkeys(each.group for each in collectives)))
    _WATCH.add(replayed)
    return replayed


class _Watch:
    """The thread that looks, while there is anything to look at."""

    def __init__(self) -> None:
        self._replayed: weakref.WeakSet[ReplayedCollectives] = weakref.WeakSet()
        self._lock = ForkedLock()
        self._thread: threading.Thread | None = None
        self._has_ended = False
        atexit.register(self._end)

    def add(self, replayed: ReplayedCollectives) -> None:
        with self._lock:
            self._replayed.add(replayed)
            if self._thread is None or not self._thread.is_alive():  # a fork has no threads
                self._thread = threading.Thread(target=self._run, name="trt_core collectives", daemon=True)
                self._thread.start()

    def _end(self) -> None:
        self._has_ended = True

    def _run(self) -> None:
        # a question to the driver would end a capture of another thread that does not allow them
        with contextlib.suppress(OSError, AttributeError):
            driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(_RELAXED)))
        while True:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            if self._has_ended:
                return
            with self._lock:
                looked_at = list(self._replayed)
                if not looked_at:
                    self._thread = None
                    return
            for replayed in looked_at:
                replayed.look(time.monotonic())
            del looked_at
            replayed = None  # type: ignore[assignment]  # keeps nothing alive while it waits


_WATCH: Final = _Watch()
