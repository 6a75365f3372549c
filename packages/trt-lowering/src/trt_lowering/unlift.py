"""Turns an exported program into a graph module whose parameters are attributes."""

from __future__ import annotations

import torch
from torch import fx, nn

from trt_core import LoweringError
from trt_core.weight_recipes import RECIPE, Literal, Source
from trt_lowering.attributes import read_attribute
from trt_lowering.node_metadata import insert_call
from trt_lowering.results import base_of


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
    _forget_other_names(stateful.graph)
    _describe_write_backs(stateful.graph)
    _name_weights(stateful, program)
    # a plain module: export's own refuses train() and eval(), and checks its inputs in a hook at every call
    return fx.GraphModule(stateful, stateful.graph)


def _move_inputs_first(graph: fx.Graph) -> None:
    first = next(iter(graph.nodes))
    for node in graph.find_nodes(op="placeholder"):
        if node is not first:
            first.prepend(node)
        else:
            first = node.next


def _forget_other_names(graph: fx.Graph) -> None:
    """Drops attributes that nothing reads: of the names of a shared tensor export uses one, and lists all of them.

    A write to such a tensor would be taken for one to another attribute, which shares its memory.
    """
    for node in graph.find_nodes(op="get_attr"):
        if not node.users:
            graph.erase_node(node)


def _describe_write_backs(graph: fx.Graph) -> None:
    """Unlifting adds write backs without saying what they return, and in an order of its own.

    What one of them writes may be what an input or attribute held before another one writes to that.
    """
    copies = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    added = [node for node in copies if "val" not in node.meta and isinstance(node.args[0], fx.Node)]
    written = {node.args[0] for node in added}
    for node in added:
        state, value = node.args
        assert isinstance(state, fx.Node)
        node.meta["val"] = state.meta["val"]
        if isinstance(value, fx.Node) and value is not state and base_of(value) in written:
            held = value.meta["val"].clone()
            with graph.inserting_before(added[0]):
                snapshot = insert_call(graph, torch.ops.aten.clone.default, (value,), value=held, origin=value)
            node.args = (state, snapshot)


def _name_weights(stateful: fx.GraphModule, program: torch.export.ExportedProgram) -> None:
    """Notes which attributes are weights of the model, under which names, and which are constants."""
    names_of: dict[tuple[int, torch.dtype, int], list[str]] = {}
    for name, value in program.state_dict.items():
        if isinstance(value, torch.Tensor) and value.numel():
            names_of.setdefault(_memory(value), []).append(name)
    for node in stateful.graph.find_nodes(op="get_attr"):
        name = str(node.target)
        value = read_attribute(stateful, name)
        if not isinstance(value, torch.Tensor):
            continue
        if name not in program.state_dict:
            node.meta[RECIPE] = Literal(value, name)
            continue
        tied = tuple(other for other in names_of.get(_memory(value), ()) if other != name)
        node.meta[RECIPE] = Source(name, value.dtype, tuple(value.shape), tied)


def _memory(tensor: torch.Tensor) -> tuple[int, torch.dtype, int]:
    """What tensors that are one weight have in common; those without memory of their own are known by themselves."""
    plain = type(tensor) in (torch.Tensor, nn.Parameter) and not tensor.is_meta
    return tensor.data_ptr() if plain else id(tensor), tensor.dtype, tensor.numel()
