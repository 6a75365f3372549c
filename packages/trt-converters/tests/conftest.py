"""Blocks to convert, made from plain functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx

import trt_portable
from trt_core.sizes.ranges import Bounds, ShapeRanges

MakeBlock = Callable[..., fx.GraphModule]


@pytest.fixture(autouse=True)
def _documented_rules() -> Iterator[None]:
    """Converters keep to TensorRT's documentation: nothing that the portable provider accepts beyond it."""
    trt_portable.set_strict(True)
    yield
    trt_portable.set_strict(False)


@pytest.fixture
def make_block() -> MakeBlock:
    """Traces a function of tensors to a graph with metadata; extents are symbolic when `symbolic` is set."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def make(function: Callable[..., Any], *tensors: torch.Tensor, symbolic: bool = False) -> fx.GraphModule:
        traced = make_fx(function, tracing_mode="symbolic" if symbolic else "fake")(*tensors)
        assert isinstance(traced, fx.GraphModule)
        return traced

    return make


@pytest.fixture
def ranges_of() -> Callable[[fx.GraphModule, Bounds], ShapeRanges]:
    """Gives every symbol of a block the same range."""

    def make(block: fx.GraphModule, bounds: Bounds) -> ShapeRanges:
        extents = [
            extent for node in block.graph.nodes if node.op == "placeholder" for extent in node.meta["val"].shape
        ]
        return ShapeRanges({str(extent.node.expr): bounds for extent in extents if isinstance(extent, torch.SymInt)})

    return make
