"""Lowers functional ATen graphs, as AOTAutograd hands them to the compiler of a backend."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import fx

from trt_core import CompilationSettings, LoweringError
from trt_lowering.attributes import add_constant, read_attribute
from trt_lowering.contract import run_passes
from trt_lowering.decomposed import DecomposedGraph
from trt_lowering.decomposition_table import DecompositionRules, Preserve
from trt_lowering.inlining import replace_result
from trt_lowering.node_metadata import STATE, fake_mode_of, settle_extents
from trt_lowering.passes.remove_assertions import RemoveAssertions
from trt_lowering.tracing import traces


@traces("the captured graph cannot be lowered")
def lower_graph(
    gm: fx.GraphModule,
    settings: CompilationSettings,
    *,
    preserve: Preserve,
    constants: Mapping[str, torch.Tensor | int] | None = None,
) -> fx.GraphModule:
    """Lowers a functional graph of ATen operators.

    Args:
        gm: The graph: every node carries `meta["val"]`, nothing is written in place, and the output is flat. It is not
            changed, and its tensors are shared.
        settings: Compilation settings.
        preserve: Whether an operator has a converter, and so stays whole.
        constants: Placeholders (by target) whose value is fixed, such as frozen parameters. They become attributes,
            and the lowered module does not take them. An int must be the value that the graph was captured with.

    Returns:
        A module in the form that `check_graph_form` describes, which takes the remaining placeholders in order and
        returns a flat tuple.

    Raises:
        LoweringError: A name in `constants` is unknown, or a pass broke its contract.
    """
    return begin_lowering_graph(gm, settings, preserve=preserve, constants=constants).finish()


@traces("the captured graph cannot be lowered")
def begin_lowering_graph(
    gm: fx.GraphModule,
    settings: CompilationSettings,
    *,
    preserve: Preserve,
    constants: Mapping[str, torch.Tensor | int] | None = None,
    states: Collection[str] = (),
) -> DecomposedGraph:
    """Lowers a functional graph as far as its values do not matter; see `lower_graph` for errors and other arguments.

    Args:
        states: Placeholders (by target) that hold what lasts from call to call; the graph may return their next values.
    """
    lowered = _copy(gm)
    for node in lowered.graph.find_nodes(op="placeholder"):
        if str(node.target) in states:
            node.meta[STATE] = True
    _fix_constants(lowered, dict(constants or {}))
    run_passes(lowered, [RemoveAssertions()], recompile=False)
    return DecomposedGraph(lowered, DecompositionRules(preserve, settings), settings)


def _copy(gm: fx.GraphModule) -> fx.GraphModule:
    graph = copy.deepcopy(gm.graph)
    mode = fake_mode_of(graph)
    copied = fx.GraphModule(gm, graph)
    for node in graph.find_nodes(op="get_attr"):
        value = read_attribute(gm, str(node.target))
        if "val" not in node.meta and isinstance(value, torch.Tensor) and mode is not None:
            node.meta["val"] = mode.from_tensor(value)
    return copied


def _fix_constants(gm: fx.GraphModule, constants: dict[str, torch.Tensor | int]) -> None:
    placeholders = {str(node.target): node for node in gm.graph.find_nodes(op="placeholder")}
    unknown = constants.keys() - placeholders.keys()
    if unknown:
        raise LoweringError(
            f"the graph has no placeholder {sorted(unknown)[0]!r} to make a constant of",
            hint=f"its placeholders are {', '.join(placeholders)}",
        )
    first = next((node for node in gm.graph.nodes if node.op != "placeholder"), None)
    known: dict[Any, int] = {}
    for target, tensor in constants.items():
        placeholder = placeholders[target]
        if isinstance(tensor, int):
            known[placeholder.meta["val"].node.expr] = tensor
            replace_result(placeholder, tensor)
        elif placeholder.users:
            assert first is not None
            with gm.graph.inserting_before(first):
                attribute = gm.graph.get_attr(_register(gm, tensor))
            attribute.meta.update(placeholder.meta)
            placeholder.replace_all_uses_with(attribute)
        gm.graph.erase_node(placeholder)
    if known:
        settle_extents(gm.graph, known)


def _register(gm: fx.GraphModule, tensor: torch.Tensor) -> str:
    name = add_constant(gm, tensor)
    if isinstance(tensor, torch.nn.Parameter):
        delattr(gm, name)
        # the memory is shared, the object is not: whoever replaces the parameter must see it die
        gm.register_parameter(name, torch.nn.Parameter(tensor.detach(), requires_grad=False))
    return name
