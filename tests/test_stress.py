"""Compiling many times leaves nothing behind, and compiled modules stand many callers."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from memory_growth import grows_each_time
from torch import nn

import trt_frontends
from trt_core import Input
from trt_runtime import ENGINES

FACTOR = int(os.environ.get("TRT_STRESS", "1"))
"""How many times as long as in the ordinary suite; the session `stress` of nox compiles fifty times and more."""

ROWS = Input(min_shape=(1, 16), opt_shape=(4, 16), max_shape=(16, 16))


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval().requires_grad_(False)


@pytest.fixture(autouse=True)
def _only_new_objects() -> Iterator[None]:
    """Garbage is looked for among what a test makes itself, not in all that the session holds."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def _compile_and_drop(times: int) -> list[weakref.ref[nn.Module]]:
    watched = []
    for _ in range(times):
        compiled = trt_frontends.compile(_model(), arg_inputs=(ROWS,), min_block_size=1)
        compiled(torch.ones(2, 16))
        watched.append(weakref.ref(compiled))
        del compiled
        gc.collect()
    return watched


def test_compiled_modules_are_freed() -> None:
    alive = len(ENGINES)
    assert all(found() is None for found in _compile_and_drop(3))
    assert len(ENGINES) <= alive


@pytest.mark.slow
def test_many_compiles_do_not_grow() -> None:
    _compile_and_drop(5)
    watched: list[weakref.ref[nn.Module]] = []
    assert not grows_each_time(lambda: watched.extend(_compile_and_drop(10 * FACTOR)), 64 << 20)
    assert all(found() is None for found in watched)


@pytest.mark.parametrize("fallback", [False, True])
def test_concurrent_callers_and_alternating_shapes(fallback: bool) -> None:
    model = _model()
    settings = {"torch_executed_ops": {"aten.relu"}} if fallback else {}
    compiled = trt_frontends.compile(model, arg_inputs=(ROWS,), min_block_size=1, **settings)
    barrier = threading.Barrier(8)

    def call(seed: int) -> int:
        generator = torch.Generator().manual_seed(seed)
        barrier.wait()
        right = 0
        for index in range(50 * FACTOR):
            x = torch.randn(1 + (seed * 7 + index) % 16, 16, generator=generator)
            right += torch.allclose(compiled(x), model(x), atol=1e-5)
        return right

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(call, range(8))) == [50 * FACTOR] * 8
