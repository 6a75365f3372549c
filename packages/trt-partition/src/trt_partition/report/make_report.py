"""Builds partition reports from a graph and its plan. Needs metadata only: no GPU, no weights, no provider."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import fx

from trt_core import SUPPORTED, CompilationSettings, Verdict, operator_name
from trt_core.attributes import is_state
from trt_core.held_arguments import held_to_signature
from trt_core.precision import kept_in_float32
from trt_core.process_groups import group_of, is_collective
from trt_core.provenance import node_location
from trt_core.sizes.ranges import ShapeRanges
from trt_core.verdicts import IN_FLOATS
from trt_partition.boundaries import Boundaries, find_boundaries
from trt_partition.bridges import find_bridge
from trt_partition.costs import estimate_flops, estimate_traffic
from trt_partition.plan import Block, PartitionPlan
from trt_partition.report.data import BlockReport, Communication, NodeReport, Transition, count_names
from trt_partition.report.partition_report import PartitionReport
from trt_partition.values import Group, NumberSpec, SpecReader, TensorSpec, regroup, regroup_arguments


@held_to_signature
def make_report(
    graph_module: fx.GraphModule,
    plan: PartitionPlan,
    settings: CompilationSettings,
    ranges: ShapeRanges | None = None,
    origin: Callable[[fx.Node], str] | None = None,
) -> PartitionReport:
    """Describes what a plan makes of a graph.

    Args:
        graph_module: The graph that the plan was made for, not split.
        plan: What `make_plan` returned.
        settings: The settings that the plan was made with.
        ranges: What the symbols in shapes may be; by default what the graph was exported with.
        origin: Names the package whose converter takes a node, where it is not the built-in one; else an empty string.

    Raises:
        PartitionError: The plan was made for another graph.
    """
    graph = graph_module.graph
    ranges = ranges or ShapeRanges.from_placeholders(graph_module)
    reader = SpecReader(ranges)
    boundaries = find_boundaries(graph_module, plan)
    nodes = _describe_nodes(graph, plan, reader, origin)
    flops = {node.name: node.flops for node in nodes}
    writer = _BlockDescriber(graph_module, boundaries, reader, flops)
    inputs, outputs = _describe_interface(graph, reader)
    return PartitionReport(
        inputs=inputs,
        outputs=outputs,
        nodes=nodes,
        blocks=tuple(writer.describe(block) for block in plan.blocks),
        edges=_describe_edges(graph, plan, boundaries, writer),
        min_block_size=settings.min_block_size,
        settings=settings.to_dict(),
        settings_text=str(settings),
        sweep=plan.sweep,
        bridge=find_bridge(graph_module, plan, settings),
        profiles=tuple(_describe_interface(graph, SpecReader(profile))[0] for profile in ranges.profiles),
    )


def _describe_nodes(
    graph: fx.Graph, plan: PartitionPlan, reader: SpecReader, origin: Callable[[fx.Node], str] | None
) -> tuple[NodeReport, ...]:
    homes = {name: block.name for block in plan.blocks for name in block.nodes}
    return tuple(
        NodeReport(
            op=operator_name(node.target),
            name=node.name,
            location=node_location(node),
            block=homes.get(node.name, ""),
            inputs=tuple(operand.name for operand in node.all_input_nodes if operand.op == "call_function"),
            is_convertible=plan.verdicts[node.name].supported,
            verdict=_final_verdict(plan, node.name),
            flops=estimate_flops(node, reader.opt),
            converter=origin(node) if origin and plan.verdicts[node.name].supported else "",
            kept_in_float32=kept_in_float32(node),
            weight_in_floats=node.meta.get(IN_FLOATS, ""),
            communication=_communication(node, reader) if is_collective(node) else None,
        )
        for node in graph.nodes
        if node.op == "call_function"
    )


def _communication(node: fx.Node, reader: SpecReader) -> Communication:
    """Describes a collective."""
    group = group_of(node)
    ranks = () if group is None else group.ranks
    name = str(node.kwargs.get("group_name", node.args[-1] if node.args else "")) if group is None else group.name
    return Communication(name, ranks, estimate_traffic(node, reader.opt, len(ranks)))


def _final_verdict(plan: PartitionPlan, name: str) -> Verdict:
    refusal = plan.refusal(name)
    return SUPPORTED if refusal is None else refusal


class _BlockDescriber:
    """Describes blocks one by one; metadata is read once per value."""

    def __init__(
        self, graph_module: fx.GraphModule, boundaries: Boundaries, reader: SpecReader, flops: Mapping[str, int]
    ) -> None:
        self._nodes = {node.name: node for node in graph_module.graph.nodes}
        self._boundaries = boundaries
        self._reader = reader
        self._flops = flops
        self._specs: dict[fx.Node, TensorSpec | NumberSpec] = {}

    def spec(self, node: fx.Node) -> TensorSpec | NumberSpec:
        """Describes what a node returns."""
        if node not in self._specs:
            described = self._reader.describe(node.meta.get("val"), node.name)
            self._specs[node] = NumberSpec(node.name, str(described)) if isinstance(described, Group) else described
        return self._specs[node]

    def describe(self, block: Block) -> BlockReport:
        """Describes a block."""
        boundary = self._boundaries.blocks[block.name]
        members = [self._nodes[name] for name in block.nodes]
        inputs = tuple(self.spec(node) for node in boundary.inputs)
        outputs = tuple(self.spec(node) for node in boundary.outputs)
        count, size = self._weigh(members)
        return BlockReport(
            name=block.name,
            kind=block.kind,
            operators=len(members),
            computations=block.computations,
            operators_by_kind=count_names(operator_name(node.target) for node in members),
            inputs=inputs,
            outputs=outputs,
            parameters=count,
            parameter_bytes=size,
            flops=sum(self._flops[node.name] for node in members),
            memory_bytes=sum(spec.bytes for spec in (*inputs, *outputs)) + size,
            nodes=block.nodes,
        )

    def _weigh(self, members: Iterable[fx.Node]) -> tuple[int, int]:
        """Returns elements and bytes of the attributes that nodes use, each attribute once."""
        used = {
            operand.target: operand.meta.get("val")
            for node in members
            for operand in node.all_input_nodes
            if operand.op == "get_attr" and not is_state(operand)
        }
        tensors = [value for value in used.values() if isinstance(value, torch.Tensor)]
        counts = [math.prod(self._reader.opt(extent) for extent in value.shape) for value in tensors]
        return sum(counts), sum(count * value.dtype.itemsize for count, value in zip(counts, tensors, strict=True))


def _describe_edges(
    graph: fx.Graph, plan: PartitionPlan, boundaries: Boundaries, writer: _BlockDescriber
) -> tuple[Transition, ...]:
    totals: dict[tuple[str, str], tuple[int, int]] = {}
    takers = [(block.name, boundaries.blocks[block.name].inputs) for block in plan.blocks]
    takers.append(("outputs", boundaries.root.inputs))
    for target, taken in takers:
        for node in taken:
            source = boundaries.homes[node].name if node in boundaries.homes else "inputs"
            tensors, size = totals.get((source, target), (0, 0))
            totals[source, target] = tensors + 1, size + writer.spec(node).bytes
    return tuple(Transition(source, target, *total) for (source, target), total in totals.items())


def _describe_interface(graph: fx.Graph, reader: SpecReader) -> tuple[Group, Group]:
    """Describes inputs and outputs of the model, grouped as the model has them."""
    info = getattr(getattr(graph, "_codegen", None), "pytree_info", None)
    inputs = [reader.describe(node.meta.get("val"), node.name) for node in graph.nodes if node.op == "placeholder"]
    results: Any = graph.output_node().args[0]
    if not isinstance(results, (list, tuple)):
        results = (results,)
    outputs = [
        reader.describe(result.meta.get("val"), result.name) if isinstance(result, fx.Node) else reader.describe(result)
        for result in results
    ]
    return (
        regroup_arguments(inputs, getattr(info, "in_spec", None)),
        regroup(outputs, getattr(info, "out_spec", None)),
    )
