"""All operators of our own that graphs for compilers call: what compilers and recordings must know of them."""

from __future__ import annotations

import functools
import threading

import torch
from torch import fx

from trt_portable.builder import depthwise, odd_products
from trt_portable.builder.custom_operator import OwnOperators


@functools.cache
def teach_own_operators() -> OwnOperators:
    """Makes the operators known to PyTorch, to traces without data, and to Inductor; once per process."""
    taught = (depthwise.teach_depthwise_operator(), odd_products.teach_odd_products())
    return OwnOperators(
        {operator: launch for each in taught for operator, launch in each.launched.items()},
        {operator: compute for each in taught for operator, compute in each.composed.items()},
    )


def compile_ahead(graph: fx.GraphModule, device: torch.device) -> list[threading.Thread]:
    """Starts threads that compile the kernels of a graph; whoever runs the graph waits for them.

    Args:
        graph: Calls the operators.
        device: Where it will run.
    """
    return [each.compile_ahead(graph, device) for each in (depthwise, odd_products)]
