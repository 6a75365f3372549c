"""Opens tensor subclasses, such as quantized weights of torchao: what they hold becomes attributes of the graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from trt_core import logger
from trt_core.attributes import add_constant, read_attribute
from trt_core.internals import (
    FakeTensor,
    FakeTensorMode,
    compile_session,
    enable_python_dispatcher,
    is_traceable_wrapper_subclass,
    make_fx,
    schema_name,
)
from trt_core.weight_recipes import RECIPE, Literal, Recipe, Source, inner_name, opened_weights
from trt_lowering.contract import GraphPass
from trt_lowering.expansion import copy_module, make_functional, no_new_guards
from trt_lowering.node_metadata import provenance_of

_ACCESS = "export::access_subclass_inner_tensor"


class OpenWrappedTensors(GraphPass):
    """Replaces reads of the tensors inside a wrapper by attributes, and calls that take one by what they compute.

    A call is traced alone, with the tensors inside of its wrappers; where its result is a wrapper, the calls that read
    it are opened in turn. What cannot be traced so keeps its wrapper.

    Requires: values on nodes.
    Ensures: no attribute that is read is a wrapper, but for calls that cannot be traced.
    """

    name = "open_wrapped_tensors"

    def call(self, gm: fx.GraphModule) -> int:
        """Follows accesses and calls in the order of the graph, so that wrappers inside of wrappers open too."""
        changes = 0
        for node in list(gm.graph.nodes):
            if schema_name(node.target) != _ACCESS:
                continue
            owner, name = node.args
            if owner.op != "get_attr":
                continue
            wrapper: Any = read_attribute(gm, str(owner.target))
            inner: Any = getattr(wrapper, name)
            with gm.graph.inserting_before(node):
                opened = gm.graph.get_attr(add_constant(gm, inner))
            opened.meta.update(node.meta)
            opened.meta[RECIPE] = _inner_recipe(owner, inner, functools.partial(inner_name, wrapper, name))
            node.replace_all_uses_with(opened)
            gm.graph.erase_node(node)
            changes += 1
        changes += _open_calls(gm)
        for node in wrapped_attributes(gm):
            if not node.users:
                gm.graph.erase_node(node)
        return changes

    def ensures(self, gm: fx.GraphModule) -> None:
        """Checks that wrappers are gone."""
        self.require_values(gm)


@dataclass(frozen=True)
class _Wrapper:
    """A wrapper in terms of the graph.

    Attributes:
        kind: Its class.
        context: What the class puts it together from, beside the tensors.
        size, stride: Its own.
        parts: The tensors inside by name: nodes that compute them, or wrappers in turn.
    """

    kind: Any
    context: Any
    size: Any
    stride: Any
    parts: Mapping[str, Any]

    def nodes(self) -> Iterator[fx.Node]:
        """Yields the nodes of all tensors inside."""
        for part in self.parts.values():
            if isinstance(part, _Wrapper):
                yield from part.nodes()
            else:
                yield part

    def together(self, values: Mapping[fx.Node, Any]) -> Any:
        """Puts a wrapper together from values of its nodes."""
        inner = {
            name: part.together(values) if isinstance(part, _Wrapper) else values[part]
            for name, part in self.parts.items()
        }
        return self.kind.__tensor_unflatten__(inner, self.context, self.size, self.stride)


def _taken_apart(value: Any, leaf: Callable[[torch.Tensor], Any]) -> _Wrapper:
    """Returns a wrapper with something in place of each tensor inside."""
    names, context = value.__tensor_flatten__()
    parts = {name: getattr(value, name) for name in names}
    return _Wrapper(
        type(value),
        context,
        value.size(),
        value.stride(),
        {name: _taken_apart(part, leaf) if is_wrapper(part) else leaf(part) for name, part in parts.items()},
    )


def _open_calls(gm: fx.GraphModule) -> int:
    mode = next(
        (value.fake_mode for node in gm.graph.nodes if isinstance(value := node.meta.get("val"), FakeTensor)), None
    )
    if mode is None:
        return 0
    opened: dict[fx.Node, _Wrapper] = {}
    for node in wrapped_attributes(gm):
        if node.users:
            opened[node] = _opened_attribute(gm, node, mode)
    if not opened:
        return 0
    attributes = list(opened)
    done: list[fx.Node] = []
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and any(operand in opened for operand in node.all_input_nodes):
            result = _opened_call(gm, node, opened, mode)
            if result is None:
                continue
            done.append(node)
            if isinstance(result, _Wrapper):
                opened[node] = result
            else:
                node.replace_all_uses_with(result)
    for node in reversed(done):
        if not node.users:
            gm.graph.erase_node(node)
    for node in (part for wrapper in opened.values() for part in wrapper.nodes()):
        if not node.users and node.op == "get_attr" and node.graph is gm.graph and not node._erased:
            gm.graph.erase_node(node)
    return len(done) + len(attributes)


def _inner_recipe(owner: fx.Node, inner: torch.Tensor, named: Callable[[str], str]) -> Recipe:
    """Returns how a tensor inside of an attribute follows from weights of the model.

    Args:
        owner: Reads the attribute.
        inner: The tensor.
        named: Gives its name, for a name of the attribute.
    """
    held = owner.meta.get(RECIPE)
    if not isinstance(held, Source):
        return Literal(inner)
    return Source(named(held.name), inner.dtype, tuple(inner.shape), tuple(map(named, held.tied)))


def _opened_attribute(gm: fx.GraphModule, node: fx.Node, mode: FakeTensorMode) -> _Wrapper:
    wrapper = read_attribute(gm, str(node.target))

    def name_of(inner: torch.Tensor, held: str) -> str:
        return next(name for name, value in opened_weights({held: wrapper}, keep=False).items() if value is inner)

    def attribute(inner: torch.Tensor) -> fx.Node:
        with gm.graph.inserting_before(node):
            opened = gm.graph.get_attr(add_constant(gm, inner))
        opened.meta.update({**provenance_of(node), "val": mode.from_tensor(inner.detach(), static_shapes=True)})
        opened.meta[RECIPE] = _inner_recipe(node, inner, functools.partial(name_of, inner))
        return opened

    return _taken_apart(wrapper, attribute)


def _opened_call(
    gm: fx.GraphModule, node: fx.Node, opened: Mapping[fx.Node, _Wrapper], mode: FakeTensorMode
) -> fx.Node | _Wrapper | None:
    """Puts what a call computes before it; returns its result, None where it cannot be traced."""
    plain = [operand for operand in node.all_input_nodes if operand not in opened]
    inside = [part for operand in node.all_input_nodes if operand in opened for part in opened[operand].nodes()]
    operands = list(dict.fromkeys([*plain, *inside]))
    shapes: list[Any] = []

    def call(*inputs: Any) -> list[torch.Tensor]:
        values = dict(zip(operands, inputs, strict=True))
        given = {
            operand: opened[operand].together(values) if operand in opened else values[operand]
            for operand in node.all_input_nodes
        }
        args, kwargs = fx.map_arg((node.args, node.kwargs), given.__getitem__)
        assert callable(node.target)
        result = node.target(*args, **kwargs)
        if not is_wrapper(result):
            shapes.append(None)
            return [result]
        leaves: list[torch.Tensor] = []

        def place(inner: torch.Tensor) -> int:
            leaves.append(inner)
            return len(leaves) - 1

        shapes.append(_taken_apart(result, place))
        return leaves

    traced = _trace(call, [operand.meta["val"] for operand in operands], mode, node)
    if traced is None:
        return None
    results = copy_module(gm, node, traced, operands)
    return results[0] if shapes[-1] is None else _with_nodes(shapes[-1], results)


def _trace(
    call: Callable[..., Any], values: Sequence[Any], mode: FakeTensorMode, node: fx.Node
) -> fx.GraphModule | None:
    try:
        with compile_session(), torch.no_grad(), mode, enable_python_dispatcher(), no_new_guards(mode):
            module = make_fx(call)(*values)
    except Exception as error:  # a subclass may fail in any way; the wrapper then stays
        logger.debug("%s keeps its wrapper: tracing it failed with %s", node.target, error)
        return None
    for constant in module.graph.find_nodes(op="get_attr"):
        tensor = getattr(module, str(constant.target), None)
        if isinstance(tensor, FakeTensor) or not isinstance(tensor, torch.Tensor):
            return None
    functional = make_functional(module, mode)
    if functional is None:
        return None
    is_opened = all("val" in item.meta for item in functional.graph.nodes if item.op == "call_function")
    return functional if is_opened else None


def _with_nodes(shape: Any, nodes: Sequence[fx.Node]) -> _Wrapper:
    """Returns a wrapper with nodes in place of their positions."""
    parts = {
        name: _with_nodes(part, nodes) if isinstance(part, _Wrapper) else nodes[part]
        for name, part in shape.parts.items()
    }
    return _Wrapper(shape.kind, shape.context, shape.size, shape.stride, parts)


def wrapped_attributes(gm: fx.GraphModule) -> list[fx.Node]:
    """Returns the nodes that read an attribute whose value is a wrapper of other tensors."""
    return [node for node in gm.graph.find_nodes(op="get_attr") if is_wrapper(read_attribute(gm, str(node.target)))]


def is_wrapper(value: Any) -> bool:
    """Whether a value is a tensor that holds others, as export sees it."""
    return isinstance(value, torch.Tensor) and is_traceable_wrapper_subclass(value)
