"""Lowers exported programs: from what export captured to what partitioning takes."""

from __future__ import annotations

import copy

import torch
from torch import fx

from trt_core import CompilationSettings, LoweringError, logger
from trt_lowering.contract import Observer, run_passes
from trt_lowering.decomposed import DecomposedGraph
from trt_lowering.decomposition_table import DecompositionRules, Preserve
from trt_lowering.lost_changes import refuse_lost_changes
from trt_lowering.node_metadata import graph_results
from trt_lowering.passes.decompose import Decompose
from trt_lowering.passes.functionalize import Functionalize
from trt_lowering.passes.inline_wrapped_regions import InlineWrappedRegions, find_autocast_region
from trt_lowering.passes.open_wrapped_tensors import OpenWrappedTensors, wrapped_attributes
from trt_lowering.passes.remove_assertions import RemoveAssertions
from trt_lowering.signature import overlapping_buffers, rename_results, with_single_names
from trt_lowering.tracing import traces
from trt_lowering.unlift import unlift


@traces("the exported program cannot be lowered")
def lower(
    program: torch.export.ExportedProgram,
    settings: CompilationSettings,
    *,
    preserve: Preserve,
    observe: Observer | None = None,
) -> fx.GraphModule:
    """Lowers an exported program.

    Args:
        program: The program; it is not changed, and its tensors are shared.
        settings: Compilation settings.
        preserve: Whether an operator has a converter, and so stays whole.
        observe: Called with `capture` and the flat functional graph, then after every pass.

    Returns:
        A module in the form that `check_graph_form` describes, called like the model.

    Raises:
        LoweringError: A pass broke its contract, the program cannot be turned into a module, or it changes the shape or
            the memory of an input.
    """
    return begin_lowering(program, settings, preserve=preserve, observe=observe).finish()


@traces("the exported program cannot be lowered")
def begin_lowering(
    program: torch.export.ExportedProgram,
    settings: CompilationSettings,
    *,
    preserve: Preserve,
    observe: Observer | None = None,
) -> DecomposedGraph:
    """Lowers an exported program as far as its values do not matter; see `lower` for arguments and errors."""
    refuse_lost_changes(program)
    rules = DecompositionRules(preserve, settings)
    gm = _flat_functional(program)
    if gm is None:
        gm = _flat_functional(retrace(program, rules))
    if gm is None:
        raise LoweringError(
            "the program still writes to views of its tensors after PyTorch made it functional",
            hint="check that `program.run_decompositions()` works, and report the model",
        )
    if observe is not None:
        observe("capture", gm)
    return DecomposedGraph(gm, rules, settings, observe)


@traces("the exported program cannot be decomposed")
def decompose_program(
    program: torch.export.ExportedProgram, settings: CompilationSettings, *, preserve: Preserve
) -> torch.export.ExportedProgram:
    """Decomposes the operators of a program that have no converter, and keeps it a program that can be saved.

    Args:
        program: The program; it is not changed, and its tensors are shared.
        settings: Compilation settings.
        preserve: Whether an operator has a converter, and so stays whole.

    Returns:
        A program with the same signature. Programs that write to views are traced anew as a whole.

    Raises:
        LoweringError: The program changes the shape or the memory of an input.
    """
    refuse_lost_changes(program)
    rules = DecompositionRules(preserve, settings)
    gm = fx.GraphModule(program.graph_module, copy.deepcopy(program.graph))
    gm.meta.update(program.graph_module.meta)
    for original, copied in zip(program.graph.nodes, gm.graph.nodes, strict=True):
        copied.name = original.name  # a copy renames what is called like a Python builtin, and the signature does not
    results = [item.name if isinstance(item, fx.Node) else None for item in graph_results(gm.graph)]
    functionalize = Functionalize(write_back=False)
    if find_autocast_region(gm) is not None or _has_transforms(gm) or _is_entangled(gm, functionalize):
        return retrace(program, rules)
    run_passes(gm, [Decompose(rules)], recompile=False)
    gm.recompile()
    signature = rename_results(program.graph_signature, results, gm.graph)
    return torch.export.ExportedProgram(
        root=gm,
        graph=gm.graph,
        graph_signature=signature,
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants={**program.constants},
        verifiers=program.verifiers,
    )


@traces(
    "the program writes to views, or runs parts under autocast or a transform, and cannot be traced again as a whole"
)
def retrace(program: torch.export.ExportedProgram, rules: DecompositionRules) -> torch.export.ExportedProgram:
    """Makes a whole program functional by tracing it again, with the same operators kept whole.

    This costs more than the export itself, so it serves only programs whose writes reach views, or which run parts
    under autocast or a transform such as `torch.vmap`.
    """
    logger.debug("lowering traces the whole program again: it writes to views, or runs under autocast or a transform")
    single = with_single_names(program)
    try:
        traced: torch.export.ExportedProgram = single.run_decompositions(rules.whole_program_table())
    except Exception as error:
        overlapping = overlapping_buffers(single)
        if not overlapping:
            raise
        raise LoweringError(
            f"the buffers {' and '.join(overlapping)} lie in one memory, and the model writes to it",
            why="PyTorch cannot make such a program functional",
            hint="register one buffer for this memory, and take parts of it in forward",
        ) from error
    return traced


def _flat_functional(program: torch.export.ExportedProgram) -> fx.GraphModule | None:
    """Returns the program as a flat functional graph, None when it takes a whole trace to make it one."""
    gm = unlift(program)
    if find_autocast_region(gm) is not None or _has_transforms(gm):
        return None
    run_passes(gm, [InlineWrappedRegions(), RemoveAssertions(), OpenWrappedTensors()], recompile=False)
    if wrapped_attributes(gm):
        return None
    return None if _is_entangled(gm, Functionalize()) else gm


def _has_transforms(gm: fx.GraphModule) -> bool:
    """Whether parts of a program run under `torch.vmap` or another transform, which export records as its steps."""
    return any(
        str(getattr(node.target, "__module__", "")).startswith("torch._functorch")
        for node in gm.graph.nodes
        if node.op == "call_function"
    )


def _is_entangled(gm: fx.GraphModule, functionalize: Functionalize) -> bool:
    run_passes(gm, [functionalize], recompile=False)
    return functionalize.entangled is not None
