"""A call of an operator: its arguments by the schema's names, defaults filled in, and what support checks see of it.

Support checks see metadata only; nothing is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from trt_core import CompilationSettings, operator_name
from trt_core.attributes import is_state, read_attribute
from trt_core.cached_property import cached_property
from trt_core.control_flow import PARAMETERS, is_control_flow
from trt_core.internals import OpOverload
from trt_core.nesting import leaves_of, tensors_in


@dataclass(frozen=True)
class Call:
    """One node's call of an operator.

    Attributes:
        node: The node.
        settings: What the graph is compiled with.
    """

    node: fx.Node
    settings: CompilationSettings

    @cached_property
    def bound(self) -> dict[str, Any]:
        """Arguments by parameter name; nodes stay nodes."""
        return bind_arguments(self.node)

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """Arguments by name; a node stands as its value: a `FakeTensor`, a `SymInt`, a graph, or a list of them."""
        return {name: map_nodes(value, _value_of) for name, value in self.bound.items()}

    @property
    def result(self) -> Any:
        """What the node returns: a `FakeTensor`, or a tuple or list of them."""
        return self.node.meta.get("val")

    def __getitem__(self, parameter: str) -> Any:
        """Returns an argument's value; see `arguments`."""
        return self.arguments[parameter]

    def tensor(self, parameter: str) -> torch.Tensor:
        """Returns an argument that must be a tensor (a `FakeTensor`).

        Raises:
            TypeError: It is none.
        """
        value = self.arguments[parameter]
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{parameter} is not a tensor but {type(value).__name__}")
        return value

    def is_constant(self, parameter: str) -> bool:
        """Whether an argument is known while the network is built: a number, None, or a parameter of the model.

        An attribute that the graph writes to is none: it changes from call to call.
        """
        return all(
            node.op == "get_attr" and not is_state(node)
            for node in leaves_of(self.bound[parameter])
            if isinstance(node, fx.Node)
        )

    def constant(self, parameter: str) -> Any:
        """Returns the value of an argument that is known while the network is built; see `is_constant`.

        Returns:
            The number or tensor itself; None when the graph computes it.
        """
        value = self.bound[parameter]
        if not isinstance(value, fx.Node):
            return value
        if value.op != "get_attr" or is_state(value):
            return None
        module = value.graph.owning_module
        assert module is not None  # the graph of a block
        return read_attribute(module, str(value.target))

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Returns every tensor among the arguments and the results that anything uses."""
        return self._tensors

    @cached_property
    def _tensors(self) -> tuple[torch.Tensor, ...]:
        result = self.result
        if isinstance(result, (list, tuple)):
            result = [item for index, item in enumerate(result) if self.uses(index)]
        return tuple(tensors_in([*self.arguments.values(), result]))

    def uses(self, index: int) -> bool:
        """Whether anything uses an item of the result; nothing does after lowering removed dead code."""
        return any(
            operator_name(user.target) != "_operator.getitem" or user.args[1] == index for user in self.node.users
        )


def is_static(tensor: torch.Tensor) -> bool:
    """Whether every extent is known while the network is built."""
    return all(isinstance(extent, int) for extent in tensor.shape)


def _value_of(node: fx.Node) -> Any:
    if "val" not in node.meta:
        module = node.graph.owning_module
        body = read_attribute(module, str(node.target)) if node.op == "get_attr" and module is not None else None
        if isinstance(body, fx.GraphModule):  # of a branch or a loop
            return body
        raise KeyError(f"node {node.name} has no meta['val']")
    return node.meta["val"]


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
