"""Growth of conversion, graph to network, with the number of nodes; nothing is built."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from tools.bench.report import Row

SIZES = (1_000, 5_000, 10_000)


def rows(sizes: tuple[int, ...] = SIZES) -> list[Row]:
    """Measures verdicts and conversion of static and dynamic chains per node, beside the smallest graph."""
    found = []
    for is_dynamic in (False, True):
        base: dict[str, float] = {}
        for size in sizes:
            for what, seconds in _measure(size, is_dynamic).items():
                kind = f"{what}, {'dynamic' if is_dynamic else 'static'} shapes"
                smallest = base.setdefault(what, seconds / size)
                row = f"{kind}: {size} nodes, per node"
                found.append(Row(row, seconds / size, smallest, f"{sizes[0]} nodes", note=f"{seconds:.2f} s in all"))
    return found


def _measure(size: int, is_dynamic: bool) -> dict[str, float]:
    from trt_converters import ConverterSupport
    from trt_converters.build import new_network
    from trt_converters.interpreter import BlockInterpreter
    from trt_core import CompilationSettings, trt
    from trt_core.log import provider_logger
    from trt_core.sizes.ranges import ShapeRanges

    block = _block(size, is_dynamic)
    settings = CompilationSettings()
    support = ConverterSupport(settings)
    start = time.perf_counter()
    assert all(support.verdict(node).supported for node in block.graph.nodes if node.op == "call_function")
    verdicts = time.perf_counter() - start
    network = new_network(trt.Builder(provider_logger()))
    start = time.perf_counter()
    BlockInterpreter(block, network, settings, ShapeRanges()).run()
    return {"verdicts": verdicts, "conversion": time.perf_counter() - start}


def _block(size: int, is_dynamic: bool) -> fx.GraphModule:
    """Products, biases, activations and reshapes in turn, as in a deep feed-forward network."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    mode = FakeTensorMode(shape_env=ShapeEnv())
    extents = [DimDynamic.DYNAMIC if is_dynamic else DimDynamic.STATIC, DimDynamic.STATIC]
    context: Any = StatelessSymbolicContext(dynamic_sizes=extents) if is_dynamic else None
    value = mode.from_tensor(torch.empty(6, 8), static_shapes=not is_dynamic, symbolic_context=context)
    rows = value.shape[0]
    root, graph = torch.nn.Module(), fx.Graph()
    root.weight = torch.nn.Parameter(torch.empty(8, 8))
    node, weight = graph.placeholder("x"), graph.get_attr("weight")
    node.meta["val"] = value
    weight.meta["val"] = mode.from_tensor(root.weight, static_shapes=True)
    extent: Any = rows
    if is_dynamic:
        extent = graph.call_function(torch.ops.aten.sym_size.int, (node, 0))
        extent.meta["val"] = rows
    aten = torch.ops.aten
    for index in range(size):
        calls: tuple[tuple[Any, tuple[Any, ...]], ...] = (
            (aten.mm.default, (node, weight)),
            (aten.add.Tensor, (node, 1.0)),
            (aten.relu.default, (node,)),
            (aten.view.default, (node, [extent, 8])),
        )
        target, arguments = calls[index % len(calls)]
        node = graph.call_function(target, arguments)
        node.meta["val"] = value
    graph.output((node,))
    return fx.GraphModule(root, graph)
