"""Scales after convolutions become part of them, where nothing can tell the difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trt_portable as trt

Load = Callable[..., trt.ICudaEngine]


def _network(
    builder: Any, *, groups: int = 1, uniform: bool = False, bias: bool = True, scales: int = 1, dtype: Any = np.float32
) -> tuple[Any, Any]:
    """A convolution of 4 channels to 6 and scales behind it; also the convolution's own result."""
    rng = np.random.default_rng(3)

    def random(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(dtype)

    network = builder.create_network()
    x = network.add_input("x", trt.float32 if dtype == np.float32 else trt.float16, (-1, 4, 6, 6))
    conv = network.add_convolution_nd(x, 6, (3, 3), random(6, 4 // groups, 3, 3), random(6) if bias else None)
    conv.name, conv.num_groups = "conv", groups
    tensor = conv.get_output(0)
    for index in range(scales):
        count = 1 if uniform else 6
        mode = trt.ScaleMode.UNIFORM if uniform else trt.ScaleMode.CHANNEL
        layer = network.add_scale(tensor, mode, random(count), random(count), None)
        layer.name = f"scale {index}"
        tensor = layer.get_output(0)
    network.mark_output(tensor)
    return network, conv


RANGES = {"x": ((1, 4, 6, 6), (2, 4, 6, 6), (4, 4, 6, 6))}


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    groups=st.sampled_from((1, 2)),
    uniform=st.booleans(),
    bias=st.booleans(),
    scales=st.integers(1, 2),
    half=st.booleans(),
)
def test_one_layer_computes_the_same(
    builder: Any, load: Load, execute: Any, groups: int, uniform: bool, bias: bool, scales: int, half: bool
) -> None:
    dtype = np.float16 if half else np.float32
    made = [
        _network(builder, groups=groups, uniform=uniform, bias=bias, scales=scales, dtype=dtype)[0] for _ in range(2)
    ]
    made[0].mark_unfused_tensors_as_debug_tensors()
    plain, folded = load(made[0], RANGES), load(made[1], RANGES)
    assert (plain.num_layers, folded.num_layers) == (1 + scales, 1)
    x = torch.randn(3, 4, 6, 6, dtype=torch.float16 if half else torch.float32)
    (wanted,), (found,) = (execute(e.create_execution_context(), {"x": x}).values() for e in (plain, folded))
    # half: each of the layers rounds to 11 bits, and results are sums of 36 products
    tolerance = {"rtol": 2e-2, "atol": 5e-2} if half else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(found, wanted, **tolerance)


def test_the_inspector_names_both(builder: Any, load: Load) -> None:
    network, _ = _network(builder)
    inspector = load(network, RANGES).create_engine_inspector()
    assert "conv + scale 0" in inspector.get_engine_information(trt.LayerInformationFormat.ONELINE)


@pytest.mark.parametrize("why", ["refit", "output", "debug", "second reader"])
def test_what_others_see_stays(builder: Any, load: Load, why: str) -> None:
    network, conv = _network(builder)
    between = conv.get_output(0)
    if why == "output":
        network.mark_output(between)
    elif why == "debug":
        network.mark_debug(between)
    elif why == "second reader":
        network.mark_output(network.add_activation(between, trt.ActivationType.RELU).get_output(0))
    flags = [trt.BuilderFlag.REFIT] if why == "refit" else []
    assert load(network, RANGES, flags=flags).num_layers == (3 if why == "second reader" else 2)


def test_powers_and_elementwise_scales_stay(builder: Any, load: Load) -> None:
    for mode, count, power in ((trt.ScaleMode.CHANNEL, 6, True), (trt.ScaleMode.ELEMENTWISE, 6 * 4 * 4, False)):
        network = builder.create_network()
        x = network.add_input("x", trt.float32, (-1, 4, 6, 6))
        conv = network.add_convolution_nd(x, 6, (3, 3), np.ones((6, 4, 3, 3), np.float32))
        ones = np.ones(count, np.float32)
        layer = network.add_scale(conv.get_output(0), mode, ones, ones, 2 * ones if power else None)
        network.mark_output(layer.get_output(0))
        assert load(network, RANGES).num_layers == 2


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.tuples(st.sampled_from(("PROD", "SUM")), st.booleans(), st.booleans()), min_size=1, max_size=3),
    bias=st.booleans(),
    grouped=st.booleans(),
)
def test_products_and_sums_with_constants_become_part_of_it(
    builder: Any, load: Load, execute: Any, steps: list[tuple[str, bool, bool]], bias: bool, grouped: bool
) -> None:
    """A step: the operation, whether its constant has a number per channel, and whether it comes first."""
    rng = np.random.default_rng(5)
    network = builder.create_network()
    given_x = network.add_input("x", trt.float32, (-1, 4, 6, 6))
    kernel, shift = rng.standard_normal((6, 2 if grouped else 4, 3, 3)), rng.standard_normal(6)
    conv = network.add_convolution_nd(given_x, 6, (3, 3), kernel.astype(np.float32), shift.astype(np.float32) * bias)
    conv.num_groups = 2 if grouped else 1
    x = torch.randn(3, 4, 6, 6)
    y, wanted = conv.get_output(0), F.conv2d(x, _float(kernel), _float(shift) * bias, groups=conv.num_groups)
    for operation, is_per_channel, comes_first in steps:
        numbers = rng.standard_normal((1, 6 if is_per_channel else 1, 1, 1)).astype(np.float32)
        constant = network.add_constant(numbers.shape, numbers).get_output(0)
        pair = (constant, y) if comes_first else (y, constant)
        y = network.add_elementwise(*pair, getattr(trt.ElementWiseOperation, operation)).get_output(0)
        wanted = (torch.mul if operation == "PROD" else torch.add)(wanted, _float(numbers))
    network.mark_output(y)
    engine = load(network, RANGES)
    assert engine.num_layers == 1
    (found,) = execute(engine.create_execution_context(), {"x": x}).values()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def _float(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.asarray(array)).float()


