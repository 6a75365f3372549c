"""Keeps an exported program's signature in step with its graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import fx
from torch.export.graph_signature import ConstantArgument, ExportGraphSignature

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
