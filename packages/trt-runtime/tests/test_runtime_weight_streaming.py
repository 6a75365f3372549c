"""Budgets for the weights of a module's engines; what they do on a GPU is trt-portable's own test and one here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from trt_core import ExecutionError, InputError, trt
from trt_runtime import ENGINES, Binding, TRTModule, weight_streaming

WIDTH = 32
MATRIX = WIDTH * WIDTH * 4


def _products(count: int, width: int) -> Any:
    def define(network: Any, tensors: Sequence[Any]) -> list[Any]:
        (x,) = tensors
        for index in range(count):
            weights = np.random.default_rng(index).standard_normal((width, width)).astype(np.float32) / width**0.5
            matrix = network.add_constant((width, width), trt.Weights(weights)).get_output(0)
            x = network.add_matrix_multiply(x, trt.MatrixOperation.NONE, matrix, trt.MatrixOperation.NONE).get_output(0)
        return [x]

    return define


def _engine(make: Any, count: int, width: int = WIDTH, flags: Sequence[str] = ("WEIGHT_STREAMING",)) -> TRTModule:
    shape = (2, width)
    bindings = [Binding("x", torch.float32, shape)], [Binding("y", torch.float32, shape)]
    return make(_products(count, width), *bindings, flags=flags)


@pytest.fixture
def model(make_engine: Any) -> nn.Sequential:
    """Engines with 3 and 1 matrices that can be streamed, and one with none."""
    return nn.Sequential(_engine(make_engine, 3), _engine(make_engine, 1), _engine(make_engine, 1, flags=()))


def test_engines_share_a_budget_and_get_the_old_one_back(model: nn.Sequential) -> None:
    x = torch.randn(2, WIDTH)
    y = model(x)
    with weight_streaming(model, 2 * MATRIX) as streaming:
        assert streaming.total_device_budget == 4 * MATRIX
        assert streaming.device_budget == 2 * MATRIX
        assert streaming.of_each() == [3 * MATRIX // 2, MATRIX // 2]
        assert torch.equal(model(x), y)
        streaming.device_budget = 0
        assert streaming.device_budget == 0
        assert torch.equal(model(x), y)
        streaming.device_budget = 100 * MATRIX
        assert streaming.device_budget == 4 * MATRIX
        streaming.device_budget = 1
    with weight_streaming(model) as streaming:
        assert streaming.device_budget == 4 * MATRIX


@pytest.mark.parametrize("budget", [-1, 0.5, "4 GiB", True])
def test_a_budget_is_a_number_of_bytes(model: nn.Sequential, budget: Any) -> None:
    with (
        pytest.raises(InputError, match=r"a budget is a number of bytes|give a whole number"),
        weight_streaming(model, budget),
    ):
        pass


def test_modules_without_streaming_say_what_to_do(static_engine: TRTModule) -> None:
    with (
        pytest.raises(ExecutionError, match="enable_weight_streaming=True"),
        weight_streaming(nn.Sequential(static_engine)),
    ):
        pass


def test_a_budget_can_be_set_without_a_block(model: nn.Sequential) -> None:
    streaming = weight_streaming(model)
    before, total = streaming.device_budget, streaming.total_device_budget
    assert 0 <= streaming.get_automatic_weight_streaming_budget() <= total
    streaming.device_budget = 0
    assert weight_streaming(model).device_budget == 0
    streaming.restore(streaming.of_each())
    with weight_streaming(model) as inner:
        inner.device_budget = total
    assert streaming.device_budget == 0
    streaming.device_budget = before


def test_an_engine_in_use_keeps_its_budget(model: nn.Sequential) -> None:
    first = model[0]
    x = torch.randn(2, WIDTH)
    first(x)
    engine = ENGINES.engine_for(first.plan, first.header.text, torch.device("cpu"))
    context = engine.contexts.take(0)  # as a call that runs in another thread has it
    try:
        with pytest.raises(ExecutionError, match="refuses to keep 0 bytes"):
            engine.weight_budget.resident = 0
        assert engine.weight_budget.resident == 3 * MATRIX
    finally:
        assert context is not None
        engine.contexts.give_back(context)
        del context
    engine.weight_budget.resident = 0
    assert engine.weight_budget.resident == 0


@pytest.mark.gpu
def test_memory_of_the_device_follows_the_budget(make_cuda_engine: Any) -> None:
    width, count = 1024, 16
    size = width * width * 4
    module = _engine(make_cuda_engine, count, width)
    x = torch.randn(2, width, device="cuda")
    y = module(x)
    torch.cuda.synchronize()
    full = torch.cuda.memory_allocated()
    with weight_streaming(module, 4 * size) as streaming:
        assert streaming.total_device_budget == count * size
        module(x)  # what lies where changes with the first call
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(4):
            torch.testing.assert_close(module(x), y, rtol=1e-3, atol=1e-3)
        torch.cuda.synchronize()
        most = torch.cuda.max_memory_allocated()
        assert full - most > (count - 4 - 3) * size  # two matrices are on their way, one is room for the rest
    torch.testing.assert_close(module(x), y, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
def test_without_a_word_a_full_device_gets_what_it_has_room_for(
    make_cuda_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    width, count = 1024, 16
    module = _engine(make_cuda_engine, count, width)
    x = torch.randn(2, width, device="cuda")
    y = module(x)
    ENGINES.clear()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (48 << 20, 1 << 37))
    monkeypatch.setattr(torch.cuda, "memory_reserved", torch.cuda.memory_allocated)
    torch.testing.assert_close(module(x), y, rtol=1e-3, atol=1e-3)
    device = torch.device("cuda", torch.cuda.current_device())
    budget = ENGINES.engine_for(module.plan, module.header.text, device).weight_budget
    assert 0 < budget.resident < budget.streamable
