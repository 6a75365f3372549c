"""Keeps an exported program's signature in step with its graph."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence

import torch
from torch import fx
from torch.export.graph_signature import ConstantArgument, ExportGraphSignature, InputKind

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
    memory = {spec.arg.name: _memory_of(program, spec.target) for spec in specs if spec.kind is InputKind.BUFFER}
    read = {place for name, place in memory.items() if name not in unread}
    others = {name for name, place in memory.items() if name in unread and place in read}
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


def _memory_of(program: torch.export.ExportedProgram, name: str | None) -> int:
    found = program.state_dict.get(name, program.constants.get(name))
    return found.untyped_storage()._cdata if isinstance(found, torch.Tensor) else id(name)
