"""Resizing by scales: the given factor, not the ratio of the extents, says where samples lie."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import trt_portable as trt

C = trt.ResizeCoordinateTransformation
MODE = trt.InterpolationMode
N = trt.ResizeRoundMode
RELAXED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

ROUNDING = {
    N.HALF_UP: lambda v: math.floor(v + 0.5),
    N.HALF_DOWN: lambda v: math.ceil(v - 0.5),
    N.FLOOR: math.floor,
    N.CEIL: math.ceil,
}


def _cubic(x: float, a: float = -0.75) -> float:
    x = abs(x)
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a if x < 2 else 0.0


def _weights(had: int, scale: float, mode: Any, mapping: Any, rounding: Any) -> np.ndarray[Any, Any]:
    """The weights of the inputs (columns) in every output (row), from the formulas."""
    factor = np.float32(scale)
    wanted = math.floor(np.float32(had) * factor)
    rows = np.zeros((wanted, had))
    for row in range(wanted):
        if mapping is C.ALIGN_CORNERS:
            at = row * (had - 1) / (wanted - 1) if wanted > 1 else 0.0
        else:
            half = np.float32(0.5 if mapping is C.HALF_PIXEL else 0.0)
            at = float((np.float32(row) + half) / factor - half)
        if mode is MODE.NEAREST:
            taps = {ROUNDING[rounding](float(np.float32(at))): 1.0}
        else:
            base = math.floor(at)
            around = {0: 1 - (at - base), 1: at - base}
            if mode is MODE.CUBIC:
                around = {k: _cubic(at - base - k) for k in (-1, 0, 1, 2)}
            taps = {base + k: weight for k, weight in around.items()}
        for place, weight in taps.items():
            rows[row, min(max(place, 0), had - 1)] += weight
    return rows


def _define(mode: Any, mapping: Any, rounding: Any, scales: Any) -> Any:
    def define(network: Any, tensor: Any) -> Any:
        layer = network.add_resize(tensor)
        layer.scales = scales
        layer.resize_mode, layer.coordinate_transformation, layer.nearest_rounding = mode, mapping, rounding
        return layer

    return define


def test_the_given_scale_is_the_step(run_network: Any) -> None:
    (found,) = run_network(_define(MODE.LINEAR, C.HALF_PIXEL, N.FLOOR, [1.5]), torch.arange(5.0))
    wanted = [0, 0.5, 7 / 6, 11 / 6, 2.5, 19 / 6, 23 / 6]
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6)


SCALES = st.sampled_from([0.3, 0.5, 0.7, 0.999, 1.0, 1.1, 1.25, 1.3, 1.5, 7 / 3, 2.0, 2.9, 3.0])


@RELAXED
@given(
    scales=st.tuples(SCALES, SCALES),
    mode=st.sampled_from(list(MODE)),
    mapping=st.sampled_from(list(C)),
    rounding=st.sampled_from(list(N)),
    dynamic=st.booleans(),
    rank=st.sampled_from([2, 3, 4]),
)
@example(scales=(1.1, 0.3), mode=MODE.LINEAR, mapping=C.HALF_PIXEL, rounding=N.FLOOR, dynamic=False, rank=4)
@example(scales=(1.1, 1.1), mode=MODE.CUBIC, mapping=C.HALF_PIXEL, rounding=N.FLOOR, dynamic=True, rank=4)
@example(scales=(1.0, 1.1), mode=MODE.LINEAR, mapping=C.HALF_PIXEL, rounding=N.FLOOR, dynamic=False, rank=3)
def test_every_mode_and_mapping_follows_the_scales(
    run_network: Any, scales: Any, mode: Any, mapping: Any, rounding: Any, dynamic: bool, rank: int
) -> None:
    x = torch.randn([*[2, 3][: rank - 2], 5, 7])
    axes = [(0, rank - 2), (0, rank - 1)] if dynamic else ()
    factors = [1.0] * (rank - 2) + list(scales)
    (found,) = run_network(_define(mode, mapping, rounding, factors), x, dynamic=axes)
    rows, columns = (_weights(had, scale, mode, mapping, rounding) for had, scale in zip((5, 7), scales, strict=True))
    wanted = np.einsum("ri,...ij,qj->...rq", rows, x.double().numpy(), columns)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.sampled
@pytest.mark.parametrize("extent", [1, 2, 3, 5, 9, 10, 30, 100, 1000])
@pytest.mark.parametrize("scale", [0.1, 0.29, 0.7, 1.1, 7 / 3, 1 / 3, 2.5, 4.0])
def test_extents_are_those_of_a_product_in_float32_however_they_become_known(
    network: Any, load: Any, extent: int, scale: float
) -> None:
    wanted = math.floor(np.float32(extent) * np.float32(scale))
    fixed, open_ = network.add_input("fixed", trt.float32, (extent,)), network.add_input("open", trt.float32, (-1,))
    for tensor in (fixed, open_):
        layer = network.add_resize(tensor)
        layer.scales = [scale]
        network.mark_output(layer.get_output(0))
    assert tuple(network.get_output(0).shape) == (wanted,)
    engine = load(network, {"open": ((1,), (extent,), (1000,))})
    context = engine.create_execution_context()
    assert context.set_input_shape("open", (extent,))
    assert {tuple(context.get_tensor_shape(engine[at])) for at in (2, 3)} == {(wanted,)}


def test_scales_are_kept_in_float32_and_give_way_to_a_shape(network: Any) -> None:
    layer = network.add_resize(network.add_input("x", trt.float32, (5,)))
    layer.scales = [0.7]
    assert layer.scales == (float(np.float32(0.7)),)
    layer.shape = (9,)
    assert tuple(layer.get_output(0).shape) == (9,)


@pytest.mark.parametrize(
    ("scale", "extent"),
    [*itertools.product([math.inf, math.nan, 1e300, -1.0], [4, -1]), (3e38, 4)],  # 3e38 of 0 elements are none
)
def test_scales_that_make_no_extent_are_refused(network: Any, scale: float, extent: int) -> None:
    layer = network.add_resize(network.add_input("x", trt.float32, (extent,)))
    layer.scales = [scale]
    assert repr(layer.get_output(0).shape) == "(-1 dimensions)"


@pytest.mark.parametrize("factor", [2, 3, 40, 41, 47, 97])
def test_whole_factors_repeat_every_element_exactly(run_network: Any, factor: int) -> None:
    x = torch.arange(60.0).reshape(1, 1, 60)
    (found,) = run_network(_define(MODE.NEAREST, C.ASYMMETRIC, N.FLOOR, [1, 1, factor]), x)
    assert torch.equal(found, x.repeat_interleave(factor, -1))
