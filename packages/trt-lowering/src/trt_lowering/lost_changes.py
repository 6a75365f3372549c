"""Refuses programs that change an input or a buffer in a way that a captured program does not carry over.

What is written to the elements of an input comes back as a write. That a tensor is transposed in place, resized, or
made to refer to other memory is seen while the program runs, and lost when it ends: callers would find it as it was.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import fx
from torch._ops import OpOverload

from trt_core import LoweringError
from trt_core.provenance import node_location
from trt_lowering.node_metadata import same_layout
from trt_lowering.operator_traits import mutated_arguments, tensor_value

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
    for node in program.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, OpOverload):
            continue
        if node.target._schema.name == _DATA_ASSIGNED:
            raise LoweringError(
                "the model assigns to the data of a tensor, which is lost when it is captured",
                where=node_location(node),
                hint="write to the tensor with copy_(), or go on with the new tensor instead",
            )
        state = _state(node.args[0]) if torch.Tag.inplace_view in node.target.tags and node.args else None
        if state is not None and node.target is not torch.ops.aten.detach_.default:
            left[state] = node
    for state, node in left.items():
        before, after = tensor_value(state), tensor_value(node)
        assert isinstance(node.target, OpOverload)
        operator = node.target._schema.name.partition("::")[2]
        if before is None or after is None or (same_layout(before, after) and operator != "set_"):
            continue
        twin = operator.rstrip("_")
        instead = (
            f"use {twin}(), which returns a new tensor, or"
            if hasattr(torch.Tensor, twin)
            else "go on with a view of it, or"
        )
        name = targets.get(state.name)
        raise LoweringError(
            f"the model changes {f'its tensor {name}' if name else f'input {state.name}'} by {operator}(), "
            "which a compiled model cannot do",
            where=node_location(node),
            why=f"it has the shape {tuple(before.shape)} and strides {before.stride()} before the call, and "
            f"{tuple(after.shape)} and {after.stride()} after it; a compiled model writes to elements only",
            hint=f"{instead} change a clone",
        )


def _state(item: object) -> fx.Node | None:
    """Returns the input that a node is: itself, or what operators that write in place return."""
    while isinstance(item, fx.Node) and item.op == "call_function":
        writes = isinstance(item.target, OpOverload) and mutated_arguments(item.target) == (0,)
        item = item.args[0] if writes else None
    return item if isinstance(item, fx.Node) and item.op == "placeholder" else None
