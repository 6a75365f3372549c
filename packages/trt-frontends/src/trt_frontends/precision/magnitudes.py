"""How large the values of a graph become."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from trt_frontends.precision.graph_run import GraphRun


def measure_magnitudes(gm: fx.GraphModule, inputs: Iterable[Sequence[Any]]) -> dict[str, float]:
    """Returns the largest magnitude of each node's floating-point value over several inputs, by node name.

    Infinities, NaN and the extremes of a type, which say "masked out", are left out.

    Args:
        gm: A functional graph. Its state is not changed.
        inputs: Flat inputs of the graph, one sequence for each run.
    """
    found: dict[str, float] = {}

    def see(node: fx.Node, value: Any) -> None:
        if node.op == "output":
            return
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, torch.Tensor) and item.is_floating_point() and item.numel():
                found[node.name] = max(found.get(node.name, 0.0), _largest(item))

    for flat in inputs:
        GraphRun(gm, see).results(flat)
    return found


def _largest(tensor: torch.Tensor) -> float:
    sizes = tensor.detach().abs()
    meant = sizes[sizes < torch.finfo(tensor.dtype).max / 2]  # neither NaN nor infinite
    return float(meant.max()) if meant.numel() else 0.0
