"""Keeps an exported program's signature in step with its graph."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Sequence

import torch
from torch import fx
from torch.export.graph_signature import ConstantArgument, ExportGraphSignature, InputKind, InputSpec

from trt_lowering.internals import is_traceable_wrapper_subclass
from trt_lowering.node_metadata import graph_results


def rename_results(
    signature: ExportGraphSignature, former: Sequence[str | None], graph: fx.Graph
) -> ExportGraphSignature:
    """Returns a signature whose results carry the names of the nodes that the graph returns now.

    Args:
        signature: The signature; it is not changed.
        former: Names of the returned nodes before the graph was rewritten, None for constants.
        graph: The rewritten graph, whose results are in the same order.
    """
    now = [item.name if isinstance(item, fx.Node) else None for item in graph_results(graph)]
    outputs = []
    for spec, before, after in zip(signature.output_specs, former, now, strict=True):
        if before is None or after is None or isinstance(spec.arg, ConstantArgument) or before == after:
            outputs.append(spec)
        else:
            outputs.append(dataclasses.replace(spec, arg=dataclasses.replace(spec.arg, name=after)))
    return ExportGraphSignature(input_specs=list(signature.input_specs), output_specs=outputs)


def with_single_names(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Returns a program without the buffers that its graph reads under another name; itself where there are none.

    Export lists a buffer of two modules twice and reads it once. Tracing such a program again, PyTorch takes the two
    for inputs that overlap, and fails where one is written to.
    """
    unread = {str(node.name) for node in program.graph.find_nodes(op="placeholder") if not node.users}
    specs = program.graph_signature.input_specs
    others = set()
    for sharing in _buffers_by_memory(program):
        names = {spec.arg.name for spec in sharing}
        if not names <= unread:
            others |= names & unread
    if not others:
        return program
    graph = copy.deepcopy(program.graph)
    for original, copied in zip(program.graph.nodes, graph.nodes, strict=True):
        copied.name = original.name
    for node in graph.find_nodes(op="placeholder"):
        if node.name in others:
            graph.erase_node(node)
    kept = [spec for spec in specs if spec.arg.name not in others]
    dropped = {spec.target for spec in specs if spec.arg.name in others}
    module = fx.GraphModule(program.graph_module, graph)
    module.meta.update(program.graph_module.meta)
    return torch.export.ExportedProgram(
        root=module,
        graph=graph,
        graph_signature=ExportGraphSignature(kept, list(program.graph_signature.output_specs)),
        state_dict={name: value for name, value in program.state_dict.items() if name not in dropped},
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants={name: value for name, value in program.constants.items() if name not in dropped},
        verifiers=program.verifiers,
    )


def overlapping_buffers(program: torch.export.ExportedProgram) -> list[str]:
    """Returns the names of buffers that lie in the memory of each other, such as one and a part of it."""
    return [str(spec.target) for sharing in _buffers_by_memory(program) if len(sharing) > 1 for spec in sharing]


def _buffers_by_memory(program: torch.export.ExportedProgram) -> Iterable[list[InputSpec]]:
    found: dict[int, list[InputSpec]] = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.BUFFER:
            value = program.state_dict.get(spec.target, program.constants.get(spec.target))
            is_plain = isinstance(value, torch.Tensor) and not is_traceable_wrapper_subclass(value)
            memory = value.untyped_storage()._cdata if is_plain and value.layout is torch.strided else id(spec)
            found.setdefault(memory, []).append(spec)
    return found.values()
