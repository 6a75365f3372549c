"""Reductions, softmax, top-k, running sums, products and sources, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trt_portable as trt

R = trt.ReduceOperation
O = trt.MatrixOperation  # noqa: E741 (a matrix operation, not a zero)
RELAXED = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NUMPY = {R.SUM: np.sum, R.PROD: np.prod, R.MAX: np.max, R.MIN: np.min, R.AVG: np.mean}


@pytest.mark.parametrize("op", list(NUMPY))
@RELAXED
@given(
    shape=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    data=st.data(),
    keep=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.int32, torch.int64]),
    dynamic=st.booleans(),
)
def test_reduce(
    run_network: Any, op: Any, shape: list[int], data: Any, keep: bool, dtype: torch.dtype, dynamic: bool
) -> None:
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    x = torch.randint(-4, 5, shape).to(dtype)
    mask = sum(1 << axis for axis in axes)
    (found,) = run_network(lambda n, t: n.add_reduce(t, op, mask, keep), x, dynamic=dynamic)
    wanted = NUMPY[op](x.numpy().astype(np.float64), axis=tuple(sorted(axes)), keepdims=keep)
    if not dtype.is_floating_point:
        wanted = np.trunc(wanted)
    np.testing.assert_allclose(found.double().numpy(), wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("op", "dtype", "wanted"),
    [
        (R.SUM, torch.float32, 0.0),
        (R.PROD, torch.int32, 1),
        (R.MAX, torch.float32, -float("inf")),
        (R.MIN, torch.int32, 2**31 - 1),
        (R.MAX, torch.int8, -128),
        (R.AVG, torch.int32, 0),
    ],
)
def test_empty_reductions_give_the_identity(run_network: Any, op: Any, dtype: torch.dtype, wanted: float) -> None:
    (found,) = run_network(lambda n, t: n.add_reduce(t, op, 2, False), torch.zeros(2, 0, dtype=dtype))
    assert found.tolist() == [wanted, wanted]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax(run_network: Any, dtype: torch.dtype, axis: int) -> None:
    x = torch.randn(2, 3, 4).to(dtype)

    def define(network: Any, tensor: Any) -> Any:
        layer = network.add_softmax(tensor)
        layer.axes = 1 << axis
        return layer

    (found,) = run_network(define, x, dynamic=[(0, 0)])
    powers = x.double().exp()
    tolerance = torch.finfo(dtype).eps  # one rounding of numbers below 1
    torch.testing.assert_close(found.double(), powers / powers.sum(axis, True), rtol=tolerance, atol=tolerance)


def test_softmax_defaults_to_the_third_axis_from_the_end(network: Any) -> None:
    x = network.add_input("x", trt.float32, (2, 3, 4, 5))
    assert network.add_softmax(x).axes == 1 << 1


def test_ragged_softmax_is_zero_beyond_the_bounds(run_network: Any) -> None:
    x = torch.randn(1, 2, 4)
    bounds = torch.tensor([[[2], [4]]], dtype=torch.int32)
    (found,) = run_network(lambda n, a, b: n.add_ragged_softmax(a, b), x, bounds)
    torch.testing.assert_close(found[0, 0], torch.cat((x[0, 0, :2].softmax(0), torch.zeros(2))))
    torch.testing.assert_close(found[0, 1], x[0, 1].softmax(0))


@pytest.mark.parametrize("op", list(trt.TopKOperation))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.int64])
@pytest.mark.parametrize("dynamic", [False, True])
def test_topk(run_network: Any, op: Any, dtype: torch.dtype, dynamic: bool) -> None:
    x = torch.randperm(24).reshape(4, 6).to(dtype)

    def define(network: Any, tensor: Any) -> Any:
        layer = network.add_topk(tensor, op, 3, 2, trt.int64)
        return [layer.get_output(0), layer.get_output(1)]

    values, indices = run_network(define, x, dynamic=[(0, 0)] if dynamic else ())
    wanted = np.argsort(x.numpy() * (-1 if op is trt.TopKOperation.MAX else 1), axis=1)[:, :3]
    assert np.array_equal(indices.numpy(), wanted)
    assert np.array_equal(values.numpy(), np.take_along_axis(x.numpy(), wanted, 1))


def test_topk_with_computed_k(run_network: Any) -> None:
    def define(network: Any, tensor: Any, count: Any) -> Any:
        layer = network.add_topk(tensor, trt.TopKOperation.MAX, 1, 2)
        layer.set_input(1, count)
        assert layer.k == -1
        return layer

    x, k = torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor(2, dtype=torch.int32)
    assert run_network(define, x, k)[0].tolist() == [[3.0, 2.0]]


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_running_sums(run_network: Any, constant: Any, exclusive: bool, reverse: bool, dtype: torch.dtype) -> None:
    x = torch.tensor([[1, 2, 3], [4, 5, 6]]).to(dtype)

    def define(network: Any, tensor: Any) -> Any:
        axis = constant(network, -1, np.int32)
        return network.add_cumulative(tensor, axis, trt.CumulativeOperation.SUM, exclusive, reverse)

    (found,) = run_network(define, x, dynamic=True)
    for row, values in zip(found.tolist(), x.tolist(), strict=True):
        for place, total in enumerate(row):
            part = values[place + exclusive :] if reverse else values[: place + 1 - exclusive]
            assert total == sum(part)


CASES = [
    ((2, 3, 4), O.NONE, (2, 4, 5), O.NONE),
    ((2, 4, 3), O.TRANSPOSE, (1, 5, 4), O.TRANSPOSE),
    ((2, 3, 4), O.NONE, (2, 4), O.VECTOR),
    ((2, 4), O.VECTOR, (2, 4, 5), O.NONE),
    ((2, 4), O.VECTOR, (2, 4), O.VECTOR),
    ((4,), O.VECTOR, (4,), O.VECTOR),
    ((3, 0), O.NONE, (0, 2), O.NONE),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_matrix_product(run_network: Any, case: Any, dynamic: bool) -> None:
    left, right = torch.randn(case[0]), torch.randn(case[2])
    (found,) = run_network(lambda n, a, b: n.add_matrix_multiply(a, case[1], b, case[3]), left, right, dynamic=dynamic)
    a, b = left.double().numpy(), right.double().numpy()
    a = a.swapaxes(-1, -2) if case[1] is O.TRANSPOSE else a[..., None, :] if case[1] is O.VECTOR else a
    b = b.swapaxes(-1, -2) if case[3] is O.TRANSPOSE else b[..., None] if case[3] is O.VECTOR else b
    wanted = np.matmul(a, b)
    wanted = wanted[..., 0] if case[3] is O.VECTOR else wanted
    if case[1] is O.VECTOR:
        wanted = wanted[..., 0] if case[3] is O.VECTOR else wanted[..., 0, :]
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("equation", ["ij,jk->ik", "bij,bjk", "ij->ji", "ij,ij->", "i,j->ij"])
def test_einstein_sums(run_network: Any, equation: str) -> None:
    sizes = {"b": 2, "i": 3, "j": 4, "k": 5}
    operands = [torch.randn([sizes[label] for label in term]) for term in equation.split("->")[0].split(",")]
    (found,) = run_network(lambda n, *t: n.add_einsum(list(t), equation), *operands)
    wanted = np.einsum(equation, *[operand.double().numpy() for operand in operands])
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("equation", ["...i->i", "ii->i", "Ij->j", "ij->k"])
def test_equations_that_tensorrt_does_not_know(network: Any, logger: Any, equation: str) -> None:
    x = network.add_input("x", trt.float32, (2, 2))
    assert network.add_einsum([x], equation) is None
    assert "equation" in logger.errors[0]


@pytest.mark.parametrize("kind", [trt.int32, trt.int64, trt.float32])
def test_ramp(run_network: Any, kind: Any) -> None:
    def define(network: Any) -> Any:
        layer = network.add_fill((5,), trt.FillOperation.LINSPACE, kind)
        layer.alpha, layer.beta = 2, 3
        assert layer.is_alpha_beta_int64()
        return layer

    assert run_network(define)[0].tolist() == [2, 5, 8, 11, 14]


def test_ramp_of_computed_extents(run_network: Any, constant: Any) -> None:
    def define(network: Any, tensor: Any) -> Any:
        layer = network.add_fill((), trt.FillOperation.LINSPACE, trt.float32)
        layer.set_input(0, network.add_shape(tensor).get_output(0))
        layer.set_input(1, constant(network, 1.0))
        layer.set_input(2, constant(network, [10.0, 1.0]))
        return layer

    (found,) = run_network(define, torch.zeros(2, 3), dynamic=True)
    assert found.tolist() == [[1, 2, 3], [11, 12, 13]]


def test_random_fills_stay_within_their_law(run_network: Any) -> None:
    def define(network: Any) -> Any:
        uniform = network.add_fill((4000,), trt.FillOperation.RANDOM_UNIFORM)
        uniform.alpha, uniform.beta = 2.0, 4.0
        normal = network.add_fill((4000,), trt.FillOperation.RANDOM_NORMAL)
        normal.alpha, normal.beta = 5.0, 0.5
        return [uniform, normal]

    uniform, normal = run_network(define)
    assert uniform.min() >= 2 and uniform.max() <= 4
    assert abs(uniform.mean() - 3) < 0.1  # four standard errors and more
    assert abs(normal.mean() - 5) < 0.1
    assert abs(normal.std() - 0.5) < 0.1


@pytest.mark.parametrize("kind", [trt.int8, trt.int32, trt.int64])
def test_casts_saturate(run_network: Any, kind: Any) -> None:
    x = torch.tensor([float("nan"), 1e30, -1e30, 2.9, -2.9])
    limits = torch.iinfo({trt.int8: torch.int8, trt.int32: torch.int32, trt.int64: torch.int64}[kind])
    (found,) = run_network(lambda n, t: n.add_cast(t, kind), x)
    assert found.tolist() == [0, limits.max, limits.min, 2, -2]


@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool])
@pytest.mark.parametrize("target", [trt.float32, trt.float16, trt.bfloat16, trt.int32, trt.int64, trt.bool])
def test_casts_of_ordinary_values(run_network: Any, source: torch.dtype, target: Any) -> None:
    x = torch.tensor([0, 1, 3]).to(source)
    (found,) = run_network(lambda n, t: n.add_cast(t, target), x)
    wanted = x.double() if target is not trt.bool else (x.double() != 0).double()
    assert found.double().tolist() == wanted.tolist()
