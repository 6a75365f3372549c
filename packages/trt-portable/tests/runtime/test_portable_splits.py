"""Slices that lie side by side are one split; others, and those of shapes, stay what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import trt_portable as trt
from trt_portable.fusion.programs import Split

RANGES = {"x": ((1, 2, 6), (2, 2, 6), (3, 2, 6))}


def _slices(network: Any, x: Any, windows: list[tuple[int, int, int]]) -> None:
    """Marks a slice per window (start, size, stride) of the last axis as an output."""
    for index, (start, size, stride) in enumerate(windows):
        layer = network.add_slice(x, (start,), (size,), (stride,))
        layer.axes = (2,)
        layer.get_output(0).name = f"y{index}"
        network.mark_output(layer.get_output(0))


def _splits(engine: Any) -> int:
    return sum(isinstance(compute, Split) for compute, *_ in engine._state.program.steps)


@pytest.mark.parametrize("sizes", [(2, 4), (4, 1, 1), (1, 2, 3), (3, 1)])
@pytest.mark.parametrize("turned", [False, True])
def test_slices_side_by_side(network: Any, load: Any, execute: Any, sizes: tuple[int, ...], turned: bool) -> None:
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    windows = [(start, size, 1) for start, size in zip(starts, sizes, strict=True)][:: -1 if turned else 1]
    _slices(network, network.add_input("x", trt.float32, (-1, 2, 6)), windows)
    engine = load(network, RANGES)
    assert len(engine._state.program.steps) == 1 and _splits(engine) == 1
    for rows in (2, 3):
        x = torch.randn(rows, 2, 6)
        found = execute(engine.create_execution_context(), {"x": x})
        for index, (start, size, _) in enumerate(windows):
            assert torch.equal(found[f"y{index}"], x[..., start : start + size])


@pytest.mark.parametrize(
    "windows",
    [[(0, 3, 1)], [(1, 2, 1), (3, 3, 1)], [(0, 3, 1), (2, 4, 1)], [(0, 2, 1), (3, 3, 1)], [(0, 3, 2), (3, 3, 1)]],
)
def test_other_slices_stay(network: Any, load: Any, execute: Any, windows: list[tuple[int, int, int]]) -> None:
    _slices(network, network.add_input("x", trt.float32, (-1, 2, 6)), windows)
    engine = load(network, RANGES)
    assert len(engine._state.program.steps) == len(windows) and not _splits(engine)
    x = torch.randn(2, 2, 6)
    found = execute(engine.create_execution_context(), {"x": x})
    for index, (start, size, stride) in enumerate(windows):
        assert torch.equal(found[f"y{index}"], x[..., start : start + size * stride : stride][..., :size])


def test_parts_of_shapes_stay_numbers(network: Any, load: Any, execute: Any) -> None:
    """An image turned by parts of its own shape: (N, 2, 6) as (6, 2 * N)."""
    x = network.add_input("x", trt.float32, (-1, 2, 6))
    shape = network.add_shape(x).get_output(0)
    parts = [network.add_slice(shape, (start,), (size,), (1,)).get_output(0) for start, size in ((0, 2), (2, 1))]
    rest = network.add_reduce(parts[0], trt.ReduceOperation.PROD, 1, True).get_output(0)
    turned = network.add_shuffle(x)
    turned.set_input(1, network.add_concatenation([parts[1], rest]).get_output(0))
    network.mark_output(turned.get_output(0))
    engine = load(network, RANGES)
    values = torch.from_numpy(np.arange(36, dtype=np.float32).reshape(3, 2, 6))
    (found,) = execute(engine.create_execution_context(), {"x": values}).values()
    assert torch.equal(found, values.reshape(6, 6))
