"""Turns an exported program into a graph module whose parameters are attributes."""

from __future__ import annotations

import torch
from torch import fx

from trt_core import LoweringError


def unlift(program: torch.export.ExportedProgram) -> fx.GraphModule:
    """Returns a module that is called like the model, with the program's own tensors as attributes.

    The graph is a copy, the tensors are not; the program is left as it is. Placeholders come first.

    Raises:
        LoweringError: The program cannot be unlifted (it was made from subgraphs that PyTorch cannot call).
    """
    try:
        stateful = program.module(check_guards=False)
    except Exception as error:
        raise LoweringError(
            "the exported program cannot be turned into a module",
            why=f"{type(error).__name__}: {error}",
            hint="check that `program.module()` works; export the model again if it does not",
        ) from error
    _move_inputs_first(stateful.graph)
    _describe_write_backs(stateful.graph)
    # a plain module: export's own refuses train() and eval(), and checks its inputs in a hook at every call
    return fx.GraphModule(stateful, stateful.graph)


def _move_inputs_first(graph: fx.Graph) -> None:
    first = next(iter(graph.nodes))
    for node in graph.find_nodes(op="placeholder"):
        if node is not first:
            first.prepend(node)
        else:
            first = node.next


def _describe_write_backs(graph: fx.Graph) -> None:
    """Unlifting adds write backs without saying what they return."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        if "val" not in node.meta and isinstance(node.args[0], fx.Node):
            node.meta["val"] = node.args[0].meta["val"]
