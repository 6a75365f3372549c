"""The builder's passes: each computes what the layers as they stand compute, with fewer of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trt_portable as trt
from trt_portable.builder.passes.plan_graph import PassError, PlanGraph, PlanPass
from trt_portable.plan.weight_table import WeightTable

SUM, PROD, POW = (trt.ElementWiseOperation[name] for name in ("SUM", "PROD", "POW"))
NONE, TRANSPOSE = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE

Define = Callable[[trt.INetworkDefinition], None]


@pytest.fixture
def both(builder: trt.Builder, load: Any, execute: Any) -> Callable[..., Counter[str]]:
    """Runs a network with and without fusions, holds the results to each other, and counts the layers fused."""

    def both(define: Define, shapes: Any = None, flags: Any = (), **inputs: torch.Tensor) -> Counter[str]:
        engines = []
        for fused in (False, True):
            network = builder.create_network()
            define(network)
            if not fused:
                network.mark_unfused_tensors_as_debug_tensors()
            engines.append(load(network, shapes, flags=flags))
        plain, rewritten = (execute(engine.create_execution_context(), inputs) for engine in engines)
        for name, wanted in plain.items():
            torch.testing.assert_close(rewritten[name], wanted, rtol=1e-4, atol=1e-5)
        return Counter(layer["type"] for layer in engines[1]._state.structure["layers"])

    return both


def output(network: trt.INetworkDefinition, tensor: trt.ITensor, name: str = "y") -> None:
    tensor.name = name
    network.mark_output(tensor)


def attend(mask: np.ndarray, rows: int = 4) -> Define:
    def define(network: trt.INetworkDefinition) -> None:
        query, key, value = (network.add_input(name, trt.float32, (2, 3, rows, 8)) for name in "qkv")
        attention = network.add_attention(query, key, value, trt.AttentionNormalizationOp.SOFTMAX, False)
        attention.decomposable = True
        numbers = network.add_constant(mask.shape, mask.astype(np.int32)).get_output(0)
        attention.mask = network.add_cast(numbers, trt.bool).get_output(0)
        output(network, attention.get_output(0))

    return define


TRIANGLE = np.tril(np.ones((1, 1, 4, 4)))


@pytest.mark.parametrize(
    ("mask", "is_gone"),
    [
        (TRIANGLE, True),
        (np.repeat(TRIANGLE, 3, 1), True),
        (np.ones((1, 1, 4, 4)), True),
        (np.tril(np.ones((1, 1, 4, 4)), 1), False),
        (1 - np.triu(np.ones((1, 1, 4, 4))) + np.eye(4) * (np.arange(4) != 2), False),
    ],
)
def test_constant_masks(both: Any, mask: np.ndarray, is_gone: bool) -> None:
    q, k, v = (torch.randn(2, 3, 4, 8) for _ in "qkv")
    assert both(attend(mask), q=q, k=k, v=v)["CONSTANT"] == (not is_gone)


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("swapped", [True, False])
@pytest.mark.parametrize("factor", [0.5, 0.6])
def test_gelu_written_out(both: Any, constant: Any, power: bool, swapped: bool, factor: float) -> None:
    def define(network: trt.INetworkDefinition) -> None:
        def apply(first: trt.ITensor, second: trt.ITensor, operation: Any) -> trt.ITensor:
            pair = (second, first) if swapped and operation is not POW else (first, second)
            return network.add_elementwise(*pair, operation).get_output(0)

        def number(value: float) -> trt.ITensor:
            return constant(network, [[value]])

        x = network.add_input("x", trt.float32, (3, 5))
        cube = apply(x, number(3.0), POW) if power else apply(x, apply(x, x, PROD), PROD)
        inner = apply(apply(x, apply(cube, number(0.044715), PROD), SUM), number(0.7978845608), PROD)
        gate = apply(network.add_activation(inner, trt.ActivationType.TANH).get_output(0), number(1.0), SUM)
        output(network, apply(apply(x, number(factor), PROD), gate, PROD))

    found = both(define, x=torch.randn(3, 5))
    assert (found == Counter({"ACTIVATION": 1})) == (factor == 0.5)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    columns=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    transposed=st.booleans(),
    biased=st.sampled_from(["all", "none", "first"]),
    dynamic=st.booleans(),
    read_twice=st.booleans(),
)
def test_products_of_one_tensor(
    both: Any, columns: list[int], transposed: bool, biased: str, dynamic: bool, read_twice: bool
) -> None:
    def define(network: trt.INetworkDefinition) -> None:
        x = network.add_input("x", trt.float32, (-1 if dynamic else 2, 3, 5))
        generator = np.random.default_rng(0)
        for index, count in enumerate(columns):
            matrix = generator.standard_normal((1, count, 5) if transposed else (1, 5, count)).astype(np.float32)
            weight = network.add_constant(matrix.shape, matrix).get_output(0)
            y = network.add_matrix_multiply(x, NONE, weight, TRANSPOSE if transposed else NONE).get_output(0)
            if read_twice and index == 0:
                output(network, network.add_activation(y, trt.ActivationType.RELU).get_output(0), "twice")
            if biased == "all" or (biased == "first" and index == 0):
                bias = generator.standard_normal((1, 1, count)).astype(np.float32)
                y = network.add_elementwise(y, network.add_constant(bias.shape, bias).get_output(0), SUM).get_output(0)
            y = network.add_activation(y, trt.ActivationType.TANH).get_output(0)
            output(network, y, f"y{index}")

    shapes = {"x": ((1, 3, 5), (2, 3, 5), (4, 3, 5))} if dynamic else None
    found = both(define, shapes, x=torch.randn(2, 3, 5))
    if len(columns) > 1 and not (biased == "first" or read_twice):
        assert found["MATRIX_MULTIPLY"] == 1
        assert found["SLICE"] == len(columns)
    assert found["MATRIX_MULTIPLY"] <= len(columns)


def test_products_that_a_refit_may_change_stay(both: Any) -> None:
    def define(network: trt.INetworkDefinition) -> None:
        x = network.add_input("x", trt.float32, (2, 5))
        for index in range(2):
            weight = network.add_constant((5, 3), np.full((5, 3), index + 1.0, np.float32)).get_output(0)
            output(network, network.add_matrix_multiply(x, NONE, weight, NONE).get_output(0), f"y{index}")

    found = both(define, flags=[trt.BuilderFlag.REFIT], x=torch.randn(2, 5))
    assert found["MATRIX_MULTIPLY"] == 2


def test_a_pass_that_breaks_the_order_is_named() -> None:
    class Reverse(PlanPass):
        name = "reverse"

        def call(self, graph: PlanGraph) -> int:
            graph.layers.reverse()
            return 1

    layers = [{"name": str(at), "inputs": [at], "outputs": [at + 1]} for at in range(2)]
    graph = PlanGraph(layers, {}, WeightTable(), (0,), frozenset({2}), lambda key, role: True)
    with pytest.raises(PassError, match="pass reverse: layer '1' reads tensors \\[1\\] too early"):
        Reverse()(graph)
    with pytest.raises(PassError, match="computed no more"):

        class Drop(Reverse):
            def call(self, graph: PlanGraph) -> int:
                graph.layers.clear()
                return 1

        Drop()(graph)
