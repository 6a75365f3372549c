"""What shape inference knows of extents that only a run tells."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false

import trt_portable as trt
from trt_portable.network.symbols import Symbols


def test_what_one_layer_assumes_of_an_extent_is_not_known_to_the_next() -> None:
    symbols = Symbols()
    extent = symbols.create()
    squared = symbols.integer(extent) // 8
    expression = (squared * squared).node.expr
    with symbols.mode():
        torch._check(symbols.integer(expression) == 1)
        assert guard_or_false(symbols.integer(expression) == 1)
    symbols.settle()
    with symbols.mode():
        assert not guard_or_false(symbols.integer(expression) == 1)
        made = 1 + torch.arange(symbols.integer(expression), device="meta")
    assert made.shape[0].node.expr == expression
    assert symbols.count == 1


def _one_hot(network: Any, x: Any, constant: Any) -> Any:
    places = network.add_cast(x, trt.int32).get_output(0)
    return network.add_one_hot(places, constant(network, [0, 1]), constant(network, 3, np.int32), -1)


def _gather(network: Any, x: Any, constant: Any) -> Any:
    return network.add_gather(x, constant(network, np.zeros((2, 2)), np.int64), 1)


def _unsqueeze(network: Any, x: Any, constant: Any) -> Any:
    return network.add_unsqueeze(x, constant(network, [0], np.int64))


def _einsum(network: Any, x: Any, constant: Any) -> Any:
    return network.add_einsum([x, constant(network, np.ones(2))], "abcdefgh,i->abcdefghi")


@pytest.mark.parametrize("add", [_one_hot, _gather, _unsqueeze, _einsum])
@pytest.mark.parametrize("first", [2, -1])
def test_a_ninth_axis_is_refused(network: Any, constant: Any, logger: Any, first: int, add: Any) -> None:
    layer = add(network, network.add_input("x", trt.float32, (first, *[2] * 7)), constant)
    assert layer is None or not layer.get_output(0).shape._is_valid
    assert "the output has rank 9; 8 is the most" in logger.errors[-1]


@pytest.mark.parametrize("extents", [(2, 1 << 50), (1 << 30, 1 << 30)])
def test_results_larger_than_any_device_are_refused(network: Any, logger: Any, extents: tuple[int, ...]) -> None:
    """Else a library that compiles the network may divide by a product that has overflowed, which ends the process."""
    x = network.add_input("x", trt.float32, (1,) * len(extents))
    layer = network.add_slice(x, (0,) * len(extents), [abs(extent) for extent in extents], (0,) * len(extents))
    assert layer is None or not layer.get_output(0).shape._is_valid
    assert "elements; 1099511627776 are the most" in logger.errors[-1]
