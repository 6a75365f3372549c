"""Runs a function in several processes that form a process group, and never leaves one of them behind."""

from __future__ import annotations

import dataclasses
import functools
import multiprocessing
import multiprocessing.context
import multiprocessing.forkserver
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

import pytest

GROUP_SECONDS: Final = 60.0
"""Time limit of the process groups: what a rank waits for another one before it gives up.

Ranks have it until they say `wait_no_longer`: importing and compiling take one rank seconds longer than another.
"""

_PRELOADED: Final = ("warm_ranks",)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a rank.

    Attributes:
        value: What its function returned.
        error: Type and text of what it raised instead; empty for nothing.
        is_dead: Whether it went without a word.
        seconds: How long the function took, since `wait_no_longer` where it said so.
    """

    value: Any = None
    error: str = ""
    is_dead: bool = False
    seconds: float = 0.0


def run_ranks(
    world: int,
    directory: Path,
    function: Callable[..., Any],
    *args: Any,
    limit: float = 150.0,
    group_seconds: float = GROUP_SECONDS,
) -> list[Any]:
    """Calls a function on every rank of a group on gloo, and returns what they return.

    Args:
        world: Number of ranks.
        directory: An empty directory, for the rendezvous.
        function: A function of a module that a new process can import; called with the rank and the arguments.
        args: What it gets besides.
        limit: Seconds after which all ranks are killed.
        group_seconds: Time limit of the process groups from `wait_no_longer` on.

    Raises:
        AssertionError: A rank failed or took too long.
    """
    outcomes = run_failing_ranks(world, directory, function, *args, limit=limit, group_seconds=group_seconds)
    failed = [
        f"rank {rank}: {found.error or 'died'}" for rank, found in enumerate(outcomes) if found.error or found.is_dead
    ]
    assert not failed, "\n".join(failed)
    return [found.value for found in outcomes]


def run_failing_ranks(
    world: int,
    directory: Path,
    function: Callable[..., Any],
    *args: Any,
    limit: float = 150.0,
    group_seconds: float = GROUP_SECONDS,
    only: Sequence[int] = (),
) -> list[Outcome]:
    """The same for ranks that are meant to fail: says what became of each.

    `only` names ranks that are waited for, where others hang; these are told as dead.

    Raises:
        AssertionError: A rank did not end within the limit.
    """
    context = _fork_server()
    place = directory / f"rendezvous-{time.monotonic_ns()}"
    pipes: list[Connection] = []
    processes: list[Any] = []
    try:
        for rank in range(world):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=_run, args=(rank, world, str(place), sender, function, args, group_seconds), daemon=True
            )
            process.start()
            sender.close()
            pipes.append(receiver)
            processes.append(process)
        return _collect(pipes, limit, only or range(world))
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def wait_no_longer() -> None:
    """From here on this rank waits for others as long as a test said, and `Outcome.seconds` counts."""
    from torch.distributed import distributed_c10d

    if _clock.limit is not None:
        distributed_c10d._get_default_store().set_timeout(_clock.limit)
        for group in list(distributed_c10d._world.pg_map):
            distributed_c10d._set_pg_timeout(_clock.limit, group)
    _clock.started = time.monotonic()


@dataclasses.dataclass
class _Clock:
    """When what a rank does began, and how long it may wait then; None where nobody said."""

    started: float = 0.0
    limit: timedelta | None = None


_clock: Final = _Clock()


def start_forking() -> None:
    """Returns when the process is there that all ranks are forks of, with what it imports and compiles."""
    start_process(os.getpid).join()


def start_process(function: Callable[..., Any], *args: Any) -> multiprocessing.context.ForkServerProcess:
    """Starts a fork of that process, which calls a function of a module that it can import."""
    process = _fork_server().Process(target=function, args=args)
    process.start()
    return process


@functools.cache
def _fork_server() -> multiprocessing.context.ForkServerContext:
    """A process that has imported PyTorch once, of which ranks are forks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # of Python 3.12 and older it knows no other
        multiprocessing.forkserver.ensure_running()
    return context


def _collect(pipes: Sequence[Connection], limit: float, wanted: Sequence[int]) -> list[Outcome]:
    found: dict[int, Outcome] = {}
    deadline = time.monotonic() + limit
    while not found.keys() >= set(wanted):
        waiting = {pipe: rank for rank, pipe in enumerate(pipes) if rank not in found}
        ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
        assert ready, f"the ranks {sorted(waiting.values())} are not done after {limit} s"
        for pipe in ready:
            assert isinstance(pipe, Connection)
            try:
                found[waiting[pipe]] = pipe.recv()
            except EOFError:
                found[waiting[pipe]] = Outcome(is_dead=True)
    return [found.get(rank, Outcome(is_dead=True)) for rank in range(len(pipes))]


def _run(
    rank: int,
    world: int,
    place: str,
    sender: Connection,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    seconds: float,
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), str(world)
    _clock.started, _clock.limit = time.monotonic(), timedelta(seconds=seconds)
    try:
        limit = timedelta(seconds=max(seconds, GROUP_SECONDS))
        dist.init_process_group(
            "gloo", store=_store(Path(place), rank == 0, limit), rank=rank, world_size=world, timeout=limit
        )
        _clock.started = time.monotonic()
        value = function(rank, *args)
        outcome = Outcome(value, seconds=time.monotonic() - _clock.started)
        dist.barrier()
    except BaseException as error:
        told = f"{type(error).__name__}: {error}\n{''.join(traceback.format_exception(error))}"
        outcome = Outcome(error=told, seconds=time.monotonic() - _clock.started)
    sender.send(outcome)
    sender.close()
    os._exit(0)  # destructors of a group whose peers are gone would wait for them


def _store(place: Path, keeps: bool, limit: timedelta) -> Any:
    """Connects to the store that the first rank keeps, as under most launchers, at a port that a file tells."""
    import torch.distributed as dist

    if keeps:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)  # type: ignore[attr-defined]
        draft = place.with_suffix(".draft")
        draft.write_text(str(store.port))
        draft.rename(place)
        return store
    while not place.exists():
        time.sleep(0.01)
    return dist.TCPStore("127.0.0.1", int(place.read_text()), is_master=False, timeout=limit)  # type: ignore[attr-defined]
