"""Pointwise layers against formulas written out in float64, over types, ranks and dynamic extents."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trt_portable as trt
from trt_portable.dtypes import FROM_TORCH

A = trt.ActivationType
U = trt.UnaryOperation
E = trt.ElementWiseOperation
RELAXED = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
FLOATS = [torch.float32, torch.float16, torch.bfloat16]
# One rounding of the result type, and some for intermediate ones.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SHAPES = st.lists(st.integers(0, 4), min_size=0, max_size=4)

ACTIVATIONS: dict[Any, Callable[[torch.Tensor, float, float], torch.Tensor]] = {
    A.RELU: lambda x, a, b: (x + x.abs()) / 2,
    A.SIGMOID: lambda x, a, b: 1 / (1 + (-x).exp()),
    A.TANH: lambda x, a, b: (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()),
    A.LEAKY_RELU: lambda x, a, b: (x >= 0) * x + (x < 0) * a * x,
    A.ELU: lambda x, a, b: (x >= 0) * x + (x < 0) * a * (x.exp() - 1),
    A.SELU: lambda x, a, b: (x > 0) * b * x + (x <= 0) * b * (a * x.exp() - a),
    A.SOFTSIGN: lambda x, a, b: x / (1 + x.abs()),
    A.SOFTPLUS: lambda x, a, b: a * ((b * x).exp() + 1).log(),
    A.CLIP: lambda x, a, b: torch.maximum(torch.full_like(x, a), torch.minimum(torch.full_like(x, b), x)),
    A.HARD_SIGMOID: lambda x, a, b: (a * x + b).clamp(0, 1),
    A.SCALED_TANH: lambda x, a, b: a * torch.tanh(b * x),
    A.THRESHOLDED_RELU: lambda x, a, b: (x > a) * x,
    A.GELU_ERF: lambda x, a, b: 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5))),
    A.GELU_TANH: lambda x, a, b: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (0.044715 * x**3 + x))),
}
UNARY: dict[Any, Callable[[torch.Tensor], torch.Tensor]] = {
    U.EXP: torch.exp,
    U.LOG: torch.log,
    U.SQRT: lambda x: x**0.5,
    U.RECIP: lambda x: 1 / x,
    U.ABS: lambda x: (x * x) ** 0.5,
    U.NEG: lambda x: 0 - x,
    U.SIN: torch.sin,
    U.COS: torch.cos,
    U.TAN: lambda x: x.sin() / x.cos(),
    U.SINH: lambda x: (x.exp() - (-x).exp()) / 2,
    U.COSH: lambda x: (x.exp() + (-x).exp()) / 2,
    U.ASIN: torch.asin,
    U.ACOS: lambda x: math.pi / 2 - x.asin(),
    U.ATAN: torch.atan,
    U.ASINH: lambda x: (x + (x * x + 1) ** 0.5).log(),
    U.ACOSH: lambda x: (x + (x * x - 1) ** 0.5).log(),
    U.ATANH: lambda x: ((1 + x) / (1 - x)).log() / 2,
    U.CEIL: lambda x: -((-x).floor()),
    U.FLOOR: lambda x: x.floor(),
    U.ERF: torch.erf,
    U.SIGN: lambda x: (x > 0).double() - (x < 0).double(),
    U.ROUND: lambda x: x.round(),
}
DOMAIN = {U.LOG: (0.1, 3), U.SQRT: (0.1, 3), U.RECIP: (0.5, 3), U.ACOSH: (1.5, 3), U.ASIN: (-0.9, 0.9)}
DOMAIN |= {U.ACOS: (-0.9, 0.9), U.ATANH: (-0.9, 0.9), U.TAN: (-1.2, 1.2)}


def _random(shape: list[int], dtype: torch.dtype, low: float = -3, high: float = 3) -> torch.Tensor:
    return (torch.rand(shape, dtype=torch.float64) * (high - low) + low).to(dtype)


def test_the_tables_hold_every_function() -> None:
    assert set(ACTIVATIONS) == set(A)
    assert set(UNARY) | {U.NOT, U.ISINF, U.ISNAN} == set(U)


@pytest.mark.parametrize("kind", list(A))
@RELAXED
@given(shape=SHAPES, dtype=st.sampled_from(FLOATS), dynamic=st.booleans())
def test_activation(run_network: Any, kind: Any, shape: list[int], dtype: torch.dtype, dynamic: bool) -> None:
    x = _random(shape, dtype)

    def define(network: Any, tensor: Any) -> Any:
        layer = network.add_activation(tensor, kind)
        layer.alpha, layer.beta = 0.75, 1.25
        return layer

    (found,) = run_network(define, x, dynamic=dynamic)
    wanted = ACTIVATIONS[kind](x.double(), 0.75, 1.25)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("op", list(UNARY))
@RELAXED
@given(shape=SHAPES, dtype=st.sampled_from(FLOATS), dynamic=st.booleans())
def test_unary(run_network: Any, op: Any, shape: list[int], dtype: torch.dtype, dynamic: bool) -> None:
    x = _random(shape, dtype, *DOMAIN.get(op, (-3, 3)))
    (found,) = run_network(lambda network, tensor: network.add_unary(tensor, op), x, dynamic=dynamic)
    tolerance = 2 * TOLERANCE[dtype]
    torch.testing.assert_close(found.double(), UNARY[op](x.double()), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("op", [U.ABS, U.NEG, U.SIGN])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
def test_unary_of_integers(run_network: Any, op: Any, dtype: torch.dtype) -> None:
    x = torch.tensor([-3, 0, 5], dtype=dtype)
    (found,) = run_network(lambda network, tensor: network.add_unary(tensor, op), x)
    assert found.tolist() == {U.ABS: [3, 0, 5], U.NEG: [3, 0, -5], U.SIGN: [-1, 0, 1]}[op]


def test_predicates(run_network: Any) -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0])
    assert run_network(lambda n, t: n.add_unary(t, U.ISNAN), x)[0].tolist() == [True, False, False, False]
    assert run_network(lambda n, t: n.add_unary(t, U.ISINF), x)[0].tolist() == [False, True, True, False]
    flags = torch.tensor([True, False])
    assert run_network(lambda n, t: n.add_unary(t, U.NOT), flags)[0].tolist() == [False, True]


@st.composite
def _broadcast_pairs(draw: Any) -> tuple[list[int], list[int]]:
    shape = draw(st.lists(st.integers(0, 4), min_size=0, max_size=4))
    left = [1 if draw(st.booleans()) else extent for extent in shape]
    right = [
        extent if mine == 1 else draw(st.sampled_from([1, extent])) for mine, extent in zip(left, shape, strict=True)
    ]
    return left, right


ARITHMETIC: dict[Any, Callable[[Any, Any], Any]] = {
    E.SUM: lambda a, b: a + b,
    E.PROD: lambda a, b: a * b,
    E.MAX: lambda a, b: torch.where(a > b, a, b),
    E.MIN: lambda a, b: torch.where(a < b, a, b),
    E.SUB: lambda a, b: a - b,
    E.DIV: lambda a, b: a / b,
    E.POW: lambda a, b: (a.abs().log() * b).exp(),
    E.FLOOR_DIV: lambda a, b: (a / b).floor(),
}


@pytest.mark.parametrize("op", list(ARITHMETIC))
@RELAXED
@given(shapes=_broadcast_pairs(), dtype=st.sampled_from(FLOATS), dynamic=st.booleans())
def test_arithmetic(
    run_network: Any, op: Any, shapes: tuple[list[int], list[int]], dtype: torch.dtype, dynamic: bool
) -> None:
    left, right = (_random(shape, dtype, 0.5, 3) for shape in shapes)
    (found,) = run_network(lambda n, a, b: n.add_elementwise(a, b, op), left, right, dynamic=dynamic)
    if op is E.FLOOR_DIV:
        wanted = ARITHMETIC[op](left.float(), right.float()).to(dtype).double()
        quotient = left.double() / right.double()
        near = (quotient - quotient.round()).abs() < 2e-2  # rounding may decide which integer it is
        found, wanted = found.double()[~near], wanted[~near]
    else:
        wanted = ARITHMETIC[op](left.double(), right.double())
    tolerance = 4 * TOLERANCE[dtype]
    torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)


@given(
    left=st.integers(-(2**62), 2**62),
    right=st.integers(-(2**31), 2**31).filter(bool),
)
@RELAXED
def test_integer_division_is_exact(run_network: Any, left: int, right: int) -> None:
    a, b = torch.tensor([left]), torch.tensor([right])
    (quotient,) = run_network(lambda n, x, y: n.add_elementwise(x, y, E.DIV), a, b)
    (floor,) = run_network(lambda n, x, y: n.add_elementwise(x, y, E.FLOOR_DIV), a, b)
    magnitude = abs(left) // abs(right)
    assert quotient.item() == (magnitude if (left < 0) == (right < 0) else -magnitude)
    assert floor.item() == left // right


def test_comparisons_and_logic(run_network: Any) -> None:
    a, b = torch.tensor([1, 2, 3], dtype=torch.int32), torch.tensor([3, 2, 1], dtype=torch.int32)
    for op, wanted in ((E.EQUAL, [0, 1, 0]), (E.GREATER, [0, 0, 1]), (E.LESS, [1, 0, 0])):
        (found,) = run_network(lambda n, x, y, op=op: n.add_elementwise(x, y, op), a, b)
        assert found.dtype is torch.bool
        assert found.int().tolist() == wanted
    p, q = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    for op, wanted in ((E.AND, [1, 0, 0, 0]), (E.OR, [1, 1, 1, 0]), (E.XOR, [0, 1, 1, 0])):
        (found,) = run_network(lambda n, x, y, op=op: n.add_elementwise(x, y, op), p, q)
        assert found.int().tolist() == wanted


def test_nan_is_dropped_where_tensorrt_drops_it(run_network: Any) -> None:
    nan = torch.tensor([float("nan"), 1.0])
    two = torch.tensor([2.0, float("nan")])
    assert run_network(lambda n, x, y: n.add_elementwise(x, y, E.MIN), nan, two)[0].tolist() == [2.0, 1.0]
    assert run_network(lambda n, x, y: n.add_elementwise(x, y, E.MAX), nan, two)[0].tolist() == [2.0, 1.0]

    def clip(network: Any, tensor: Any) -> Any:
        layer = network.add_activation(tensor, A.CLIP)
        layer.alpha, layer.beta = -1.0, 0.5
        return layer

    assert run_network(clip, nan)[0].tolist() == [-1.0, 0.5]


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float16, 1e6), (torch.float32, 1e300)])
def test_a_bound_that_the_type_cannot_hold_is_none(
    network: Any, load: Any, execute: Any, dtype: torch.dtype, limit: float
) -> None:
    x = network.add_input("x", FROM_TORCH[dtype], (4,))
    is_nan = network.add_unary(x, U.ISNAN).get_output(0)
    for name, (low, high) in {"below": (0, limit), "above": (-limit, 0), "clamp": (-limit, 1)}.items():
        layer = network.add_activation(x, A.CLIP)
        layer.alpha, layer.beta = low, high
        y = layer.get_output(0)
        y = network.add_select(is_nan, x, y).get_output(0) if name == "clamp" else y
        y.name = name
        network.mark_output(y)
    greatest = torch.finfo(dtype).max
    given = torch.tensor([-greatest, -1, 2, torch.inf], dtype=dtype)
    found = execute(load(network).create_execution_context(), {"x": given})
    assert found["below"].tolist() == [0, 0, 2, torch.inf]
    assert found["above"].tolist() == [-greatest, -1, 0, 0]
    assert found["clamp"].tolist() == [-greatest, -1, 1, 1]


def test_clip_with_exchanged_bounds_gives_the_lower_one(run_network: Any) -> None:
    def clip(network: Any, tensor: Any) -> Any:
        layer = network.add_activation(tensor, A.CLIP)
        layer.alpha, layer.beta = 2.0, 1.0
        return layer

    assert run_network(clip, torch.tensor([0.0, 5.0]))[0].tolist() == [2.0, 2.0]


@RELAXED
@given(
    shapes=_broadcast_pairs(), dtype=st.sampled_from([torch.float32, torch.int64, torch.bool]), dynamic=st.booleans()
)
def test_select(run_network: Any, shapes: tuple[list[int], list[int]], dtype: torch.dtype, dynamic: bool) -> None:
    condition = torch.rand(shapes[0]) > 0.5
    chosen, other = (torch.randint(0, 2, shape).to(dtype) for shape in reversed(shapes))
    (found,) = run_network(lambda n, *t: n.add_select(*t), condition, chosen, other, dynamic=dynamic)
    assert torch.equal(found, torch.where(condition, chosen, other))


def test_parametric_relu(run_network: Any) -> None:
    x, slopes = torch.randn(2, 3, 4), torch.rand(1, 3, 1)
    (found,) = run_network(lambda n, a, b: n.add_parametric_relu(a, b), x, slopes)
    torch.testing.assert_close(found, torch.nn.functional.prelu(x, slopes.reshape(3)))


def test_infinite_coefficients_are_reported_and_ignored(network: Any, logger: Any) -> None:
    x = network.add_input("x", trt.float32, (2,))
    layer = network.add_activation(x, A.CLIP)
    layer.alpha = 0.25
    layer.alpha = float("inf")
    assert layer.alpha == 0.25
    assert "finite" in logger.errors[0]


def test_large_tensors_have_the_same_gelu(run_network: Any) -> None:
    """Many elements on the CPU take other kernels than few."""
    extremes = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 3e19, -3e19, 3e38, -3e38, torch.inf, torch.nan])
    x = torch.cat([extremes, torch.linspace(-30, 30, 1 << 13)])

    def build(network: Any, x: Any) -> Any:
        return network.add_activation(x, trt.ActivationType.GELU_TANH)

    expected = torch.nn.functional.gelu(x.double(), approximate="tanh").float()
    (found,) = run_network(build, x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-7, equal_nan=True)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("LEAKY_RELU", F.leaky_relu),
        ("ELU", F.elu),
        ("SELU", F.selu),
        ("SOFTPLUS", F.softplus),
        ("HARD_SIGMOID", lambda x: torch.clamp(0.2 * x + 0.5, 0, 1)),
        ("SCALED_TANH", torch.tanh),
        ("THRESHOLDED_RELU", lambda x: torch.where(x > 1, x, 0)),
    ],
)
def test_coefficients_that_are_not_set(
    network: Any, load: Any, execute: Any, kind: str, wanted: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """As ONNX has them, whether the kind is given at first or set later; what is set stays with another kind."""
    x = network.add_input("x", trt.float32, (7,))
    first = network.add_activation(x, getattr(trt.ActivationType, kind))
    later = network.add_activation(x, trt.ActivationType.RELU)
    assert (later.alpha, later.beta) == (0.0, 0.0)
    later.type = getattr(trt.ActivationType, kind)
    for layer in (first, later):
        network.mark_output(layer.get_output(0))
    given = torch.linspace(-3, 3, 7)
    for found in execute(load(network).create_execution_context(), {"x": given}).values():
        torch.testing.assert_close(found, wanted(given))
    later.alpha = 0.75
    later.type = trt.ActivationType.SELU
    assert later.alpha == 0.75
