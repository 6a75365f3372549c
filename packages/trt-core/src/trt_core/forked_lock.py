"""A lock that no forked process waits for in vain."""

from __future__ import annotations

import os
import threading
import weakref

_ALL: weakref.WeakSet[ForkedLock] = weakref.WeakSet()


class ForkedLock:
    """A lock that a thread may take again, and that a forked process has anew where another thread had it.

    That thread is not in the forked process, where nobody would give the lock back. What it guards is as the thread
    left it: whole only where its holder keeps it so at any time.

    Attributes:
        depth: How often its holder has taken it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.depth = 0
        _ALL.add(self)

    def acquire(self) -> None:
        """Takes it, when nobody else has it any more."""
        self._lock.acquire()
        self.depth += 1

    def release(self) -> None:
        """Gives it back, once for each time that it was taken."""
        self.depth -= 1
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def renew(self) -> None:
        """Lets go of it for a thread that is gone."""
        if self._lock.acquire(blocking=False):  # free, or this thread's
            self._lock.release()
            return
        self._lock = threading.RLock()
        self.depth = 0


def _renew_all() -> None:
    for lock in _ALL:
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
