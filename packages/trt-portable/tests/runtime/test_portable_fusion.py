"""Neighbouring layers in one kernel: what is fused while interpreting, and what must not be."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import trt_portable as trt
from trt_portable.builder.inductor.tactic import trace_engine


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


def _clamped(network: Any, x: Any, low: float, high: float, tested: Any = None) -> Any:
    """As clients write a clamp that keeps NaN."""
    clip = network.add_activation(x, trt.ActivationType.CLIP)
    clip.alpha, clip.beta = low, high
    is_nan = network.add_unary(x if tested is None else tested, trt.UnaryOperation.ISNAN).get_output(0)
    return network.add_select(is_nan, x, clip.get_output(0)).get_output(0)


def test_a_clamp_that_keeps_nan_is_one_kernel(network: Any, load: Any, execute: Any) -> None:
    x, z = (network.add_input(name, trt.float32, (3, 4)) for name in "xz")
    outputs = [_clamped(network, x, -1, 0.5), _clamped(network, x, 2, 1), _clamped(network, x, -1, 1, tested=z)]
    for index, output in enumerate(outputs):
        output.name = f"y{index}"
        network.mark_output(output)
    engine = load(network)
    assert len(engine._state.program.steps) == 1 + 3 + 3
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    a[0], b[1] = torch.nan, torch.nan
    found = execute(engine.create_execution_context(), {"x": a, "z": b})
    expected = [
        a.clamp(-1, 0.5),
        torch.where(a.isnan(), a, 2),
        torch.where(b.isnan(), a, a.clamp(-1, 1).nan_to_num(-1)),
    ]
    for index, value in enumerate(expected):
        torch.testing.assert_close(found[f"y{index}"], value, equal_nan=True)


@pytest.mark.parametrize("has_bias", [True, False])
def test_rows_that_lie_apart_are_one_product(
    network: Any, load: Any, constant: Any, execute: Any, has_bias: bool
) -> None:
    x = network.add_input("x", trt.float32, (8, 5, 16))
    turned = network.add_shuffle(x)
    turned.first_transpose = (1, 0, 2)
    matrix, none = torch.randn(1, 24, 16), trt.MatrixOperation.NONE
    product = network.add_matrix_multiply(
        turned.get_output(0), none, constant(network, matrix.numpy()), trt.MatrixOperation.TRANSPOSE
    )
    y, bias = product.get_output(0), torch.randn(1, 1, 24)
    if has_bias:
        y = network.add_elementwise(y, constant(network, bias.numpy()), trt.ElementWiseOperation.SUM).get_output(0)
    y.name = "y"
    network.mark_output(y)
    engine = load(network)
    graph = trace_engine(engine).graph
    names = {str(node.target) for node in graph.nodes if node.op == "call_function"}
    assert names & {"aten.mm.default", "aten.addmm.default"} and "aten.bmm.default" not in names
    values = torch.randn(8, 5, 16)
    expected = values.transpose(0, 1) @ matrix[0].T + (bias if has_bias else 0.0)
    torch.testing.assert_close(execute(engine.create_execution_context(), {"x": values})["y"], expected)


class Times(trt.IProfiler):
    """Names of layers, as a profiler hears of them."""

    def __init__(self) -> None:
        trt.IProfiler.__init__(self)
        self.names: list[str] = []

    def report_layer_time(self, layer_name: str, ms: float) -> None:
        self.names.append(layer_name)


def test_profilers_and_inspectors_tell_of_all_layers(
    builder: Any, network: Any, load: Any, constant: Any, execute: Any
) -> None:
    x = network.add_input("x", trt.float32, (3, 4))
    none = trt.MatrixOperation.NONE
    product = network.add_matrix_multiply(x, none, constant(network, torch.randn(4, 5).numpy()), none)
    bias = network.add_elementwise(
        product.get_output(0), constant(network, torch.randn(1, 5).numpy()), trt.ElementWiseOperation.SUM
    )
    gate = network.add_activation(bias.get_output(0), trt.ActivationType.SIGMOID)
    gated = network.add_elementwise(bias.get_output(0), gate.get_output(0), trt.ElementWiseOperation.PROD)
    for name, layer in (("product", product), ("bias", bias), ("gate", gate), ("gated", gated)):
        layer.name = name
        layer.metadata = f"of {name}"
    network.mark_output(gated.get_output(0))
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    engine = load(network, config=config)
    told = json.loads(engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON))
    layers = [layer for layer in told["Layers"] if layer["LayerType"] != "CONSTANT"]
    assert [(layer["LayerType"], layer["Name"]) for layer in layers] == [
        ("LINEAR", "product + bias"),
        ("GATE", "gate + gated"),
    ]
    assert layers[0]["Metadata"] == "of product of bias"
    context = engine.create_execution_context()
    context.profiler = times = Times()
    execute(context, {"x": torch.randn(3, 4)})
    assert times.names == ["product + bias", "gate + gated"]


def test_neighbours_whose_tensors_are_watched_stay(network: Any, load: Any, constant: Any) -> None:
    """A debug listener sees what lies between them."""
    x = network.add_input("x", trt.float32, (3, 4))
    none = trt.MatrixOperation.NONE
    product = network.add_matrix_multiply(x, none, constant(network, torch.randn(4, 5).numpy()), none).get_output(0)
    total = network.add_elementwise(
        product, constant(network, torch.randn(1, 5).numpy()), trt.ElementWiseOperation.SUM
    ).get_output(0)
    gate = _activation(network, total, "SIGMOID")
    network.mark_output(_product(network, total, gate))
    for tensor in (product, gate):
        network.mark_debug(tensor)
    kinds = [layer["type"] for layer in load(network)._state.structure["layers"]]
    assert [kind for kind in kinds if kind != "CONSTANT"] == ["LINEAR", "ELEMENTWISE", "ACTIVATION", "ELEMENTWISE"]


@pytest.mark.parametrize("region", ["loop", "conditional"])
def test_neighbours_inside_of_loops_and_conditionals(
    network: Any, load: Any, constant: Any, execute: Any, region: str
) -> None:
    """Matrix and bias come from outside, and a refit reaches them there."""
    x = network.add_input("x", trt.float32, (3, 4))
    matrix, bias = torch.randn(4, 4) / 4, torch.randn(1, 4)

    def step(value: Any) -> Any:
        none = trt.MatrixOperation.NONE
        product = network.add_matrix_multiply(value, none, constants[0], none).get_output(0)
        total = network.add_elementwise(product, constants[1], trt.ElementWiseOperation.SUM).get_output(0)
        return _product(network, total, _activation(network, total, "SIGMOID"))

    constants = [constant(network, each.numpy()) for each in (matrix, bias)]
    if region == "loop":
        loop = network.add_loop()
        count = network.add_constant((), trt.Weights(torch.tensor(3, dtype=torch.int32).numpy())).get_output(0)
        loop.add_trip_limit(count, trt.TripLimit.COUNT)
        state = loop.add_recurrence(x)
        state.set_input(1, step(state.get_output(0)))
        y = loop.add_loop_output(state.get_output(0), trt.LoopOutput.LAST_VALUE, 0).get_output(0)
    else:
        conditional = network.add_if_conditional()
        flag = network.add_input("flag", trt.bool, ())
        conditional.set_condition(flag)
        inside = conditional.add_input(x).get_output(0)
        y = conditional.add_output(step(inside), inside).get_output(0)
    y.name = "y"
    network.mark_output(y)
    engine = load(network)
    (node,) = [layer for layer in engine._state.structure["layers"] if "body" in layer]
    assert [layer["type"] for layer in node["body"] if layer["type"] != "CONSTANT"] == ["LINEAR", "GATE"]
    value = torch.randn(3, 4)
    given = {"x": value} if region == "loop" else {"x": value, "flag": torch.tensor(True)}
    found = execute(engine.create_execution_context(), given)["y"]
    for _ in range(3 if region == "loop" else 1):
        value = F.silu(value @ matrix + bias)
    torch.testing.assert_close(found, value)
