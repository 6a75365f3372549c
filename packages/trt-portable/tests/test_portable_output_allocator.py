"""Outputs whose extents depend on data: allocators are asked for memory, then told the shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from guarded_memory import guarded

import trt_portable as trt

Load = Callable[..., trt.ICudaEngine]


class Allocator(trt.IOutputAllocator):
    def __init__(self, fail: str = "") -> None:
        trt.IOutputAllocator.__init__(self)
        self.calls: list[tuple[Any, ...]] = []
        self.memory: torch.Tensor | None = None
        self.fail = fail

    def reallocate_output_async(
        self, tensor_name: str, memory: int, size: int, alignment: int, stream: int
    ) -> int | None:
        self.calls.append(("reallocate", tensor_name, memory, size))
        if self.fail == "raise":
            raise RuntimeError("no")
        if self.fail == "none":
            return None
        self.memory = torch.empty(size, dtype=torch.uint8)
        return self.memory.data_ptr()

    def notify_shape(self, tensor_name: str, shape: trt.Dims) -> None:
        self.calls.append(("notify", tensor_name, tuple(shape)))


@pytest.fixture
def nonzero(builder: trt.Builder, load: Load) -> trt.IExecutionContext:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (2, 3))
    found = network.add_non_zero(x).get_output(0)
    found.name = "found"
    network.mark_output(found)
    return load(network).create_execution_context()


def test_output_allocator_is_asked_then_told(nonzero: Any) -> None:
    x = torch.tensor([[0.0, 1.0, 0.0], [2.0, 0.0, 3.0]])
    allocator = Allocator()
    nonzero.set_tensor_address("x", x.data_ptr())
    assert nonzero.set_output_allocator("found", allocator)
    assert nonzero.get_output_allocator("found") is allocator
    assert tuple(nonzero.get_tensor_shape("found")) == (2, -1)
    assert nonzero.get_max_output_size("found") == 2 * 6 * 4
    assert nonzero.execute_async_v3(0)
    assert allocator.calls == [("reallocate", "found", 0, 24), ("notify", "found", (2, 3))]
    assert allocator.memory is not None
    assert allocator.memory.view(torch.int32).tolist() == [0, 1, 1, 1, 0, 2]
    x.zero_()
    assert nonzero.execute_async_v3(0)
    assert allocator.calls[2][3] == 1, "even an empty output asks for a byte"
    assert allocator.calls[3] == ("notify", "found", (2, 0))


@pytest.mark.parametrize("fail", ["none", "raise"])
def test_an_allocator_that_fails_fails_the_run(nonzero: Any, logger: Any, fail: str) -> None:
    x = torch.ones(2, 3)
    nonzero.set_tensor_address("x", x.data_ptr())
    nonzero.set_output_allocator("found", Allocator(fail))
    assert not nonzero.execute_async_v3(0)
    assert "output allocator of 'found'" in logger.errors[-1]
    assert not nonzero.set_output_allocator("x", Allocator())


def test_without_allocator_the_bound_memory_is_used(nonzero: Any) -> None:
    x, found = torch.eye(2, 3), torch.full((12,), -1, dtype=torch.int32)
    nonzero.set_tensor_address("x", x.data_ptr())
    nonzero.set_tensor_address("found", found.data_ptr())
    assert nonzero.execute_async_v3(0)
    assert found.tolist() == [0, 1, 0, 1] + [-1] * 8


def _choice(network: Any, *, is_bounded: bool) -> Any:
    """Rows of an input, or those rows twice; without a bound where an inner loop decides how many."""
    x, condition = network.add_input("x", trt.float32, (2, 3)), network.add_input("c", trt.bool, ())
    conditional = network.add_if_conditional()
    conditional.set_condition(condition)
    inner = conditional.add_input(x).get_output(0)
    twice = network.add_concatenation([inner, inner]).get_output(0)
    if not is_bounded:
        second = network.add_if_conditional()
        second.set_condition(condition)
        again = second.add_input(twice).get_output(0)
        more = network.add_concatenation([again, again]).get_output(0)
        twice = second.add_output(more, again).get_output(0)
    once = network.add_activation(inner, trt.ActivationType.RELU).get_output(0)
    found = conditional.add_output(twice, once).get_output(0)
    found.name = "found"
    network.mark_output(found)
    return network


def test_a_conditional_is_as_large_as_its_larger_branch(network: Any, load: Load) -> None:
    """Memory of that size is enough whatever the condition says, and nothing behind it is touched."""
    context = load(_choice(network, is_bounded=True)).create_execution_context()
    assert tuple(context.get_tensor_shape("found")) == (-1, 3)
    assert context.get_max_output_size("found") == 4 * 3 * 4
    x, found = torch.arange(6.0).reshape(2, 3), guarded(torch.full((4, 3), -1.0))
    context.set_tensor_address("x", x.data_ptr())
    context.set_tensor_address("found", found.data_ptr())
    for choice, wanted in ((False, [0, 1, 2, 3, 4, 5, -1, -1, -1, -1, -1, -1]), (True, [0, 1, 2, 3, 4, 5] * 2)):
        condition = torch.tensor(choice)
        context.set_tensor_address("c", condition.data_ptr())
        assert context.execute_async_v3(0)
        assert found.flatten().tolist() == wanted


def test_an_output_without_a_bound_wants_an_allocator(network: Any, load: Load, logger: Any) -> None:
    """Nobody was told a size that would be enough, so nothing is computed, and nothing is written."""
    context = load(_choice(network, is_bounded=False)).create_execution_context()
    assert context.get_max_output_size("found") == -1
    x, condition, found = torch.ones(2, 3), torch.tensor(True), guarded(torch.zeros(1))
    for name, tensor in (("x", x), ("c", condition), ("found", found)):
        context.set_tensor_address(name, tensor.data_ptr())
    assert not context.execute_async_v3(0)
    assert "'found' depends on data and has no bound" in logger.errors[-1]
    allocator = Allocator()
    assert context.set_output_allocator("found", allocator)
    assert context.execute_async_v3(0)
    assert allocator.calls[-1] == ("notify", "found", (8, 3))
