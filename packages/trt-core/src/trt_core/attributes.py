"""Attributes that `get_attr` nodes of a graph name by their dotted path, and what graphs write to."""

from __future__ import annotations

import functools
from typing import Any, Final, cast

import torch
from torch import fx, nn

from trt_core.internals import OpOverload

LIES_AS_CAPTURED: Final = "lies_as_captured"
"""Where metadata of an input say that a call must bring it with the strides that it had at capture."""


def read_attribute(module: nn.Module, path: str) -> Any:
    """Returns the attribute at a dotted path, such as `encoder.0.weight`.

    Raises:
        AttributeError: There is none.
    """
    return functools.reduce(getattr, path.split("."), module)


def owner_of(module: nn.Module, path: str) -> tuple[nn.Module, str]:
    """Returns the module of which a dotted path names an attribute, and the attribute's name there.

    Modules that lack on the way are made, empty ones.
    """
    *parts, name = path.split(".")
    for part in parts:
        if part not in module._modules:
            module.add_module(part, nn.Module())
        module = cast("nn.Module", module._modules[part])
    return module, name


def part_at(module: nn.Module, path: str) -> Any:
    """Returns the child at a dotted path, whatever attributes modules have of that name."""
    parts = path.split(".") if path else []
    return functools.reduce(lambda owner, part: owner._modules[part], parts, cast("Any", module))


def holder_of(module: nn.Module, name: str) -> dict[str, Any]:
    """Returns in what a module holds a tensor: its parameters, its buffers, or its plain attributes."""
    held = vars(module)
    return next((kind for kind in (held["_parameters"], held["_buffers"]) if name in kind), held)


def is_state(node: fx.Node) -> bool:
    """Whether a node reads an attribute that the graph also writes to, such as a counter or a cache.

    Args:
        node: Any node; only `get_attr` nodes can be state.
    """
    return node.op == "get_attr" and is_written(node)


def is_written(node: fx.Node) -> bool:
    """Whether the graph writes to what a node stands for, an attribute or an input."""
    return any(_writes_to(user, node) for user in node.users)


def _writes_to(user: fx.Node, node: fx.Node) -> bool:
    if user.op == "call_module":
        return _child_writes_to(user, node)
    if has_hidden_state(user):
        return node in user.args[3:5]
    target = user.target
    if not isinstance(target, OpOverload) or not target._schema.is_mutable:
        return False
    for position, argument in enumerate(target._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = user.args[position] if position < len(user.args) else user.kwargs.get(argument.name)
        if given is node or (isinstance(given, (list, tuple)) and node in given):
            return True
    return False


_RUNNING_STATISTICS: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("batch_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_batch_norm_impl_index"),
        "instance_norm",
    )
)
"""Operators that write to running statistics in training; PyTorch keeps their schemas for old programs."""


def has_hidden_state(node: fx.Node) -> bool:
    """Whether the node updates running statistics that its schema does not declare as mutated."""
    target = node.target
    if not isinstance(target, OpOverload) or target._schema.name not in _RUNNING_STATISTICS:
        return False
    flag = 5  # `training`, of instance_norm `use_input_stats`, sits at the same position
    return len(node.args) > flag and bool(node.args[flag]) and node.args[3] is not None


def _child_writes_to(call: fx.Node, node: fx.Node) -> bool:
    """Whether a child that a node is given to writes to it: splitting a graph moves writes into its blocks."""
    owner = call.graph.owning_module
    child = None if owner is None else owner.get_submodule(str(call.target))
    if not isinstance(child, fx.GraphModule):
        written = getattr(child, "written_inputs", ())  # an engine in place of a block
        return any(position < len(call.args) and call.args[position] is node for position in written)
    pairs = zip(call.args, child.graph.find_nodes(op="placeholder"), strict=False)
    return any(given is node and is_written(placeholder) for given, placeholder in pairs)


_CONSTANT: Final = "_lowered_constant"


def add_constant(gm: fx.GraphModule, tensor: torch.Tensor) -> str:
    """Registers a tensor as a buffer under a fresh name, and returns the name."""
    index = len(gm._buffers)
    while hasattr(gm, f"{_CONSTANT}{index}"):
        index += 1
    name = f"{_CONSTANT}{index}"
    gm.register_buffer(name, tensor.detach(), persistent=True)
    return name


def written_targets(graph: fx.Graph) -> frozenset[str]:
    """Returns the attributes that the graph writes to: they are state, not constants."""
    return frozenset(str(node.target) for node in graph.find_nodes(op="get_attr") if is_written(node))
