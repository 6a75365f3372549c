"""The pool of execution contexts: who gets which, and how many there are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trt_runtime.context_pool import MOST_IDLE, ContextPool, captured_contexts, give_back_captured


class _Context:
    """Stands for a context, whose work on a device cannot be made to last here."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.waited = False

    def wait(self) -> None:
        self.waited = True


@pytest.fixture
def pool() -> Any:
    return ContextPool()


def _use(pool: Any, stream: int) -> _Context:
    context = pool.take(stream) or _Context(stream)
    context.stream = stream
    return context


def test_a_stream_gets_its_context_again(pool: Any) -> None:
    first, second = _use(pool, 1), _use(pool, 2)
    pool.give_back(first)
    pool.give_back(second)
    assert pool.take(1) is first
    assert pool.take(2) is second
    assert pool.take(1) is None


def test_many_streams_share_few_contexts(pool: Any) -> None:
    contexts = []
    for stream in range(100):
        context = _use(pool, stream)
        contexts.append(context)
        pool.give_back(context)
    assert len(set(map(id, contexts))) == MOST_IDLE
    assert len(pool) == MOST_IDLE
    assert contexts[MOST_IDLE] is contexts[0]  # idle for longest


def test_contexts_beyond_the_bound_are_waited_for_and_given_up(pool: Any) -> None:
    lent = [_use(pool, 1) for _ in range(MOST_IDLE + 3)]
    for context in lent:
        pool.give_back(context)
    assert len(pool) == MOST_IDLE
    assert [context.waited for context in lent] == [False] * MOST_IDLE + [True] * 3


def test_captured_contexts_are_never_lent_again(pool: Any) -> None:
    context = _use(pool, 1)
    pool.keep_for_graph(context)
    assert pool.take(1) is None


def test_calls_of_one_graph_share_a_context_until_the_graph_ends(pool: Any) -> None:
    context = _use(pool, 1)
    pool.give_back(context)
    with captured_contexts() as held:
        for _ in range(2):
            assert pool.take_for_capture(1) is context
            pool.keep_for_graph(context)
        assert pool.take(1) is None
    assert len(held) == 1
    give_back_captured(held)
    assert pool.take(1) is context


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=60))
def test_no_context_is_lent_twice_or_lost(steps: list[tuple[bool, int]]) -> None:
    pool: Any = ContextPool()
    lent: list[_Context] = []
    for is_take, number in steps:
        if is_take or not lent:
            context = _use(pool, number)
            assert all(context is not other for other in lent)
            lent.append(context)
        else:
            pool.give_back(lent.pop(number % len(lent)))
    idle = {id(context) for context in pool._idle}
    assert len(idle) == len(pool) <= MOST_IDLE
    assert not idle & {id(context) for context in lent}
