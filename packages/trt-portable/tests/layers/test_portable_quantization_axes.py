"""Quantization whose axis is set late: layers read it before, and only a complete network is held to its scales."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import trt_portable as trt


def _chain(network: Any, constant: Any, dtype: Any, width: int = -1) -> tuple[Any, Any, Any]:
    """quantize, dequantize and relu of (-1, 3), added one after another before any axis is set."""
    x = network.add_input("x", trt.float32, (width, 3))
    scale = constant(network, [0.1, 0.2, 0.4])
    down = network.add_quantize(x, scale, dtype)
    up = network.add_dequantize(down.get_output(0), scale, trt.float32)
    y = network.add_activation(up.get_output(0), trt.ActivationType.RELU).get_output(0)
    y.name = "y"
    network.mark_output(y)
    return down, up, y


@pytest.mark.parametrize("dtype", [trt.int8, trt.fp8])
def test_layers_are_added_before_the_axis_is_set(
    network: Any, constant: Any, load: Any, execute: Any, logger: Any, dtype: Any
) -> None:
    down, up, y = _chain(network, constant, dtype)
    assert down.get_output(0).dtype is dtype and tuple(y.shape) == (-1, 3)
    up.axis = down.axis = 1
    engine = load(network, {"x": ((1, 3), (2, 3), (4, 3))})
    assert not logger.errors
    x = torch.tensor([[1.04, -2.0, 0.5], [100.0, 3.05, 1.0]])
    scale = torch.tensor([0.1, 0.2, 0.4])
    steps = x / scale
    codes = steps.round().clamp(-128, 127) if dtype is trt.int8 else steps.clamp(-448, 448).to(torch.float8_e4m3fn)
    found = execute(engine.create_execution_context(), {"x": x})["y"]
    torch.testing.assert_close(found, torch.relu(codes.float() * scale))


@pytest.mark.parametrize(
    ("axes", "says"),
    [((-1, 1), "set `axis`"), ((1, -1), "set `axis`"), ((2, 1), "set `axis`"), ((0, 1), "3 scales for 2 channels")],
)
def test_a_complete_network_is_held_to_its_axes(
    network: Any, constant: Any, builder: Any, logger: Any, axes: Any, says: str
) -> None:
    down, up, _ = _chain(network, constant, trt.int8, width=2)
    down.axis, up.axis = axes
    assert builder.build_serialized_network(network, builder.create_builder_config()) is None
    assert any(says in error for error in logger.errors)


@pytest.mark.parametrize(
    ("block", "says"),
    [((1, 3), "2 blocks of 3"), ((2,), "block (2,)"), ((-1, 2), "1 blocks"), ((1, 2), None), ((), None)],
)
def test_blocks_agree_with_their_scales(
    network: Any, constant: Any, builder: Any, logger: Any, block: Any, says: str | None
) -> None:
    codes = network.add_constant((2, 4), np.ones((2, 4), np.int8)).get_output(0)
    rows = 1 if block == (-1, 2) else 2
    scale = constant(network, np.ones((rows, 1 if rows == 1 else 2)))
    layer = network.add_dequantize(codes, scale, trt.float32)
    layer.block_shape = block
    network.mark_output(layer.get_output(0))
    plan = builder.build_serialized_network(network, builder.create_builder_config())
    assert (plan is None) is (says is not None)
    assert says is None or any(says in error for error in logger.errors), logger.errors
