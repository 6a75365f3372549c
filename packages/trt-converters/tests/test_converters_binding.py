"""Arguments bound to the operator's schema."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx

from trt_converters.call import BindingError, bind_arguments, map_nodes

aten = torch.ops.aten


def _call(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    return fx.Graph().call_function(target, args, kwargs)


def test_defaults_are_filled_in() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    bound = bind_arguments(graph.call_function(aten.leaky_relu.default, (x,)))
    assert bound == {"self": x, "negative_slope": 0.01}
    assert list(bound) == ["self", "negative_slope"]


@given(positional=st.integers(min_value=0, max_value=5))
def test_positions_and_keywords_bind_alike(positional: int) -> None:
    names = ["input", "weight", "bias", "stride", "padding"]
    values = [1, 2, None, [2, 2], [1, 1]]
    node = _call(
        aten.conv2d.default, *values[:positional], **dict(zip(names[positional:], values[positional:], strict=True))
    )
    bound = bind_arguments(node)
    assert bound == {**dict(zip(names, values, strict=True)), "dilation": [1, 1], "groups": 1}


@pytest.mark.parametrize(
    ("args", "kwargs", "complaint"),
    [
        ((), {}, "'self' of aten.leaky_relu.default is missing"),
        ((1, 0.5, 3), {}, "3 arguments for 2 parameters"),
        ((1,), {"self": 2}, "'self' of aten.leaky_relu.default is given twice"),
        ((1,), {"slope": 2}, "has no parameter 'slope'"),
    ],
)
def test_what_does_not_fit_the_schema_is_refused(args: Any, kwargs: Any, complaint: str) -> None:
    with pytest.raises(BindingError, match=complaint):
        bind_arguments(_call(aten.leaky_relu.default, *args, **kwargs))


def test_a_python_function_has_no_schema() -> None:
    with pytest.raises(BindingError, match=r"_operator\.add has no schema"):
        bind_arguments(_call(operator.add, 1, 2))


def test_nodes_are_replaced_inside_containers() -> None:
    graph = fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    assert map_nodes([a, (b, 1), {"k": a}, "a"], lambda node: node.name) == ["a", ["b", 1], {"k": "a"}, "a"]
