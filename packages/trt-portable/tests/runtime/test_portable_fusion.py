"""Neighbouring layers in one kernel: what is fused while interpreting, and what must not be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trt_portable as trt


def _activation(network: Any, x: Any, kind: str, alpha: float = 1 / 6) -> Any:
    layer = network.add_activation(x, getattr(trt.ActivationType, kind))
    layer.alpha, layer.beta = alpha, 0.5
    return layer.get_output(0)


def _product(network: Any, first: Any, second: Any) -> Any:
    return network.add_elementwise(first, second, trt.ElementWiseOperation.PROD).get_output(0)


@pytest.mark.parametrize(("kind", "expected"), [("SIGMOID", F.silu), ("HARD_SIGMOID", F.hardswish)])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_gate_of_itself_is_one_kernel(
    network: Any, load: Any, execute: Any, kind: str, expected: Any, is_first: bool
) -> None:
    x = network.add_input("x", trt.float32, (3, 4))
    pair = (x, _activation(network, x, kind))
    y = _product(network, *(pair if is_first else pair[::-1]))
    y.name = "y"
    network.mark_output(y)
    engine = load(network)
    assert len(engine._state.program.steps) == 1
    values = torch.randn(3, 4) * 4
    torch.testing.assert_close(execute(engine.create_execution_context(), {"x": values})["y"], expected(values))


def test_gates_that_others_read_and_gates_of_others_stay(network: Any, load: Any, execute: Any) -> None:
    x, z = (network.add_input(name, trt.float32, (3, 4)) for name in "xz")
    shown, other = _activation(network, x, "SIGMOID"), _activation(network, x, "SIGMOID")
    steep, squared = _activation(network, x, "HARD_SIGMOID", alpha=0.25), _activation(network, z, "SIGMOID")
    outputs = [
        shown,
        _product(network, x, shown),
        _product(network, z, other),
        _product(network, x, steep),
        _product(network, squared, squared),
    ]
    for index, output in enumerate(outputs):
        output.name = f"y{index}"
        network.mark_output(output)
    engine = load(network)
    assert len(engine._state.program.steps) == 8
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    found = execute(engine.create_execution_context(), {"x": a, "z": b})
    expected = [a.sigmoid(), F.silu(a), b * a.sigmoid(), a * (a / 4 + 0.5).clamp(0, 1), b.sigmoid().square()]
    for index, value in enumerate(expected):
        torch.testing.assert_close(found[f"y{index}"], value)
