"""How much of a graph the support check accepts: the figure to look at when an operator falls back unexpectedly."""

from __future__ import annotations

from torch import fx

from trt_core import CompilationSettings, OperatorSupport
from trt_partition.sizes import find_sizes, placeholder_sizes
from trt_partition.support import compose_support
from trt_partition.verdict_pass import VerdictPass


def get_graph_converter_support(
    graph_module: fx.GraphModule, support: OperatorSupport, settings: CompilationSettings | None = None
) -> tuple[int, int]:
    """Counts what engines could run.

    Args:
        graph_module: A flat graph whose nodes have `meta["val"]`.
        support: The support check.
        settings: Settings whose `torch_executed_ops` and `torch_executed_modules` apply; by default none do.

    Returns:
        The number of `call_function` nodes that are supported, and the number of all of them.

    Raises:
        PartitionError: The graph calls modules or methods.
    """
    graph = graph_module.graph
    composed = compose_support(support, settings or CompilationSettings())
    verdicts = VerdictPass(composed, find_sizes(graph), placeholder_sizes(graph)).run(graph)
    return sum(verdict.supported for verdict in verdicts.values()), len(verdicts)
