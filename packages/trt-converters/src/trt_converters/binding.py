"""Schema-bound arguments: what an operator was called with, by parameter name, defaults filled in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import fx

from trt_core.control_flow import PARAMETERS, is_control_flow
from trt_core.internals import OpOverload
from trt_core.operators import operator_name


class BindingError(Exception):
    """The arguments of a node do not fit its operator's schema."""


def bind_arguments(node: fx.Node) -> dict[str, Any]:
    """Binds the arguments of a node to its operator's schema.

    Args:
        node: A `call_function` node whose target is an `OpOverload`, or a branch or loop, whose graphs have no schema.

    Returns:
        Every parameter of the schema with its argument (nodes stay nodes), defaults filled in, in schema order.

    Raises:
        BindingError: An argument is unknown, given twice, or missing.
    """
    target = node.target
    if is_control_flow(target):
        names = PARAMETERS[target.name()]  # type: ignore[union-attr]
        if len(node.args) != len(names) or node.kwargs:
            raise BindingError(f"{operator_name(target)} takes {', '.join(names)}")
        return dict(zip(names, node.args, strict=True))
    if not isinstance(target, OpOverload):
        raise BindingError(f"{operator_name(target)} has no schema")
    parameters = target._schema.arguments
    if len(node.args) > len(parameters):
        raise BindingError(f"{len(node.args)} arguments for {len(parameters)} parameters of {target}")
    bound: dict[str, Any] = {}
    unused = dict(node.kwargs)
    for position, parameter in enumerate(parameters):
        name = parameter.name
        if position < len(node.args):
            if name in unused:
                raise BindingError(f"parameter {name!r} of {target} is given twice")
            bound[name] = node.args[position]
        elif name in unused:
            bound[name] = unused.pop(name)
        elif parameter.has_default_value():
            bound[name] = parameter.default_value
        else:
            raise BindingError(f"parameter {name!r} of {target} is missing")
    if unused:
        raise BindingError(f"{target} has no parameter {next(iter(unused))!r}")
    return bound


def map_nodes(value: Any, function: Callable[[fx.Node], Any]) -> Any:
    """Replaces every node in an argument, lists, tuples and dicts included, by what the function gives for it."""
    if isinstance(value, fx.Node):
        return function(value)
    if isinstance(value, (list, tuple)):
        return [map_nodes(item, function) for item in value]
    if isinstance(value, Mapping):
        return {key: map_nodes(item, function) for key, item in value.items()}
    return value
