"""Blocks become networks: every kind of output, folding, and converters that do not keep their promise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

import trt_portable
from trt_converters import BuiltEngine, Converter, ConverterRegistry, build_block
from trt_converters.build import new_network
from trt_converters.interpreter import BlockInterpreter
from trt_converters.testing import compare, run_engine
from trt_core import CompilationSettings, ConversionError, trt
from trt_core.log import provider_logger
from trt_core.sizes.ranges import ShapeRanges

aten = torch.ops.aten
SETTINGS = CompilationSettings(optimization_level=0)
X = torch.tensor([[1.0, -2.0, 3.0], [-4.0, 5.0, -6.0]])


def _build(block: fx.GraphModule, registry: ConverterRegistry | None = None) -> BuiltEngine:
    options = {} if registry is None else {"registry": registry}
    return build_block(block, SETTINGS, ShapeRanges(), "block", **options)


def _check(block: fx.GraphModule, *inputs: torch.Tensor) -> None:
    engine = _build(block)
    expected = block(*inputs)
    compare(
        run_engine(engine.plan, engine.input_names, inputs),
        [expected] if isinstance(expected, torch.Tensor) else list(expected),
    )


def _layers(block: fx.GraphModule) -> list[str]:
    network = new_network(trt.Builder(provider_logger()))
    BlockInterpreter(block, network, SETTINGS, ShapeRanges()).run()
    return [network.get_layer(index).type.name for index in range(network.num_layers)]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.abs(),
        lambda x: (x, x.abs()),
        lambda x: (x.abs(), x),
        lambda x: (x, x),
        lambda x: [y := x.abs(), y, y],
        lambda x: (x.abs(), torch.ones(2, 2)),
        lambda x: (x + 1, x.new_full((3,), 7, dtype=torch.int64)),
        lambda x: torch.topk(x, 2),
        lambda x: torch.split(x, 1, 1)[::-1],
    ],
    ids=["one", "input first", "input last", "input twice", "duplicate", "constant", "new constant", "pair", "list"],
)
def test_outputs_of_every_kind(function: Any, make_block: Any) -> None:
    _check(make_block(function, X), X)


def test_an_output_may_be_called_like_an_input(make_block: Any) -> None:
    block = make_block(lambda x: x.abs(), X)
    placeholder = next(iter(block.graph.nodes))
    placeholder.name = placeholder.target = "output_0"
    block.recompile()
    engine = _build(block)
    assert engine.input_names == ("output_0",)
    assert engine.output_names == ("output_0_",)


def test_attributes_are_constants() -> None:
    root = torch.nn.Module()
    root.weight = torch.nn.Parameter(torch.randn(3))
    graph = fx.Graph()
    x, weight = graph.placeholder("x"), graph.get_attr("weight")
    node = graph.call_function(aten.mul.Tensor, (x, weight))
    graph.output((node, weight))
    for item, value in ((x, X), (weight, root.weight), (node, X)):
        item.meta["val"] = value
    _check(fx.GraphModule(root, graph), X)


def test_what_is_known_is_computed_while_building() -> None:
    root = torch.nn.Module()
    root.register_buffer("table", torch.arange(6.0).reshape(2, 3))
    graph = fx.Graph()
    x, table = graph.placeholder("x"), graph.get_attr("table")
    turned = graph.call_function(aten.permute.default, (table, [1, 0]))
    scaled = graph.call_function(aten.exp.default, (turned,))
    product = graph.call_function(aten.mm.default, (x, scaled))
    graph.output((product,))
    for node, value in ((x, X), (table, root.table), (turned, root.table.t()), (scaled, root.table.t())):
        node.meta["val"] = value
    product.meta["val"] = X @ root.table.t()
    block = fx.GraphModule(root, graph)
    assert _layers(block) == ["CONSTANT", "MATRIX_MULTIPLY"]
    _check(block, X)


def test_a_converter_that_does_not_fold_is_called_for_constants() -> None:
    called = []

    def convert(ctx: Any, self: Any) -> Any:
        called.append(type(self))
        return ctx.output(ctx.network.add_unary(ctx.tensor(self), trt.UnaryOperation.ABS))

    root = torch.nn.Module()
    root.register_buffer("table", X)
    graph = fx.Graph()
    node = graph.call_function(aten.abs.default, (graph.get_attr("table"),))
    graph.output((node,))
    for item in graph.nodes:
        item.meta["val"] = X
    for fold in (True, False):
        registry = ConverterRegistry()
        registry.register(Converter(aten.abs.default, convert, fold=fold))
        _build(fx.GraphModule(root, graph), registry)
    assert called == [torch.Tensor]


def _lying(make: Any) -> ConverterRegistry:
    registry = ConverterRegistry()
    registry.register(Converter(aten.abs.default, lambda ctx, self: make(ctx, self)))
    return registry


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (
            lambda ctx, x: ctx.output(ctx.network.add_cast(x, trt.float16)),
            "the converter made torch.float16, PyTorch makes torch.float32",
        ),
        (
            lambda ctx, x: ctx.output(ctx.network.add_reduce(x, trt.ReduceOperation.SUM, 1, False)),
            r"the converter made shape \(3,\), PyTorch makes \(2, 3\)",
        ),
        (
            lambda ctx, x: ctx.output(ctx.network.add_reduce(x, trt.ReduceOperation.SUM, 1, True)),
            r"the converter made shape \(1, 3\), PyTorch makes \(2, 3\)",
        ),
        (lambda ctx, x: ctx.output(ctx.network.add_softmax(ctx.tensor(3))), "TensorRT refused a layer"),
        (lambda ctx, x: {}["missing"], "KeyError: 'missing'"),
        (lambda ctx, x: None.shape, "AttributeError"),
    ],
    ids=["type", "rank", "extent", "refused layer", "exception", "attribute"],
)
def test_a_converter_that_does_not_keep_its_promise_is_named(make: Any, complaint: str, make_block: Any) -> None:
    block = make_block(lambda x: torch.neg(x.abs()), X)
    node = next(node for node in block.graph.nodes if node.target is aten.abs.default)
    node.stack_trace = 'File "model.py", line 3, in forward\n    x.abs()'
    with trt_portable.strict(False), pytest.raises(ConversionError, match=complaint) as caught:
        _build(block, _lying(make))
    assert caught.value.node_name == node.name
    assert "model.py:3" in caught.value.where


def test_a_node_that_no_converter_takes_is_an_error(make_block: Any) -> None:
    with pytest.raises(ConversionError, match="no converter takes this node"):
        _build(make_block(torch.abs, X), ConverterRegistry())


def test_inputs_are_tensors_of_types_that_exist(make_block: Any) -> None:
    graph = fx.Graph()
    number = graph.placeholder("number")
    number.meta["val"] = 3
    graph.output((number,))
    with pytest.raises(ConversionError, match="the block's input is not a tensor but int"):
        _build(fx.GraphModule(torch.nn.Module(), graph))
    with pytest.raises(ConversionError, match="float64"):
        _build(make_block(torch.abs, X.double()))
