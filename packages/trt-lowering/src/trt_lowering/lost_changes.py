"""Refuses programs that change an input or a buffer in a way that a captured program does not carry over.

What is written to the elements of an input comes back as a write. That a tensor is transposed in place, resized, or
made to refer to other memory is seen while the program runs, and lost when it ends: callers would find it as it was.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx

from trt_core import LoweringError
from trt_core.internals import OpOverload
from trt_core.provenance import node_location
from trt_lowering.attributes import read_attribute
from trt_lowering.node_metadata import graph_results, same_layout
from trt_lowering.operator_traits import mutated_arguments, tensor_value
from trt_lowering.passes.inline_wrapped_regions import wrapped_region

_DATA_ASSIGNED: Final = "aten::_has_compatible_shallow_copy_type"
"""What `x.data = y` leaves behind in a captured graph."""


def refuse_lost_changes(program: torch.export.ExportedProgram) -> None:
    """Refuses a program that leaves an input, a parameter or a buffer with another shape, strides or memory.

    Args:
        program: The program; operators that write in place are still in it.

    Raises:
        LoweringError: There is such a change; the message names the operator, and the input or buffer.
    """
    targets = {**program.graph_signature.inputs_to_parameters, **program.graph_signature.inputs_to_buffers}
    left: dict[fx.Node, fx.Node] = {}
    states = {node: node for node in program.graph.find_nodes(op="placeholder")}
    _collect(program.graph_module, states, left)
    for state, node in left.items():
        before, after = tensor_value(state), tensor_value(node)
        assert isinstance(node.target, OpOverload)
        name = node.target._schema.name.partition("::")[2]
        if before is None or after is None or (same_layout(before, after) and name != "set_"):
            continue
        twin = name.rstrip("_")
        instead = (
            f"use {twin}(), which returns a new tensor, or"
            if hasattr(torch.Tensor, twin)
            else "go on with a view of it, or"
        )
        target = targets.get(state.name)
        raise LoweringError(
            f"the model changes {f'its tensor {target}' if target else f'input {state.name}'} by {name}(), "
            "which a compiled model cannot do",
            where=node_location(node),
            why=f"it has the shape {tuple(before.shape)} and strides {before.stride()} before the call, and "
            f"{tuple(after.shape)} and {after.stride()} after it; a compiled model writes to elements only",
            hint=f"{instead} change a clone",
        )


def _collect(gm: fx.GraphModule, states: dict[fx.Node, fx.Node], left: dict[fx.Node, fx.Node]) -> None:
    """Finds the last operator that changes each input, wrapped regions included.

    Args:
        gm: The graph.
        states: Which input of the program a node is; what operators that write in place return is added.
        left: The last such operator, by input; added to.
    """
    for node in gm.graph.nodes:
        if node.op != "call_function":
            continue
        region = wrapped_region(node)
        if region is not None:
            holder, operands = region
            _collect_in_region(node, read_attribute(gm, str(holder.target)), operands, states, left)
            continue
        if not isinstance(node.target, OpOverload):
            continue
        if node.target._schema.name == _DATA_ASSIGNED:
            raise LoweringError(
                "the model assigns to the data of a tensor, which is lost when it is captured",
                where=node_location(node),
                hint="write to the tensor with copy_(), or go on with the new tensor instead",
            )
        state = _state_in(states, node.args[0]) if mutated_arguments(node.target) == (0,) and node.args else None
        if state is not None:
            states[node] = state
            if torch.Tag.inplace_view in node.target.tags and node.target is not torch.ops.aten.detach_.default:
                left[state] = node


def _collect_in_region(
    call: fx.Node,
    body: fx.GraphModule,
    operands: Sequence[Any],
    states: dict[fx.Node, fx.Node],
    left: dict[fx.Node, fx.Node],
) -> None:
    pairs = zip(body.graph.find_nodes(op="placeholder"), operands, strict=True)
    given = ((inner, _state_in(states, operand)) for inner, operand in pairs)
    inside = {inner: state for inner, state in given if state is not None}
    _collect(body, inside, left)
    results = graph_results(body.graph)
    for user in call.users:
        state = _state_in(inside, results[user.args[1]]) if user.target is operator.getitem else None  # type: ignore[index]
        if state is not None:
            states[user] = state


def _state_in(states: Mapping[fx.Node, fx.Node], item: object) -> fx.Node | None:
    return states.get(item) if isinstance(item, fx.Node) else None
