"""Which attributes of a graph are state."""

from __future__ import annotations

import torch
from torch import fx

from trt_core.attributes import is_state

aten = torch.ops.aten


def _graph() -> tuple[fx.Graph, fx.Node]:
    graph = fx.Graph()
    return graph, graph.get_attr("buffer")


def test_an_attribute_that_is_only_read_is_no_state() -> None:
    graph, buffer = _graph()
    graph.call_function(aten.add.Tensor, (buffer, buffer))
    graph.call_function(aten.copy_.default, (graph.placeholder("x"), buffer))
    assert not is_state(buffer)


def test_an_attribute_that_is_written_to_is_state() -> None:
    graph, buffer = _graph()
    graph.call_function(aten.copy_.default, (buffer, graph.placeholder("x")))
    assert is_state(buffer)


def test_writes_by_keyword_and_in_lists_count() -> None:
    graph, buffer = _graph()
    other = graph.get_attr("other")
    x = graph.placeholder("x")
    graph.call_function(aten.add.out, (x, x), {"out": buffer})
    graph.call_function(aten._foreach_add_.Scalar, ([x, other], 1))
    assert is_state(buffer)
    assert is_state(other)


def test_inputs_are_no_state() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(aten.relu_.default, (x,))
    assert not is_state(x)
