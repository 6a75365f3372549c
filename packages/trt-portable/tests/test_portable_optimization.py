"""What the builder makes of layers: dead ones go, constants are folded, linear maps are fused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import trt_portable as trt

Load = Callable[..., trt.ICudaEngine]
Execute = Callable[..., dict[str, torch.Tensor]]
SUM = trt.ElementWiseOperation.SUM


def weights_of(engine: trt.ICudaEngine) -> list[tuple[str, int]]:
    return [(slot.role, slot.count) for slot in engine._state.weights.slots]


def test_dead_layers_are_eliminated(builder: Any, load: Load) -> None:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (2,))
    network.mark_output(network.add_identity(x).get_output(0))
    unused = network.add_unary(x, trt.UnaryOperation.EXP)
    network.add_unary(unused.get_output(0), trt.UnaryOperation.LOG)
    assert load(network).num_layers == 1


def test_constants_are_folded(builder: Any, load: Load, execute: Execute) -> None:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (2, 3))
    table = np.arange(6, dtype=np.float32).reshape(2, 3)
    constant = network.add_constant((2, 3), table).get_output(0)
    doubled = network.add_elementwise(constant, constant, SUM).get_output(0)
    network.mark_output(network.add_elementwise(x, doubled, SUM).get_output(0))
    engine = load(network)
    assert engine.num_layers == 2
    (found,) = execute(engine.create_execution_context(), {"x": torch.ones(2, 3)}).values()
    assert torch.equal(found, 1 + 2 * torch.from_numpy(table))


def test_refittable_constants_are_not_folded(builder: Any, load: Load) -> None:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (2,))
    constant = network.add_constant((2,), np.ones(2, np.float32)).get_output(0)
    doubled = network.add_elementwise(constant, constant, SUM).get_output(0)
    network.mark_output(network.add_elementwise(x, doubled, SUM).get_output(0))
    assert load(network, flags=[trt.BuilderFlag.REFIT]).num_layers == 3


def test_what_grows_is_left_to_run_time(builder: Any, load: Load) -> None:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (1024, 1024))
    row = network.add_constant((1, 1024), np.ones((1, 1024), np.float32)).get_output(0)
    column = network.add_constant((1024, 1), np.ones((1024, 1), np.float32)).get_output(0)
    outer = network.add_elementwise(row, column, trt.ElementWiseOperation.PROD).get_output(0)
    network.mark_output(network.add_elementwise(x, outer, SUM).get_output(0))
    assert max(count for _, count in weights_of(load(network))) == 1024


def test_random_layers_are_never_folded(builder: Any, load: Load) -> None:
    network = builder.create_network()
    fill = network.add_fill((4,), trt.FillOperation.RANDOM_UNIFORM)
    network.mark_output(fill.get_output(0))
    context = load(network).create_execution_context()
    first, second = torch.empty(4), torch.empty(4)
    assert context.execute_v2([first.data_ptr()]) and context.execute_v2([second.data_ptr()])
    assert not torch.equal(first, second)


@pytest.mark.parametrize("rank", [2, 3, 4])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("bias_first", [False, True])
def test_linear_maps_are_fused_and_stay_right(
    builder: Any, load: Load, execute: Execute, rank: int, transpose: bool, bias_first: bool
) -> None:
    network = builder.create_network()
    shape = (2,) * (rank - 1) + (5,)
    leading = (1,) * (rank - 2)
    x = network.add_input("x", trt.float32, shape)
    matrix = np.random.default_rng(0).standard_normal((3, 5) if transpose else (5, 3)).astype(np.float32)
    bias = np.arange(3, dtype=np.float32)
    weight = network.add_constant((*leading, *matrix.shape), matrix).get_output(0)
    op = trt.MatrixOperation.TRANSPOSE if transpose else trt.MatrixOperation.NONE
    product = network.add_matrix_multiply(x, trt.MatrixOperation.NONE, weight, op).get_output(0)
    added = network.add_constant((1,) * (rank - 1) + (3,), bias).get_output(0)
    operands = (added, product) if bias_first else (product, added)
    network.mark_output(network.add_elementwise(*operands, SUM).get_output(0))
    engine = load(network)
    assert len(engine._state.program.steps) == 1
    data = torch.randn(shape)
    (found,) = execute(engine.create_execution_context(), {"x": data}).values()
    wanted = data @ torch.from_numpy(matrix.T if transpose else matrix) + torch.from_numpy(bias)
    torch.testing.assert_close(found, wanted)


def test_a_product_that_others_read_keeps_its_value(builder: Any, load: Load, execute: Execute) -> None:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (2, 2))
    weight = network.add_constant((2, 2), np.eye(2, dtype=np.float32)).get_output(0)
    none = trt.MatrixOperation.NONE
    product = network.add_matrix_multiply(x, none, weight, none).get_output(0)
    bias = network.add_constant((1, 2), np.ones(2, np.float32)).get_output(0)
    total = network.add_elementwise(product, bias, SUM).get_output(0)
    product.name, total.name = "product", "total"
    network.mark_output(product)
    network.mark_output(total)
    data = torch.randn(2, 2)
    found = execute(load(network).create_execution_context(), {"x": data})
    assert torch.equal(found["product"], data)
    assert torch.equal(found["total"], data + 1)
