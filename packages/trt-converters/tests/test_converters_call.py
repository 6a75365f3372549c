"""What support checks see of a call."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx, nn

from trt_converters import Call
from trt_converters.call import is_static
from trt_core import CompilationSettings

aten = torch.ops.aten
SETTINGS = CompilationSettings()


def _last_call(block: fx.GraphModule, target: Any) -> Call:
    return Call([node for node in block.graph.nodes if node.target is target][-1], SETTINGS)


def test_nodes_stand_as_their_metadata(make_block: Any) -> None:
    call = _last_call(
        make_block(lambda x, y: torch.cat([x, y], 1), torch.ones(2, 3), torch.ones(2, 1)), aten.cat.default
    )
    assert [tuple(tensor.shape) for tensor in call["tensors"]] == [(2, 3), (2, 1)]
    assert call["dim"] == 1
    assert tuple(call.result.shape) == (2, 4)
    with pytest.raises(TypeError, match="dim is not a tensor but int"):
        call.tensor("dim")


def test_a_node_without_metadata_cannot_be_judged() -> None:
    graph = fx.Graph()
    node = graph.call_function(aten.relu.default, (graph.placeholder("x"),))
    with pytest.raises(KeyError, match="node x has no meta"):
        Call(node, SETTINGS).tensor("self")


def test_parameters_are_constants_and_inputs_are_not() -> None:
    root = nn.Module()
    root.inner = nn.Module()
    root.inner.weight = nn.Parameter(torch.tensor([1.0, 2.0]))
    graph = fx.Graph()
    x = graph.placeholder("x")
    weight = graph.get_attr("inner.weight")
    node = graph.call_function(aten.mul.Tensor, (x, weight))
    fx.GraphModule(root, graph)
    call = Call(node, SETTINGS)
    assert call.is_constant("other")
    assert not call.is_constant("self")
    assert call.constant("other") is root.inner.weight
    assert call.constant("self") is None


def test_a_buffer_that_the_graph_writes_to_is_no_constant() -> None:
    root = nn.Module()
    root.register_buffer("count", torch.zeros(2))
    graph = fx.Graph()
    count = graph.get_attr("count")
    node = graph.call_function(aten.add.Tensor, (count, 1))
    graph.call_function(aten.copy_.default, (count, node))
    fx.GraphModule(root, graph)
    assert not Call(node, SETTINGS).is_constant("self")
    assert Call(node, SETTINGS).constant("self") is None
    assert Call(node, SETTINGS).constant("other") == 1


def test_results_that_nothing_uses_are_not_looked_at(make_block: Any) -> None:
    call = _last_call(make_block(lambda x: torch.topk(x, 2)[0], torch.ones(3)), aten.topk.default)
    assert call.uses(0)
    assert call.uses(1)  # tracing unpacks every result
    graph = call.node.graph
    for node in list(graph.nodes):
        if node.target is operator.getitem and node.args[1] == 1:
            graph.erase_node(node)
    assert not call.uses(1)
    assert [tensor.dtype for tensor in call.tensors()] == [torch.float32, torch.float32]


def test_static_means_every_extent_is_known(make_block: Any) -> None:
    fixed = _last_call(make_block(torch.relu, torch.ones(2, 3)), aten.relu.default)
    symbolic = _last_call(make_block(torch.relu, torch.ones(2, 3), symbolic=True), aten.relu.default)
    assert is_static(fixed.tensor("self"))
    assert not is_static(symbolic.tensor("self"))
