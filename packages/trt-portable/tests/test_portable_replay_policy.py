"""When runs are recorded, and when what they call may plan for it: decisions that need no device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trt_portable.execution.launch_list import RUNS_BEFORE_PLANNING
from trt_portable.execution.replay import ReplayLauncher, _Recording


class Watched(ReplayLauncher):
    """A launcher that records nothing, and notes whether each recording might plan."""

    def __init__(self, *, plans_late: bool) -> None:
        loaded = SimpleNamespace(updates={}, inputs=[0])
        state: Any = SimpleNamespace(
            executable=None, device=torch.device("cpu"), generation=0, loaded=loaded, layers=[]
        )
        super().__init__(state, state.executable)
        self._plans_late = plans_late
        self.recorded: list[bool] = []

    def _capture(self, buffers: Any, values: Any, outputs: Any, *, may_plan: bool) -> _Recording:
        self.recorded.append(may_plan)
        graph: Any = None
        return _Recording(graph, buffers, [torch.empty(1)], None)  # a result on the host: nothing is pinned

    def _replay(self, recording: Any, values: Any, outputs: Any) -> None:
        pass


@pytest.mark.parametrize("rounds", [2, 4, RUNS_BEFORE_PLANNING])
def test_sizes_that_come_a_few_times_plan_nothing(rounds: int) -> None:
    launcher = Watched(plans_late=True)
    for _ in range(rounds):
        for size in range(1, 13):
            launcher.launch([torch.empty(size)], ())
    assert launcher.recorded == [False] * 8


def test_a_size_that_stays_is_recorded_again_with_plans_once() -> None:
    launcher = Watched(plans_late=True)
    given = torch.empty(3)
    assert [launcher.launch([given], ()) for _ in range(100)] == [False] + [True] * 99
    assert launcher.recorded == [False, True]


def test_what_has_nothing_to_plan_is_recorded_once() -> None:
    launcher = Watched(plans_late=False)
    for _ in range(100):
        launcher.launch([torch.empty(3)], ())
    assert launcher.recorded == [True]
