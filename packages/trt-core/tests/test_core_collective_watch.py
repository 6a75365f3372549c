"""Replayed collectives that do not end within the time limit of their group."""

from __future__ import annotations

import logging
import math
import os
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch

from trt_core import process_groups
from trt_core.collective_watch import HANDLING, ReplayedCollectives, watch_collectives
from trt_core.process_groups import Collective, GroupMembers

DEVICE = torch.device("cuda", 0)
LIMIT = 60


class Work:
    """What was enqueued; done when the test says so."""

    is_done = False

    def query(self) -> bool:
        return self.is_done


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Gives groups a time limit, and collects how often the process would have ended."""
    found: list[str] = []
    monkeypatch.setattr(os, "abort", lambda: found.append("ended"))
    backend = SimpleNamespace(options=SimpleNamespace(_timeout=timedelta(seconds=LIMIT)))
    group = SimpleNamespace(_get_backend=lambda device: backend)
    monkeypatch.setattr(process_groups, "find_group", lambda members: group)
    monkeypatch.delenv(HANDLING, raising=False)
    return found


GROUP = GroupMembers("tp", (0, 1))


def replayed(work: Work) -> ReplayedCollectives:
    found = ReplayedCollectives(DEVICE, ("ALL_REDUCE", "ALL_REDUCE"), (GROUP,))
    found.enqueued(work)
    return found


def test_a_late_replay_ends_the_process_and_says_why(ended: list[str], caplog: pytest.LogCaptureFixture) -> None:
    late = replayed(Work())
    for now in (100, 130, 160):
        late.look(now)
    assert not ended
    late.look(161)
    assert ended == ["ended"]
    (record,) = caplog.records
    assert record.levelno == logging.CRITICAL
    assert "with ALL_REDUCE of the ranks 0, 1 has not ended" in record.getMessage()
    assert "within the 60 s of its process group; see what the other ranks say" in record.getMessage()


@pytest.mark.parametrize("handling", ["0", "2"])
def test_whoever_lets_pytorch_wait_hears_once_and_waits(
    handling: str, ended: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(HANDLING, handling)
    late = replayed(Work())
    for now in (100, 200, 300):
        late.look(now)
    assert not ended
    assert len(caplog.records) == 1


def test_time_counts_from_the_last_replay_and_not_once_it_is_done(ended: list[str]) -> None:
    work = Work()
    late = replayed(work)
    for now in range(0, 10 * LIMIT, 30):  # the host enqueues one after the other
        late.enqueued(work)
        late.look(now)
    work.is_done = True
    late.look(20 * LIMIT)
    work.is_done = False
    late.enqueued(work)
    late.look(21 * LIMIT)
    late.look(22 * LIMIT)
    assert not ended
    late.look(22 * LIMIT + 1)
    assert ended


def test_a_group_that_is_gone_has_no_limit(monkeypatch: pytest.MonkeyPatch, ended: list[str]) -> None:
    def nothing(members: GroupMembers) -> None:
        raise LookupError

    monkeypatch.setattr(process_groups, "find_group", nothing)
    assert replayed(Work()).limit_seconds() == math.inf


def test_what_communicates_nothing_is_not_watched() -> None:
    assert watch_collectives([], DEVICE) is None


def test_groups_are_named_once(ended: list[str]) -> None:
    found = watch_collectives([Collective("ALL_REDUCE", GROUP), Collective("BROADCAST", GROUP)], DEVICE)
    assert found is not None
    assert (found.operations, found.groups) == (("ALL_REDUCE", "BROADCAST"), (GROUP,))
    assert found.limit_seconds() == LIMIT
