"""Constants that are loaded in the shapes that kernels want: views of them, which a refit renews."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import trt_portable as trt

WIDTH = 4


def _constant(network: Any, name: str, values: torch.Tensor) -> Any:
    layer = network.add_constant(tuple(values.shape), values.numpy())
    layer.name = name
    network.set_weights_name(layer.weights, name)
    return layer.get_output(0)


def _weights(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    extents = {"matrix": (1, WIDTH, WIDTH), "shift": (1, 1, WIDTH), "scale": (1, 1, WIDTH)}
    return {name: torch.randn(shape, generator=generator) for name, shape in extents.items()}


def _expected(x: torch.Tensor, weights: dict[str, torch.Tensor], is_transposed: bool) -> torch.Tensor:
    matrix = weights["matrix"].mT if is_transposed else weights["matrix"]
    rows = x @ matrix + weights["shift"]
    return F.layer_norm(rows, (WIDTH,)) * weights["scale"] + weights["shift"]


@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_linear_map_and_a_norm_read_views_which_a_refit_renews(
    network: Any, load: Any, execute: Any, logger: Any, is_transposed: bool
) -> None:
    weights = _weights(0)
    x = network.add_input("x", trt.float32, (-1, 3, WIDTH))
    matrix, shift, scale = (_constant(network, name, values) for name, values in weights.items())
    right = trt.MatrixOperation.TRANSPOSE if is_transposed else trt.MatrixOperation.NONE
    rows = network.add_matrix_multiply(x, trt.MatrixOperation.NONE, matrix, right).get_output(0)
    rows = network.add_elementwise(rows, shift, trt.ElementWiseOperation.SUM).get_output(0)
    y = network.add_normalization_v2(rows, scale, shift, 1 << 2).get_output(0)
    y.name = "y"
    network.mark_output(y)
    engine = load(network, {"x": ((1, 3, WIDTH), (2, 3, WIDTH), (5, 3, WIDTH))}, flags=[trt.BuilderFlag.REFIT])
    program, context = engine._state.program, engine.create_execution_context()

    given = torch.randn(2, 3, WIDTH)
    torch.testing.assert_close(execute(context, {"x": given})["y"], _expected(given, weights, is_transposed))
    slots = program.start([given])
    read = [slots[at] for inputs in program.reads for at in inputs[1:]]
    assert [tuple(value.shape) for value in read] == [(WIDTH, WIDTH), (WIDTH,), (WIDTH,), (WIDTH,)]
    held = {value.data_ptr() for value in slots[: program._size] if isinstance(value, torch.Tensor)}
    assert {value.data_ptr() for value in read} <= held  # no second copy of weights

    renewed = _weights(1)
    refitter = trt.Refitter(engine, logger)
    for name, values in renewed.items():
        assert refitter.set_named_weights(name, trt.Weights(values.numpy()))
    assert refitter.refit_cuda_engine()
    torch.testing.assert_close(execute(context, {"x": given})["y"], _expected(given, renewed, is_transposed))


def test_coefficients_along_another_axis_are_none_of_the_normalized_elements(
    network: Any, load: Any, execute: Any
) -> None:
    x = network.add_input("x", trt.float32, (WIDTH, 2, 2))
    coefficients = np.arange(WIDTH, dtype=np.float32).reshape(WIDTH, 1, 1)  # as many as elements, but one per image
    scale, bias = (network.add_constant((WIDTH, 1, 1), coefficients).get_output(0) for _ in range(2))
    y = network.add_normalization_v2(x, scale, bias, 0b110).get_output(0)
    y.name = "y"
    network.mark_output(y)
    given = torch.randn(WIDTH, 2, 2)
    wanted = torch.from_numpy(coefficients)
    found = execute(load(network).create_execution_context(), {"x": given})["y"]
    torch.testing.assert_close(found, F.layer_norm(given, (2, 2)) * wanted + wanted)
