"""Timing candidates in turns, on a device that grows faster or slower meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trt_portable.builder.autotune.clock import LEAST_SAMPLES, milliseconds, race, race_milliseconds

CPU = torch.device("cpu")


class Device:
    """A clock that only work advances, at a speed that time changes.

    Args:
        speed: Work per second at a time in seconds.
    """

    def __init__(self, speed: Callable[[float], float]) -> None:
        self.now = 0.0
        self.calls: list[float] = []
        self._speed = speed

    def clock(self) -> float:
        return self.now

    def run(self, work: float) -> Callable[[], None]:
        def run() -> None:
            self.calls.append(work)
            self.now += work / self._speed(self.now)

        return run


def wakes_up(now: float) -> float:
    """A GPU whose clocks were low."""
    return 0.3 if now < 0.03 else 1.0


def grows_hot(now: float) -> float:
    return 1.0 if now < 0.2 else 0.93


# works differ by more than speeds do: nobody can tell 5 % apart on a device that slows down by 7 % in between
@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from([1e-5, 2.1e-3, 2.3e-3, 3e-3, 0.4]), min_size=1, max_size=3, unique=True),
    st.sampled_from([wakes_up, grows_hot, lambda now: 1.0 / (1.0 + now)]),
    st.integers(1, 9),
)
def test_the_order_of_runs_is_that_of_their_work(works: list[float], speed: Any, rounds: int) -> None:
    device = Device(speed)
    found = race([device.run(work) for work in works], lambda: None, rounds, clock=device.clock)
    assert sorted(range(len(works)), key=lambda at: found[at]) == sorted(range(len(works)), key=lambda at: works[at])
    assert all(device.calls.count(work) >= rounds for work in works)


def test_a_device_that_wakes_up_tells_the_time_of_one_that_is_awake() -> None:
    device = Device(wakes_up)
    (found,) = race([device.run(2e-3)], lambda: None, clock=device.clock)
    assert found == pytest.approx(2e-3)


class Working:
    """An executable whose runs advance a clock."""

    constants = None

    def __init__(self, device: Device, work: float) -> None:
        self.device, self.work = device, work

    def run(self, values: Any, targets: Any = ()) -> list[torch.Tensor]:
        self.device.run(self.work)()
        return []


@pytest.mark.parametrize(
    ("work", "asked_for", "samples"), [(0.011, 1, 10), (0.004, 1, 15), (0.4, 1, LEAST_SAMPLES), (0.4, 7, 7)]
)
def test_long_runs_are_timed_as_often_as_was_asked_for(
    work: float, asked_for: int, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(lambda now: 1.0)
    monkeypatch.setattr("trt_portable.builder.autotune.clock.host_clock", lambda: device.clock)
    assert milliseconds(Working(device, work), [], CPU, asked_for, most=15) == pytest.approx(work * 1e3)
    assert len(device.calls) == 2 + samples  # two warm up


class Fixed:
    """An executable that works, or fails."""

    constants = None

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def run(self, values: Any, targets: Any = ()) -> list[torch.Tensor]:
        if self.error is not None:
            raise self.error
        return [values[0] + 1]


def test_what_fails_does_not_stop_the_others() -> None:
    error = RuntimeError("no memory")
    first, second, third = race_milliseconds([Fixed(), Fixed(error), Fixed()], [torch.zeros(2)], CPU, 1)
    assert second is error
    assert isinstance(first, float) and isinstance(third, float) and min(first, third) > 0
    assert race_milliseconds([Fixed(error)], [torch.zeros(2)], CPU, 1) == [error]
