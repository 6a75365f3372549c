"""Graphs of torch.compile with what is fixed taken out of their inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from trt_frontends.specialize import specialize


def _graph(marks: dict[str, Any]) -> fx.GraphModule:
    """x * weight + buffer * number; the inputs in the order weight, x, buffer, number."""
    graph = fx.Graph()
    weight, x, buffer, number = (graph.placeholder(name) for name in ("weight", "x", "buffer", "number"))
    buffer.meta["tensor_dict"] = marks
    product = graph.call_function(torch.mul, (x, weight))
    graph.output((graph.call_function(torch.add, (product, graph.call_function(torch.mul, (buffer, number)))),))
    return fx.GraphModule(nn.Module(), graph)


def test_parameters_static_buffers_and_numbers_are_fixed() -> None:
    gm = _graph({"_dynamo_static_input_type": "unguarded"})
    before = gm.code
    weight, x, buffer = nn.Parameter(torch.full((3,), 2.0)), torch.arange(3.0), torch.ones(3)
    found = specialize(gm, (weight, x, buffer, 5))
    assert found.kept == (1,)
    assert found.select((weight, x, buffer, 5)) == (x,)
    torch.testing.assert_close(found.module(x)[0], x * 2 + 5)
    assert any(value is weight for value in found.module.parameters())
    assert gm.code == before


def test_fixed_tensors_are_shared_so_that_changes_are_seen() -> None:
    weight, x, buffer = nn.Parameter(torch.ones(3)), torch.arange(3.0), torch.ones(3)
    found = specialize(_graph({"_dynamo_static_input_type": "guarded"}), (weight, x, buffer, 1))
    with torch.no_grad():
        weight.fill_(3.0)
        buffer.fill_(7.0)
    torch.testing.assert_close(found.module(x)[0], x * 3 + 7)


def test_other_tensors_stay_inputs() -> None:
    weight, x, buffer = torch.ones(3), torch.arange(3.0), torch.ones(3)
    found = specialize(_graph({}), (weight, x, buffer, 2))
    assert found.kept == (0, 1, 2)
    torch.testing.assert_close(found.module(weight * 4, x, buffer)[0], x * 4 + 2)


def test_attributes_and_submodules_of_the_graph_are_kept() -> None:
    root = nn.Module()
    root.linear = nn.Linear(3, 3)
    root.register_buffer("shift", torch.ones(3))
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.add, (graph.call_module("linear", (x,)), graph.get_attr("shift"))))
    found = specialize(fx.GraphModule(root, graph), (torch.ones(3),))
    torch.testing.assert_close(found.module(torch.ones(3)), root.linear(torch.ones(3)) + 1)
