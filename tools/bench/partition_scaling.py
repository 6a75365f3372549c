"""Growth of support checks and partitioning with the number of nodes."""

from __future__ import annotations

import time

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from tools.bench.report import Row

SIZES = (10_000, 50_000, 100_000)
UNSUPPORTED_EVERY = 50


def rows(sizes: tuple[int, ...] = SIZES) -> list[Row]:
    """Measures verdicts, and plan, split and report, per node beside the smallest graph."""
    from trt_converters import ConverterSupport
    from trt_core import CompilationSettings
    from trt_core.sizes.ranges import ShapeRanges
    from trt_partition import make_plan, make_report, split_into_blocks

    settings = CompilationSettings()
    base: dict[str, float] = {}
    found = []
    for size in sizes:
        gm = _graph(size)
        support = ConverterSupport(settings)
        start = time.perf_counter()
        for node in gm.graph.nodes:
            if node.op == "call_function":
                support.verdict(node)
        verdicts = time.perf_counter() - start
        start = time.perf_counter()
        plan = make_plan(gm, support, settings)
        split_into_blocks(gm, plan)
        make_report(gm, plan, settings, ShapeRanges())
        partition = time.perf_counter() - start
        for what, seconds in (("verdicts", verdicts), ("plan, split and report", partition)):
            smallest = base.setdefault(what, seconds / size)
            note = f"{seconds:.2f} s in all, {len(plan.engines)} engines"
            found.append(
                Row(f"{what} of {size} nodes, per node", seconds / size, smallest, f"{sizes[0]} nodes", note=note)
            )
    return found


def _graph(size: int) -> fx.GraphModule:
    """A chain of additions with an operator that no converter takes at regular places."""
    graph = fx.Graph()
    with FakeTensorMode():
        value = torch.empty(4, 4)
    node = graph.placeholder("x")
    node.meta["val"] = value
    for index in range(size):
        if index % UNSUPPORTED_EVERY == UNSUPPORTED_EVERY - 1:
            node = graph.call_function(torch.ops.aten.geometric.default, (node, 0.5))
        else:
            node = graph.call_function(torch.ops.aten.add.Tensor, (node, 1))
        node.meta["val"] = value
    graph.output((node,))
    return fx.GraphModule(torch.nn.Module(), graph)
