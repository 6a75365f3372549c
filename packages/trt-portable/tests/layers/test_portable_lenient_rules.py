"""What the documentation forbids and working clients rely on: accepted, unless strict mode is on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import trt_portable as trt

X = torch.arange(12.0).reshape(3, 4)


def _fill(network: Any, x: Any) -> Any:
    layer = network.add_slice(x, (0, 0), (5, 6), (1, 1))
    layer.mode = trt.SampleMode.FILL
    layer.set_input(4, network.add_constant((1,), trt.Weights(np.array([7], np.float32))).get_output(0))
    return layer


def _gather(network: Any, x: Any) -> Any:
    indices = network.add_constant((2, 3), trt.Weights(np.array([[0, 2, 1], [3, 3, 0]], np.int32)))
    layer = network.add_gather_v2(x, indices.get_output(0), trt.GatherMode.ELEMENT)
    if layer is not None:
        layer.axis = 1
    return layer


def _constant(network: Any, x: Any) -> Any:
    mask = network.add_constant((3, 1), trt.Weights(np.array([True, False, True])))
    if mask is None:
        return None
    zero = network.add_constant((1, 1), trt.Weights(np.zeros(1, np.float32))).get_output(0)
    return network.add_select(mask.get_output(0), x, zero)


def _non_zero(network: Any, x: Any) -> Any:
    numbers = network.add_cast(x, trt.int64).get_output(0)
    return network.add_non_zero(numbers)


CASES: dict[str, tuple[Callable[[Any, Any], Any], torch.Tensor]] = {
    "a fill value of shape (1,)": (_fill, torch.nn.functional.pad(X, (0, 2, 0, 2), value=7)),
    "shorter indices off the axis": (_gather, torch.gather(X, 1, torch.tensor([[0, 2, 1], [3, 3, 0]]))),
    "a boolean constant": (_constant, torch.where(torch.tensor([[True], [False], [True]]), X, torch.zeros(()))),
    "the places of int64 numbers": (_non_zero, torch.nonzero(X).mT.to(torch.int32)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_clients_get_what_they_rely_on(run_network: Any, case: str, dynamic: bool) -> None:
    define, wanted = CASES[case]
    (found,) = run_network(define, X, dynamic=[(0, 0)] if dynamic else ())
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("case", CASES)
def test_strict_mode_keeps_to_the_documentation(network: Any, case: str) -> None:
    x = network.add_input("x", trt.float32, (3, 4))
    with trt.strict(), pytest.raises(trt.NetworkError):
        CASES[case][0](network, x).get_output(0).shape  # noqa: B018 - reading infers


@pytest.mark.parametrize(("rule", "shape"), [("more than one element", (2,)), ("more than one element", (1, 1))])
def test_a_fill_value_is_one_element(network: Any, logger: Any, rule: str, shape: Any) -> None:
    x = network.add_input("x", trt.float32, (3, 4))
    layer = network.add_slice(x, (0, 0), (5, 6), (1, 1))
    layer.mode = trt.SampleMode.FILL
    layer.set_input(4, network.add_input("v", trt.float32, shape))
    assert not layer.get_output(0).shape._is_valid
    assert any(rule in error for error in logger.errors)


def test_longer_indices_off_the_axis_are_refused(network: Any, logger: Any) -> None:
    x, at = network.add_input("x", trt.float32, (3, 4)), network.add_input("i", trt.int32, (4, 2))
    layer = network.add_gather_v2(x, at, trt.GatherMode.ELEMENT)
    if layer is not None:
        layer.axis = 1
        assert not layer.get_output(0).shape._is_valid
    assert logger.errors


def test_boolean_constants_decide_branches(network: Any, load: Any, execute: Any) -> None:
    x = network.add_input("x", trt.float32, (2,))
    chosen = network.add_if_conditional()
    chosen.set_condition(network.add_constant((), trt.Weights(np.array(False))).get_output(0))
    inside = chosen.add_input(x).get_output(0)
    twice = network.add_elementwise(inside, inside, trt.ElementWiseOperation.SUM).get_output(0)
    network.mark_output(chosen.add_output(twice, inside).get_output(0))
    engine = load(network)
    (found,) = execute(engine.create_execution_context(), {"x": torch.tensor([1.0, 2.0])}).values()
    assert found.tolist() == [1.0, 2.0]


def test_a_boolean_constant_is_known_to_shapes(network: Any, logger: Any, builder: Any) -> None:
    x = network.add_input("x", trt.float32, (2,))
    network.mark_output(network.add_identity(x).get_output(0))
    condition = network.add_constant((), trt.Weights(np.array(False))).get_output(0)
    network.add_assertion(condition, "never holds")
    assert builder.build_serialized_network(network, builder.create_builder_config()) is None
    assert any("never holds" in error for error in logger.errors)
