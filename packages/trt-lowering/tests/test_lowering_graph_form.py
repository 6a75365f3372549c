from __future__ import annotations

import operator

import pytest
import torch
from torch import fx

from trt_core import LoweringError
from trt_lowering import check_graph_form

aten = torch.ops.aten


def graph_of(build) -> fx.Graph:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(2, 3)
    graph.output(build(graph, x))
    return graph


def graph_module(build) -> fx.GraphModule:
    root = torch.nn.Module()
    root.register_buffer("state", torch.zeros(2, 3))
    return fx.GraphModule(root, graph_of(build))


def call(graph: fx.Graph, target, *args) -> fx.Node:
    node = graph.call_function(target, args)
    node.meta["val"] = torch.empty(2, 3)
    return node


def test_accepts_the_form():
    check_graph_form(graph_module(lambda graph, x: (call(graph, aten.relu.default, x),)))
    check_graph_form(
        graph_module(lambda graph, x: (call(graph, operator.getitem, call(graph, aten.unbind.int, x), 0),))
    )


def test_accepts_write_backs_at_the_end():
    def build(graph, x):
        state = graph.get_attr("state")
        state.meta["val"] = torch.empty(2, 3)
        value = call(graph, aten.relu.default, x)
        call(graph, aten.copy_.default, state, value)
        return (value,)

    check_graph_form(graph_module(build))


def without_value(graph, x):
    return (graph.call_function(aten.relu.default, (x,)),)


def in_place(graph, x):
    return (call(graph, aten.relu_.default, x),)


def python_call(graph, x):
    return (call(graph, torch.relu, x),)


def method(graph, x):
    return (graph.call_method("relu", (x,)),)


def bare_output(graph, x):
    return x


def nested_output(graph, x):
    return ((x, x), x)


def write_to_value(graph, x):
    value = call(graph, aten.relu.default, x)
    return (call(graph, aten.copy_.default, value, x),)


def early_write(graph, x):
    call(graph, aten.copy_.default, x, x)
    return (call(graph, aten.relu.default, x),)


def missing_attribute(graph, x):
    node = graph.create_node("get_attr", "nowhere.weight")
    node.meta["val"] = torch.empty(1)
    return (node,)


@pytest.mark.parametrize(
    ("build", "rule"),
    [
        (without_value, 'meta["val"]'),
        (in_place, "writes in place"),
        (python_call, "neither an operator overload"),
        (method, "call_method"),
        (bare_output, "not a flat tuple"),
        (nested_output, "nested"),
        (write_to_value, "must go to an input"),
        (early_write, "at the end"),
        (missing_attribute, "no attribute"),
    ],
)
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")
def test_refuses_what_breaks_a_rule(build, rule):
    gm = fx.GraphModule(torch.nn.Module(), fx.Graph())
    gm.graph = graph_of(build)  # the constructor would look for the attributes already
    with pytest.raises(LoweringError, match="does not have the form") as error:
        check_graph_form(gm)
    assert rule in error.value.what
