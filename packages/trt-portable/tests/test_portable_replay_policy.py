"""When runs are recorded, and when what they call may plan for it: decisions that need no device."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trt_portable.execution import replay
from trt_portable.execution.launch_list import RUNS_BEFORE_PLANNING, RUNS_BEFORE_PLANNING_SOON
from trt_portable.execution.replay import ReplayLauncher, _Recording
from trt_portable.layers.collective import is_rehearsing


class Watched(ReplayLauncher):
    """A launcher that records nothing, and notes what each recording might plan."""

    results: tuple[torch.Tensor, ...] = (torch.empty(1),)  # on the host: nothing is pinned

    def __init__(self, *, plans_after: tuple[int, ...] = (), communicates: bool = False) -> None:
        loaded = SimpleNamespace(updates={}, inputs=[0])
        state: Any = SimpleNamespace(
            executable=None, device=torch.device("cpu"), generation=0, loaded=loaded, layers=[]
        )
        super().__init__(state, state.executable)
        self._plans_after = plans_after
        watched: Any = SimpleNamespace()
        self._communication = watched if communicates else None
        self.recorded: list[float] = []

    def _capture(self, buffers: Any, values: Any, outputs: Any, *, runs: float, given: Any = ()) -> _Recording | None:
        self.recorded.append(runs)
        graph: Any = None
        return _Recording(graph, buffers, [*self.results], None)

    def _replay(self, recording: Any, values: Any, outputs: Any) -> None:
        pass


@pytest.mark.parametrize("rounds", [2, 4, 16])
def test_sizes_that_come_a_few_times_plan_nothing(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_MAX_SHAPES", 8)
    launcher = Watched(plans_after=(RUNS_BEFORE_PLANNING,))
    for _ in range(rounds):
        for size in range(1, 13):
            launcher.launch([torch.empty(size)], ())
    assert launcher.recorded == [0] * 8


def test_a_size_that_stays_is_recorded_again_with_plans_once() -> None:
    launcher = Watched(plans_after=(RUNS_BEFORE_PLANNING,))
    given = torch.empty(3)
    calls = 2 * RUNS_BEFORE_PLANNING
    assert [launcher.launch([given], ()) for _ in range(calls)] == [False] + [True] * (calls - 1)
    assert launcher.recorded == [0, RUNS_BEFORE_PLANNING + 1]


def test_what_is_slow_without_plans_is_planned_sooner() -> None:
    launcher = Watched(plans_after=(RUNS_BEFORE_PLANNING_SOON, RUNS_BEFORE_PLANNING))
    given = torch.empty(3)
    for _ in range(2 + RUNS_BEFORE_PLANNING_SOON):
        launcher.launch([given], ())
    assert launcher.recorded == [0]
    for _ in range(2 * RUNS_BEFORE_PLANNING):
        launcher.launch([given], ())
    assert launcher.recorded == [0, RUNS_BEFORE_PLANNING_SOON + 1, RUNS_BEFORE_PLANNING + 1]


def test_recordings_of_many_sizes_read_one_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Watched()
    for size in (8, 3, 5, 9, 30, 16):
        for _ in range(2):
            launcher.launch([torch.empty(2, size)], ())
    read = [recording.inputs[0] for recording in launcher._recordings.values()]  # type: ignore[index]
    assert [tuple(each.shape) for each in read] == [(2, size) for size in (8, 3, 5, 9, 30, 16)]  # type: ignore[union-attr]
    storages = [each.untyped_storage().nbytes() for each in read]  # type: ignore[union-attr]
    assert storages == [64, 64, 64, 128, 256, 256]
    assert len({each.data_ptr() for each in read}) == 3  # type: ignore[union-attr]


def test_what_has_nothing_to_plan_is_recorded_once() -> None:
    launcher = Watched()
    for _ in range(100):
        launcher.launch([torch.empty(3)], ())
    assert launcher.recorded == [math.inf]


def test_ranks_record_at_the_same_call_whatever_each_has_compiled_and_wherever_its_tensors_lie() -> None:
    class Pinning(Watched):
        results = ()

    given, numbers = torch.empty(3), {}
    for communicates, plans_after in itertools.product((False, True), ((), (RUNS_BEFORE_PLANNING,))):
        launcher = Pinning(plans_after=plans_after, communicates=communicates)
        for _ in range(2 * RUNS_BEFORE_PLANNING):
            launcher.launch([given], ())
        numbers[communicates, bool(plans_after)] = len(launcher.recorded)
    assert numbers == {(False, False): 2, (False, True): 4, (True, False): 1, (True, True): 1}


def test_the_run_before_a_recording_with_plans_reads_the_call_and_communicates_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Runs:
        constants = None

        def __init__(self) -> None:
            self.seen: list[tuple[bool, int]] = []

        def run(self, values: Any, targets: Any = ()) -> list[Any]:
            self.seen.append((is_rehearsing(), values[0].data_ptr()))
            return []

    def record(stream: Any, pool: Any, run: Any) -> tuple[Any, list[Any]]:
        run()
        return None, [torch.empty(1)]

    monkeypatch.setattr(replay, "_recorded", record)
    launcher, runs, given = Watched(plans_after=(RUNS_BEFORE_PLANNING,), communicates=True), Runs(), torch.ones(3)
    launcher._executable, launcher._stream, launcher._pool = runs, Any, Any  # type: ignore[assignment]
    monkeypatch.setattr(Watched, "_capture", ReplayLauncher._capture)
    assert [launcher.launch([given], ()) for _ in range(2)] == [False, True]
    planned, recorded = runs.seen
    assert planned == (True, given.data_ptr())
    assert recorded[0] is False
    assert recorded[1] != given.data_ptr()
