"""Functions that several threads call at once."""

from __future__ import annotations

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
