"""Functions that several threads call at once, or a process that a thread forks."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Given = TypeVar("_Given")
_Result = TypeVar("_Result")


def in_threads(work: Callable[[_Given], _Result], arguments: Iterable[_Given]) -> list[_Result]:
    """Calls a function with each argument in a thread of its own, all at once, and returns the results in order.

    Raises:
        Exception: What the first of the calls raised that did.
    """
    given = list(arguments)
    start = threading.Barrier(len(given))

    def run(argument: _Given) -> _Result:
        start.wait()
        return work(argument)

    with ThreadPoolExecutor(len(given)) as threads:
        return list(threads.map(run, given))


def in_fork(act: Callable[[], bool]) -> bool:
    """Whether an act ends, and is right, in a process that another thread than this one forks."""
    ends: list[bool] = []

    def fork() -> None:
        child = os.fork()
        if not child:
            try:  # in no thread of its own, which could have the name of one that is gone, and its locks
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(60)
                os._exit(0 if act() else 1)
            finally:
                os._exit(1)
        ends.append(os.waitpid(child, 0)[1] == 0)

    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
    return ends == [True]
