"""Random networks give the same result layer by layer, through an engine, and traced."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import trt_portable as trt

STEPS = (
    "relu",
    "exp",
    "add",
    "join",
    "transpose",
    "reduce",
    "multiply",
    "slice",
    "gather",
    "softmax",
    "flatten",
    "shape",
    "loop",
)


def _cut(network: Any, x: Any, start: tuple[int, ...], stride: tuple[int, ...], like: Any) -> Any:
    """A slice that is as large as another tensor."""
    layer = network.add_slice(x, start, (0, 0, 0), stride)
    layer.set_input(2, network.add_shape(like).get_output(0))
    return layer


def _grow(network: Any, tensors: list[Any], step: str, pick: int) -> Any:
    """One more layer (or a few) on tensors of shape (batch, 4, 6), the batch known at run time."""
    x, y = tensors[pick % len(tensors)], tensors[(pick // 7) % len(tensors)]
    if step == "relu":
        return network.add_activation(x, trt.ActivationType.RELU)
    if step == "exp":
        return network.add_unary(
            network.add_activation(x, trt.ActivationType.TANH).get_output(0), trt.UnaryOperation.EXP
        )
    if step == "add":
        return network.add_elementwise(x, y, trt.ElementWiseOperation.SUM)
    if step == "join":
        both = network.add_concatenation([x, y])
        both.axis = 1
        return _cut(network, both.get_output(0), (0, 2, 0), (1, 1, 1), x)
    if step == "transpose":
        first = network.add_shuffle(x)
        first.first_transpose = (0, 2, 1)
        second = network.add_shuffle(first.get_output(0))
        second.reshape_dims = (0, 4, 6)
        return second
    if step == "reduce":
        mean = network.add_reduce(x, trt.ReduceOperation.AVG, 0b100, True).get_output(0)
        return network.add_elementwise(x, mean, trt.ElementWiseOperation.SUB)
    if step == "multiply":
        array = np.linspace(-1, 1, 36, dtype=np.float32).reshape(1, 6, 6)
        weights = network.add_constant((1, 6, 6), array).get_output(0)
        return network.add_matrix_multiply(x, trt.MatrixOperation.NONE, weights, trt.MatrixOperation.TRANSPOSE)
    if step == "slice":
        return _cut(network, x, (0, 3, 5), (1, -1, -1), y)
    if step == "gather":  # two places are out of bounds
        places = network.add_constant((6,), np.array([5, -1, 0, 7, -9, 2], np.int32)).get_output(0)
        return network.add_gather(x, places, 2)
    if step == "softmax":
        layer = network.add_softmax(x)
        layer.axes = 0b100
        return layer
    if step == "flatten":
        flat = network.add_shuffle(x)
        flat.reshape_dims = (0, 24)
        back = network.add_shuffle(flat.get_output(0))
        back.reshape_dims = (-1, 4, 6)
        return back
    if step == "loop":
        loop = network.add_loop()
        count = network.add_constant((), np.array(2, np.int32)).get_output(0)
        loop.add_trip_limit(count, trt.TripLimit.COUNT)
        carried = loop.add_recurrence(x)
        half = network.add_activation(carried.get_output(0), trt.ActivationType.SIGMOID).get_output(0)
        carried.set_input(1, half)
        return loop.add_loop_output(carried.get_output(0), trt.LoopOutput.LAST_VALUE)
    same = network.add_shuffle(x)
    same.set_input(1, network.add_shape(y).get_output(0))
    return same


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(steps=[("gather", 0)])
@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 48)), min_size=1, max_size=10))
def test_interpreted_serialized_and_traced_agree(
    builder: Any, load: Any, execute: Any, layer_by_layer: Any, steps: list[tuple[str, int]]
) -> None:
    network = builder.create_network()
    tensors = [network.add_input("x", trt.float32, (-1, 4, 6))]
    for step, pick in steps:
        tensors.append(_grow(network, tensors, step, pick).get_output(0))
        assert tuple(tensors[-1].shape) == (-1, 4, 6)
    network.mark_output(tensors[-1])
    engine = load(network, {"x": ((1, 4, 6), (3, 4, 6), (8, 4, 6))})
    context = engine.create_execution_context()
    interpret = layer_by_layer(network)
    fixed, open_ = trt.trace_engine(engine, dynamic=False), trt.trace_engine(engine)
    for graph in (fixed, open_):
        assert {node.op for node in graph.graph.nodes} <= {"placeholder", "get_attr", "call_function", "output"}
    for batch in (3, 8):
        x = torch.randn(batch, 4, 6)
        (wanted,) = interpret(x)
        (built,) = execute(context, {"x": x}).values()
        torch.testing.assert_close(built, wanted)
        torch.testing.assert_close(open_(x)[0], wanted)
        if batch == 3:
            torch.testing.assert_close(fixed(x)[0], wanted)
