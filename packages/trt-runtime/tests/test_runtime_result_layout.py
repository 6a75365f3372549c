"""`torch.ops.trt.lay_out`: the order of a result in memory, by which sizes are 1."""

from __future__ import annotations

import pytest
import torch

from trt_core import ExecutionError
from trt_runtime.result_layout import lay_out


@pytest.mark.parametrize(
    ("sizes", "strides"), [((2, 3), (12, 4, 1)), ((1, 3), (1, 8, 2)), ((2, 1), (4, 8, 1)), ((1, 1), (1, 2, 6))]
)
def test_sizes_choose_the_order(sizes: tuple[int, int], strides: tuple[int, ...]) -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    orders = [0, 1, 2, 1, 2, 0, 1, 0, 2, 2, 1, 0]
    found = torch.ops.trt.lay_out(x, orders, sizes)
    assert torch.equal(found, x)
    assert found.stride() == strides
    assert (found.data_ptr() == x.data_ptr()) == (strides == x.stride())


def test_strides_of_axes_of_one_element_change_without_a_copy() -> None:
    x = torch.randn(1, 3, 4)
    found = lay_out(x, [1, 2, 0])
    assert found.stride() == (1, 4, 1)
    assert found.data_ptr() == x.data_ptr()
    assert lay_out(found, [1, 2, 0]) is found


@pytest.mark.parametrize(
    ("orders", "sizes"),
    [
        ([0, 1], ()),
        ([0, 1, 1], ()),
        ([0, 1, 2], (1,)),
        ([0, 1, 2] * 2, ()),
        ([0, 1, 3], ()),
        ([0, 1, 2], (1,) * 20_000),
    ],
)
def test_orders_that_are_none_are_refused(orders: list[int], sizes: tuple[int, ...]) -> None:
    with pytest.raises(ExecutionError, match="are no orders of 3 axes"):
        torch.ops.trt.lay_out(torch.ones(2, 3, 4), orders, sizes)


def test_gradients_pass() -> None:
    x = torch.randn(2, 3, requires_grad=True)
    torch.ops.trt.lay_out(x, [1, 0], []).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.ones(2, 3))
