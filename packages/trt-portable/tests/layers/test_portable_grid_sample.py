"""Grid sampling where extents are known only at run time."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trt_portable as trt

MODES = {
    trt.InterpolationMode.NEAREST: "nearest",
    trt.InterpolationMode.LINEAR: "bilinear",
    trt.InterpolationMode.CUBIC: "bicubic",
}
PADDING = {
    trt.SampleMode.FILL: "zeros",
    trt.SampleMode.CLAMP: "border",
    trt.SampleMode.REFLECT: "reflection",
}
OPEN = {
    "height": [(0, 2)],
    "width": [(0, 3)],
    "image": [(0, 2), (0, 3)],
    "batch": [(0, 0), (1, 0)],
    "grid": [(1, 1), (1, 2)],
    "everything": True,
}


@pytest.mark.sampled
@pytest.mark.parametrize("dynamic", OPEN)
@pytest.mark.parametrize(("mode", "outside"), list(itertools.product(MODES, PADDING)))
def test_every_mode_with_open_extents(run_network: Any, mode: Any, outside: Any, dynamic: str) -> None:
    for corners, rank in itertools.product([False, True], [4, 5]):
        if rank == 5 and (mode is trt.InterpolationMode.CUBIC or dynamic == "everything"):
            continue
        x = torch.randn(2, 3, 4, 5, *[3] * (rank - 4))
        grid = torch.rand(2, 2, 3, *[2] * (rank - 4), rank - 2) * 3 - 1.5

        def define(network: Any, tensor: Any, places: Any, corners: bool = corners) -> Any:
            layer = network.add_grid_sample(tensor, places)
            layer.interpolation_mode, layer.align_corners, layer.sample_mode = mode, corners, outside
            return layer

        open_ = OPEN[dynamic] if dynamic != "everything" else [*((0, a) for a in range(4)), (1, 0), (1, 1), (1, 2)]
        (found,) = run_network(define, x, grid, dynamic=open_)
        assert torch.equal(found, F.grid_sample(x, grid, MODES[mode], PADDING[outside], corners))


def test_batches_that_differ_are_refused(network: Any, logger: Any) -> None:
    x, grid = network.add_input("x", trt.float32, (2, 3, -1, 5)), network.add_input("g", trt.float32, (4, 2, 2, 2))
    layer = network.add_grid_sample(x, grid)
    assert layer is None or not layer.get_output(0).shape._is_valid
    assert logger.errors
