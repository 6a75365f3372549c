"""The strict switch beyond networks: configurations, plans, engines and contexts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import trt_portable as trt

Step = Callable[[Any, Any, Any], Any]

STEPS: dict[str, tuple[Step, str, Any]] = {
    "unknown tensor": (lambda e, c, log: c.set_tensor_address("z", 64), "no tensor named 'z'", False),
    "shape out of range": (lambda e, c, log: c.set_input_shape("x", (9, 2)), "outside the profile's range", False),
    "wrong rank": (lambda e, c, log: c.set_input_shape("x", (2,)), "rank 1", False),
    "nothing bound": (lambda e, c, log: c.execute_async_v3(0), "call set_input_shape first", False),
    "not a plan": (lambda e, c, log: trt.Runtime(log).deserialize_cuda_engine(b"x" * 200), "not a trt-portable", None),
    "unknown weights": (
        lambda e, c, log: trt.Refitter(e, log).set_named_weights("w", np.ones(2, np.float32)),
        "w",
        False,
    ),
    "no output": (
        lambda e, c, log: trt.Builder(log).build_serialized_network(
            trt.Builder(log).create_network(), trt.Builder(log).create_builder_config()
        ),
        "at least one output",
        None,
    ),
}


@pytest.fixture
def engine(network: Any, load: Any) -> Any:
    """y = relu(x) for x (1 to 4, 2)."""
    x = network.add_input("x", trt.float32, (-1, 2))
    network.mark_output(network.add_activation(x, trt.ActivationType.RELU).get_output(0))
    return load(network, {"x": ((1, 2), (2, 2), (4, 2))}, flags=[trt.BuilderFlag.REFIT])


@pytest.mark.parametrize("name", STEPS)
def test_a_refusal_is_an_answer_or_an_exception(engine: Any, logger: Any, name: str) -> None:
    step, rule, answer = STEPS[name]
    context = engine.create_execution_context()
    assert step(engine, context, logger) == answer
    assert any(rule in error for error in logger.errors), logger.errors
    with trt.strict(), pytest.raises(trt.NetworkError) as caught:
        step(engine, context, logger)
    assert rule in str(caught.value)
    assert caught.value.subject


def test_a_layer_that_fails_is_named(network: Any, load: Any, logger: Any) -> None:
    left, right = (network.add_input(name, trt.float32, (-1,)) for name in ("left", "right"))
    layer = network.add_elementwise(left, right, trt.ElementWiseOperation.SUM)
    layer.name = "the sum"
    network.mark_output(layer.get_output(0))
    ranges = ((1,), (2,), (4,))
    context = load(network, {"left": ranges, "right": ranges}).create_execution_context()
    memory = torch.zeros(4)
    for index, name in enumerate(context.engine):
        if index < 2:
            context.set_input_shape(name, (2 + index,))
        context.set_tensor_address(name, memory.data_ptr())
    assert not context.execute_async_v3(0)
    assert any("the sum" in error for error in logger.errors)
    with trt.strict(), pytest.raises(trt.NetworkError, match="the sum"):
        context.execute_async_v3(0)
