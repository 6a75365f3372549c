"""Loops whose iterations run as fused programs compute what their layers say, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import trt_portable as trt
from trt_portable.fusion.epilogues import planned
from trt_portable.fusion.loops import FusedLoop
from trt_portable.fusion.packed_products import has_prepacked_kernels
from trt_portable.fusion.programs import prepacked_program

E = trt.ElementWiseOperation
L = trt.LoopOutput
T, N = trt.MatrixOperation.TRANSPOSE, trt.MatrixOperation.NONE


def _weights(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32) / 2


def _recurrent(network: Any, constant: Any, weights: Any, bias: Any, *, inside: bool) -> None:
    """``h = tanh(h @ weights.T + bias + x[t])`` over five rows; constants inside of the loop, or outside."""
    x = network.add_input("x", trt.float32, (5, 1, 4))
    count = constant(network, 5, np.int32)
    outside = None if inside else (constant(network, weights), constant(network, bias))
    loop = network.add_loop()
    loop.add_trip_limit(count, trt.TripLimit.COUNT)
    row = loop.add_iterator(x).get_output(0)
    state = loop.add_recurrence(constant(network, np.zeros((1, 4), np.float32)))
    if outside is None:
        held = network.add_constant((4, 4), weights)
        held.name = "weights"
        matrix = network.add_elementwise(held.get_output(0), state.get_output(0), E.SUM)  # a body's own constant
        matrix = network.add_elementwise(matrix.get_output(0), state.get_output(0), E.SUB).get_output(0)
        added = constant(network, bias)
    else:
        matrix, added = outside
    product = network.add_matrix_multiply(state.get_output(0), N, matrix, T).get_output(0)
    biased = network.add_elementwise(product, added, E.SUM).get_output(0)
    total = network.add_elementwise(biased, row, E.SUM).get_output(0)
    hidden = network.add_activation(total, trt.ActivationType.TANH).get_output(0)
    state.set_input(1, hidden)
    rows = loop.add_loop_output(hidden, L.CONCATENATE, 0)
    rows.set_input(1, count)
    network.mark_output(rows.get_output(0))


def _wanted(x: torch.Tensor, weights: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    hidden, rows = torch.zeros(1, 4), []
    for row in x:
        hidden = torch.tanh(F.linear(hidden, weights, bias) + row)
        rows.append(hidden)
    return torch.stack(rows)


def _loops(engine: Any) -> list[FusedLoop]:
    program = engine._state.executable
    return [compute for compute, *_ in program.steps if isinstance(compute, FusedLoop)]


@pytest.mark.parametrize("inside", [False, True])
def test_a_recurrent_layer_is_one_linear_map_a_step(
    network: Any, constant: Any, load: Any, execute: Any, inside: bool
) -> None:
    weights, bias = _weights(4, 4), _weights(1, 4)
    _recurrent(network, constant, weights, bias, inside=inside)
    engine = load(network)
    x = torch.randn(5, 1, 4)
    context = engine.create_execution_context()
    for _ in range(2):
        (found,) = execute(context, {"x": x}).values()
        torch.testing.assert_close(found, _wanted(x, torch.from_numpy(weights), torch.from_numpy(bias)[0]))
    (loop,) = _loops(engine)
    if not inside:
        assert len(loop._body.program.steps) == 3  # a linear map, a sum, an activation


def test_a_refit_reaches_constants_of_a_body(network: Any, constant: Any, load: Any, execute: Any, logger: Any) -> None:
    weights, bias = _weights(4, 4), _weights(1, 4)
    _recurrent(network, constant, weights, bias, inside=True)
    engine = load(network, flags=[trt.BuilderFlag.REFIT])
    context = engine.create_execution_context()
    x = torch.randn(5, 1, 4)
    execute(context, {"x": x})
    refitter = trt.Refitter(engine, logger)
    fresh = weights + 0.5
    assert refitter.set_weights("weights", trt.WeightsRole.CONSTANT, fresh), logger.errors
    assert refitter.refit_cuda_engine()
    (found,) = execute(context, {"x": x}).values()
    torch.testing.assert_close(found, _wanted(x, torch.from_numpy(fresh), torch.from_numpy(bias)[0]))


def test_a_condition_shares_layers_with_the_body_and_states_change_places(
    network: Any, constant: Any, load: Any, execute: Any
) -> None:
    """``while sum(a) * 2 < 100: a, b = b, a + b``, with the doubled sum kept of each iteration; a loop around it."""
    x = network.add_input("x", trt.float32, (1,))
    trips = constant(network, 2, np.int32)
    around = network.add_loop()
    around.add_trip_limit(trips, trt.TripLimit.COUNT)
    begin = around.add_recurrence(x)
    loop = network.add_loop()
    first, second = loop.add_recurrence(begin.get_output(0)), loop.add_recurrence(begin.get_output(0))
    a, b = first.get_output(0), second.get_output(0)
    doubled = network.add_elementwise(a, constant(network, [2.0]), E.PROD).get_output(0)
    total = network.add_reduce(doubled, trt.ReduceOperation.SUM, 1, False).get_output(0)
    goes_on = network.add_elementwise(total, constant(network, 100.0), E.LESS).get_output(0)
    loop.add_trip_limit(goes_on, trt.TripLimit.WHILE)
    first.set_input(1, b)
    second.set_input(1, network.add_elementwise(a, b, E.SUM).get_output(0))
    kept = loop.add_loop_output(doubled, L.CONCATENATE, 0)
    kept.set_input(1, constant(network, 12, np.int32))
    last = loop.add_loop_output(a, L.LAST_VALUE).get_output(0)
    mean = network.add_reduce(kept.get_output(0), trt.ReduceOperation.AVG, 1, False).get_output(0)
    begin.set_input(1, network.add_elementwise(mean, constant(network, [0.125]), E.PROD).get_output(0))
    network.mark_output(around.add_loop_output(begin.get_output(0), L.LAST_VALUE).get_output(0))
    assert last is not None
    (found,) = execute(load(network).create_execution_context(), {"x": torch.tensor([3.0])}).values()
    value = 3.0
    for _ in range(2):
        a_, b_, rows = value, value, []
        while a_ * 2 < 100:
            rows.append(a_ * 2)
            a_, b_ = b_, a_ + b_
        value = sum(rows) / 12 * 0.125
    torch.testing.assert_close(found, torch.tensor([value]))


@pytest.mark.skipif(not has_prepacked_kernels(), reason="this PyTorch has no kernels for packed weights")
def test_linear_maps_one_behind_the_other_stay_two_products(network: Any, constant: Any, load: Any) -> None:
    """A linear map with a bias stands where a sum stood, and is no sum: its matrix is as large as what it reads."""
    first, second, biases = _weights(4, 4), _weights(4, 4) + 1, _weights(1, 4)
    x = network.add_input("x", trt.float32, (4, 4))
    matrices = [constant(network, matrix) for matrix in (first, second)]
    bias = constant(network, biases)
    loop = network.add_loop()
    loop.add_trip_limit(constant(network, 2, np.int32), trt.TripLimit.COUNT)
    state = loop.add_recurrence(network.add_matrix_multiply(x, N, matrices[0], T).get_output(0))
    tensor = state.get_output(0)
    for matrix in matrices:
        tensor = network.add_matrix_multiply(tensor, N, matrix, T).get_output(0)
        tensor = network.add_elementwise(tensor, bias, E.SUM).get_output(0)
    state.set_input(1, tensor)
    network.mark_output(loop.add_loop_output(state.get_output(0), L.LAST_VALUE).get_output(0))
    engine = load(network)
    program = prepacked_program(engine._state.loaded, planned)
    assert program is not None
    program.load_constants()
    given = torch.randn(4, 4)
    (found,) = program.run([given])
    wanted = F.linear(given, torch.from_numpy(first))
    for matrix in (first, second) * 2:
        wanted = F.linear(wanted, torch.from_numpy(matrix), torch.from_numpy(biases)[0])
    torch.testing.assert_close(found, wanted)
