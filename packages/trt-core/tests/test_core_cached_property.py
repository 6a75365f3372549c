"""Properties that are computed once."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

import pytest
from side_by_side import in_fork

from trt_core.cached_property import cached_property


@dataclass(frozen=True)
class _Square:
    side: float
    begun: threading.Event
    end: threading.Event

    @cached_property
    def area(self) -> Any:
        """How much there is inside."""
        self.begun.set()
        self.end.wait(20)
        return [self.side * self.side]


def _square() -> _Square:
    return _Square(2.0, threading.Event(), threading.Event())


def test_it_is_computed_once() -> None:
    square = _square()
    square.end.set()
    assert square.area is square.area and square.area == [4.0]
    assert _Square.area.__doc__ == "How much there is inside."


def test_threads_that_ask_at_once_get_one_answer() -> None:
    square, found = _square(), []
    threads = [threading.Thread(target=lambda: found.append(square.area)) for _ in range(4)]
    for thread in threads:
        thread.start()
    square.begun.wait(20)
    square.end.set()
    for thread in threads:
        thread.join()
    assert len({id(each) for each in found}) == 1


def test_nobody_waits_for_another_object() -> None:
    slow, quick = _square(), _square()
    quick.end.set()
    thread = threading.Thread(target=lambda: slow.area)
    thread.start()
    slow.begun.wait(20)
    asked = threading.Thread(target=lambda: quick.area, daemon=True)
    asked.start()
    asked.join(2)
    is_done = not asked.is_alive()
    slow.end.set()
    thread.join()
    assert is_done


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_waits_for_no_thread_of_its_parent() -> None:
    slow, quick = _square(), _square()
    quick.end.set()
    thread = threading.Thread(target=lambda: slow.area)
    thread.start()
    slow.begun.wait(20)
    is_done = in_fork(lambda: quick.area == [4.0])
    slow.end.set()
    thread.join()
    assert is_done