@pytest.mark.parametrize("shape", [(1, 6, 4, 1), (1, 6, 1, 4), (2, 6, 1, 1)])
def test_constants_of_places_and_images_stay(builder: Any, load: Load, shape: tuple[int, ...]) -> None:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (2, 4, 6, 6))
    conv = network.add_convolution_nd(x, 6, (3, 3), np.ones((6, 4, 3, 3), np.float32))
    constant = network.add_constant(shape, np.ones(shape, np.float32)).get_output(0)
    product = network.add_elementwise(conv.get_output(0), constant, trt.ElementWiseOperation.PROD)
    network.mark_output(product.get_output(0))
    assert load(network).num_layers == 3


def test_an_infinite_factor_stays(builder: Any, load: Load, execute: Any) -> None:
    """0 times infinity is NaN, but a kernel of infinities makes NaN of other numbers, too."""
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (1, 2, 1, 1))
    conv = network.add_convolution_nd(x, 1, (1, 1), np.array([[[[0.0]], [[1.0]]]], np.float32))
    constant = network.add_constant((1, 1, 1, 1), np.array([[[[np.inf]]]], np.float32)).get_output(0)
    product = network.add_elementwise(conv.get_output(0), constant, trt.ElementWiseOperation.PROD)
    network.mark_output(product.get_output(0))
    (found,) = execute(load(network).create_execution_context(), {"x": torch.ones(1, 2, 1, 1)}).values()
    assert found.item() == np.inf


@pytest.mark.parametrize("is_layer", [False, True])
@pytest.mark.parametrize(
    ("weight", "bias", "factor", "x"),
    [
        (0.02, 0.0, 1e-6, 50.0),  # a layer scale at its start: products would have a bit or none
        (0.02, 0.5, -1e-6, 50.0),
        (2.0, 0.0, 4e4, 0.5),  # products would be infinite
        (0.01, 6e4, 2.0, -5.9e4),  # and here the bias
    ],
)
def test_a_factor_whose_products_half_precision_cannot_hold_stays(
    builder: Any, load: Load, execute: Any, weight: float, bias: float, factor: float, x: float, is_layer: bool
) -> None:
    network = builder.create_network()
    given_x = network.add_input("x", trt.float16, (1, 1, 2, 2))
    y = network.add_convolution_nd(given_x, 1, (1, 1), np.array([weight], np.float16), np.array([bias], np.float16))
    number, none = np.array([factor], np.float16), np.zeros(1, np.float16)
    if is_layer:
        last = network.add_scale(y.get_output(0), trt.ScaleMode.UNIFORM, none, number, None)
    else:
        constant = network.add_constant((1, 1, 1, 1), number).get_output(0)
        last = network.add_elementwise(y.get_output(0), constant, trt.ElementWiseOperation.PROD)
    network.mark_output(last.get_output(0))
    engine = load(network)
    assert engine.num_layers == (2 if is_layer else 3)
    value = torch.full((1, 1, 2, 2), x).half()
    (found,) = execute(engine.create_execution_context(), {"x": value}).values()
    middle = torch.tensor(weight).half() * value + torch.tensor(bias).half()
    assert torch.equal(found, middle * torch.tensor(factor).half())
