"""Engines under load: many threads, many calls, many engines, forked processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from memory_growth import grows_each_time

from trt_runtime import ENGINES, EngineStore, TRTModule
from trt_runtime.context_pool import MOST_IDLE

FACTOR = int(os.environ.get("TRT_STRESS", "1"))
"""How many times as long as in the ordinary suite; see the session `stress` of nox."""

THREADS, CALLS = 8, 200 * FACTOR


def _from_threads(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """Runs work in threads that begin together."""
    barrier = threading.Barrier(threads)

    def begin(number: int) -> Any:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(begin, range(threads)))


def _loaded(module: TRTModule) -> Any:
    return ENGINES.engine_for(module.plan, module.header.text, torch.device("cpu"))


def test_threads_with_static_shapes(static_engine: TRTModule) -> None:
    def work(seed: int) -> int:
        generator = torch.Generator().manual_seed(seed)
        right = 0
        for _ in range(CALLS):
            x = torch.randn(2, 3, generator=generator)
            right += torch.equal(static_engine(x), x.relu())
        return right

    assert _from_threads(work) == [CALLS] * THREADS
    assert len(_loaded(static_engine).contexts) <= MOST_IDLE


def test_threads_with_shapes_that_alternate(dynamic_engine: TRTModule) -> None:
    def work(seed: int) -> int:
        generator = torch.Generator().manual_seed(seed)
        right = 0
        for call in range(CALLS):
            x = torch.randn(1 + (seed + call) % 8, 3, generator=generator)
            right += torch.equal(dynamic_engine(x), x + x)
        return right

    assert _from_threads(work) == [CALLS] * THREADS
    assert len(_loaded(dynamic_engine).known_shapes) == 8


def test_threads_that_write_to_outputs_of_their_own(static_engine: TRTModule) -> None:
    def work(seed: int) -> int:
        generator = torch.Generator().manual_seed(seed)
        y = torch.empty(2, 3)
        right = 0
        for _ in range(CALLS):
            x = torch.randn(2, 3, generator=generator)
            static_engine.run_into([x], [y])
            right += torch.equal(y, x.relu())
        return right

    assert _from_threads(work) == [CALLS] * THREADS


def test_failing_calls_do_not_disturb_others(dynamic_engine: TRTModule) -> None:
    def work(seed: int) -> int:
        right = 0
        for call in range(CALLS):
            if (seed + call) % 3:
                x = torch.full((1 + call % 8, 3), float(seed))
                right += torch.equal(dynamic_engine(x), x + x)
            else:
                with pytest.raises(ValueError, match="is 9"):
                    dynamic_engine(torch.ones(9, 3))
                right += 1
        return right

    assert _from_threads(work) == [CALLS] * THREADS


def test_first_calls_at_the_same_time_load_one_engine(static_engine: TRTModule) -> None:
    text, cpu = static_engine.header.text, torch.device("cpu")
    for _ in range(5):
        store, plan = EngineStore(), static_engine.plan.clone()
        engines = _from_threads(lambda _, store=store, plan=plan: store.engine_for(plan, text, cpu))
        assert len({id(engine) for engine in engines}) == 1
        assert len(store) == 1


def test_many_calls_do_not_grow(dynamic_engine: TRTModule) -> None:
    def call(times: int) -> None:
        for index in range(times):
            dynamic_engine(torch.ones(1 + index % 8, 3))

    call(2000)
    gc.collect()
    objects = len(gc.get_objects())
    limit = 4 << 20  # a leak of one small tensor per call would be 5 MiB or more
    assert not grows_each_time(lambda: call(10_000 * FACTOR), limit)
    assert len(gc.get_objects()) - objects < 200
    assert len(_loaded(dynamic_engine).contexts) == 1


def test_many_engines_leave_nothing(static_engine: TRTModule) -> None:
    x = torch.ones(2, 3)

    def load_and_drop(times: int) -> None:
        for _ in range(times):
            twin = TRTModule(static_engine.header, static_engine.plan.clone())
            twin(x)
            del twin

    alive = len(ENGINES)
    load_and_drop(20)
    gc.collect()
    assert not grows_each_time(lambda: load_and_drop(200 * FACTOR), 8 << 20)
    assert len(ENGINES) == alive


def _in_child(module: TRTModule, queue: Any) -> None:
    x = torch.randn(2, 3)
    queue.put(bool(torch.equal(module(x), x.relu())))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("warm", [False, True])
def test_forked_processes_run_engines(static_engine: TRTModule, warm: bool) -> None:
    if warm:
        static_engine(torch.ones(2, 3))
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [context.Process(target=_in_child, args=(static_engine, queue)) for _ in range(2)]
    for worker in workers:
        worker.start()
    assert [queue.get(timeout=60) for _ in workers] == [True, True]
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_while_another_thread_loads_an_engine(static_engine: TRTModule) -> None:
    """The lock of the store must not stay closed in the child, where nobody would open it."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with ENGINES._lock:
        worker = context.Process(target=_in_child, args=(static_engine, queue))
        holder = threading.Thread(target=worker.start)  # not the thread that holds the lock
        holder.start()
        holder.join(60)
    assert queue.get(timeout=60)
    worker.join(60)
    assert worker.exitcode == 0


@pytest.mark.slow
def test_spawned_processes_get_engines_by_their_plans(static_engine: TRTModule) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    worker = context.Process(target=_in_child, args=(static_engine, queue))
    worker.start()
    assert queue.get(timeout=120)
    worker.join(60)
    assert worker.exitcode == 0
