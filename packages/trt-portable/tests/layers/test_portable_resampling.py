"""Resizing and sampling, against sums over explicit places."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trt_portable as trt

C = trt.ResizeCoordinateTransformation
I = trt.InterpolationMode  # noqa: E741 (an interpolation, not a one)
N = trt.ResizeRoundMode
RELAXED = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SPATIAL = [(0, 2), (0, 3)]


def _source(x: int, wanted: int, had: int, mapping: Any) -> float:
    if mapping is C.ALIGN_CORNERS:
        return x * (had - 1) / (wanted - 1) if wanted > 1 else 0.0
    return x * had / wanted if mapping is C.ASYMMETRIC else (x + 0.5) * had / wanted - 0.5


def _cubic(x: float, a: float) -> float:
    x = abs(x)
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a if x < 2 else 0.0


def _matrix(
    had: int, wanted: int, mode: Any, mapping: Any, rounding: Any, a: float, outside: bool
) -> np.ndarray[Any, Any]:
    """The weights of the inputs (columns) in every output (row), straight from the formulas."""
    matrix = np.zeros((wanted, had))
    rounders = {
        N.HALF_UP: lambda v: math.floor(v + 0.5),
        N.HALF_DOWN: lambda v: math.ceil(v - 0.5),
        N.FLOOR: math.floor,
        N.CEIL: math.ceil,
    }
    for row in range(wanted):
        at = _source(row, wanted, had, mapping)
        if mode is I.NEAREST:
            at = float(np.float32(at))
            matrix[row, min(max(rounders[rounding](at), 0), had - 1)] = 1
            continue
        base = math.floor(at)
        taps = {0: 1 - (at - base), 1: at - base}
        if mode is I.CUBIC:
            taps = {k: _cubic(at - base - k, a) for k in (-1, 0, 1, 2)}
        if outside and mode is I.CUBIC:
            taps = {k: weight for k, weight in taps.items() if 0 <= base + k < had}
            taps = {k: weight / sum(taps.values()) for k, weight in taps.items()}
        for offset, weight in taps.items():
            matrix[row, min(max(base + offset, 0), had - 1)] += weight
    return matrix


@RELAXED
@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    mode=st.sampled_from(list(I)),
    mapping=st.sampled_from(list(C)),
    rounding=st.sampled_from(list(N)),
    coefficient=st.sampled_from([-0.75, -0.5]),
    outside=st.booleans(),
    dynamic=st.booleans(),
)
def test_resize(
    run_network: Any,
    size: Any,
    mode: Any,
    mapping: Any,
    rounding: Any,
    coefficient: float,
    outside: bool,
    dynamic: bool,
) -> None:
    x = torch.randn(1, 2, 4, 6)

    def define(network: Any, tensor: Any) -> Any:
        layer = network.add_resize(tensor)
        layer.shape = (1, 2, *size)
        layer.resize_mode, layer.coordinate_transformation, layer.nearest_rounding = mode, mapping, rounding
        layer.cubic_coeff, layer.exclude_outside = coefficient, outside
        return layer

    (found,) = run_network(define, x, dynamic=SPATIAL if dynamic else ())
    rows, columns = (
        np.eye(had) if had == wanted else _matrix(had, wanted, mode, mapping, rounding, coefficient, outside)
        for had, wanted in zip((4, 6), size, strict=True)
    )
    wanted = np.einsum("ri,ncij,qj->ncrq", rows, x.double().numpy(), columns)
    # Coordinates are computed in float32; a tie may round either way only where it is exact.
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-4)


def test_resize_by_scales_and_by_a_tensor(run_network: Any, constant: Any) -> None:
    x = torch.randn(1, 2, 4, 5)

    def by_scales(network: Any, tensor: Any) -> Any:
        layer = network.add_resize(tensor)
        layer.scales = [1, 1, 2, 1.5]
        return layer

    assert run_network(by_scales, x, dynamic=SPATIAL)[0].shape == (1, 2, 8, 7)

    def by_tensor(network: Any, tensor: Any) -> Any:
        layer = network.add_resize(tensor)
        layer.set_input(1, constant(network, [1, 2, 3, 3], np.int32))
        return layer

    torch.testing.assert_close(run_network(by_tensor, x)[0], F.interpolate(x, (3, 3)))


@pytest.mark.parametrize("mode", [I.NEAREST, I.LINEAR])
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("outside", [trt.SampleMode.FILL, trt.SampleMode.CLAMP])
def test_grid_sample(run_network: Any, mode: Any, corners: bool, outside: Any) -> None:
    x, grid = torch.randn(1, 1, 3, 4), torch.rand(1, 2, 2, 2) * 3 - 1.5

    def define(network: Any, tensor: Any, places: Any) -> Any:
        layer = network.add_grid_sample(tensor, places)
        layer.interpolation_mode, layer.align_corners, layer.sample_mode = mode, corners, outside
        return layer

    (found,) = run_network(define, x, grid, dynamic=[(0, 0), (1, 0)])

    def read(row: int, column: int) -> float:
        inside = 0 <= row < 3 and 0 <= column < 4
        if not inside and outside is trt.SampleMode.FILL:
            return 0.0
        return x[0, 0, min(max(row, 0), 2), min(max(column, 0), 3)].item()

    for i, j in itertools.product(range(2), range(2)):
        place = []
        for value, extent in zip(grid[0, i, j].tolist(), (4, 3), strict=True):
            at = (value + 1) / 2 * (extent - 1) if corners else ((value + 1) * extent - 1) / 2
            place.append(min(max(at, 0), extent - 1) if outside is trt.SampleMode.CLAMP else at)
        column, row = place
        if mode is I.NEAREST:
            wanted = read(round(row), round(column))
        else:
            top, left = math.floor(row), math.floor(column)
            wanted = sum(
                read(top + a, left + b) * (1 - abs(row - top - a)) * (1 - abs(column - left - b))
                for a, b in itertools.product((0, 1), (0, 1))
            )
        assert found[0, 0, i, j].item() == pytest.approx(wanted, abs=1e-4)
