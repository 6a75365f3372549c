"""The compile pipeline: a captured program becomes a lowered graph, a plan, blocks, engines, and a module to call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry, ConverterSupport, preserve_predicate
from trt_core import BuildError, CompilationSettings, ConversionError, PartitionError, Reason, Verdict, logger
from trt_core.provenance import source_line
from trt_core.ranges import ShapeRanges
from trt_frontends.engine_source import EngineSource
from trt_frontends.layouts import keep_layouts, reshape_in_pytorch
from trt_frontends.result_views import restore_result_views, shared_bases_returned
from trt_lowering import sizes_left_open, tracing_lock
from trt_partition import PartitionPlan, PartitionReport, make_plan, make_report, split_into_blocks, write_report

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many steps of it are done, and how many there are."""


def no_progress(what: str, done: int, total: int) -> None:
    """Ignores progress."""


@dataclass
class Compilation:
    """One lowered graph on its way to engines.

    Attributes:
        graph: The lowered graph; see the design notes for its form. Never changed.
        settings: What to compile with.
        ranges: Ranges of the symbolic dimensions.
        registry: Where converters are looked up.
        progress: Told what is being done.
        excluded: Nodes (by name) that run in PyTorch, and why; those that fail to build join them.
    """

    graph: fx.GraphModule
    settings: CompilationSettings
    ranges: ShapeRanges
    registry: ConverterRegistry = field(default_factory=lambda: DYNAMO_CONVERTERS)
    progress: Progress = no_progress
    excluded: dict[str, Verdict] = field(default_factory=dict)
    _engines: dict[tuple[str, ...], nn.Module] = field(default_factory=dict)

    def plan(self) -> PartitionPlan:
        """Decides which nodes run in engines.

        Raises:
            IncompleteCompilationError: `require_full_compilation` is set and some nodes cannot.
        """
        support = ConverterSupport(self.settings, self.registry, self.excluded)
        return make_plan(self.graph, support, self.settings)

    def report(self, plan: PartitionPlan | None = None) -> PartitionReport:
        """Returns the partition report; nothing is built."""
        origin = ConverterSupport(self.settings, self.registry).origin
        return make_report(self.graph, plan or self.plan(), self.settings, self.ranges, origin)

    def run(self) -> fx.GraphModule:
        """Builds every engine and returns the module to call.

        A node that fails to convert, and a block that fails to build, go to PyTorch: the graph is partitioned again
        without them, and engines that are built already are kept.

        Raises:
            BuildError: An engine cannot be built, and `pass_through_build_failures` is set.
            IncompleteCompilationError: `require_full_compilation` is set and some nodes cannot run in an engine.
            PartitionError: The partitioner put nodes into an engine that had failed to build.
        """
        source = EngineSource(self.settings, self.registry, self.graph)
        while True:
            plan = self.plan()
            split = self._split(plan)
            failure = self._build_engines(plan, split, source)
            if failure is None:
                break
            self._exclude(failure)
        report = self.report(plan)
        announce(report, self.settings)
        split.meta["partition_report"] = report
        split.meta["dynamic_shapes"] = dynamic_shapes_of(self.graph, self.ranges)
        split.meta["shape_ranges"] = self.ranges
        return split

    def blocks(self) -> dict[str, fx.GraphModule]:
        """Returns the blocks that would become engines, by name; nothing is built."""
        plan = self.plan()
        split = self._split(plan)
        children = {block.name: split.get_submodule(block.name) for block in plan.engines}
        return {name: child for name, child in children.items() if isinstance(child, fx.GraphModule)}

    def _split(self, plan: PartitionPlan) -> fx.GraphModule:
        """Cuts the graph into blocks whose results lie in memory as those of the captured program do."""
        engines = [block.name for block in plan.engines]
        with shared_bases_returned(self.graph.graph) as count:
            split = split_into_blocks(self.graph, plan)
            if preserve_predicate(self.settings, self.registry)(torch.ops.aten.permute.default):
                keep_layouts(split, engines)
            reshape_in_pytorch(split, engines)
            restore_result_views(split, self.graph, count, engines)
        return split

    def _build_engines(
        self, plan: PartitionPlan, split: fx.GraphModule, source: EngineSource
    ) -> dict[str, Verdict] | None:
        blocks = plan.engines
        for done, block in enumerate(blocks):
            self.progress("building engines", done, len(blocks))
            child = split.get_submodule(block.name)
            assert isinstance(child, fx.GraphModule)
            engine = self._engines.get(block.nodes)
            if engine is None:
                try:
                    with tracing_lock(), sizes_left_open(child):  # trt-portable traces what it builds
                        engine = source.engine(child, self.ranges, block.name)
                except ConversionError as error:
                    return self._exclude_node(error, child)
                except BuildError as error:
                    return self._exclude_block(error, block.name, block.nodes)
                self._engines[block.nodes] = engine
            split.set_submodule(block.name, engine)
        self.progress("building engines", len(blocks), len(blocks))
        return None

    def _exclude(self, refusals: dict[str, Verdict]) -> None:
        """Notes what the next attempt leaves to PyTorch; an attempt that teaches nothing would be repeated for ever."""
        new = {name: verdict for name, verdict in refusals.items() if name not in self.excluded}
        if not new:
            raise PartitionError(
                "nodes that failed to build were put into an engine again",
                where=", ".join(refusals) or "no node",
                hint="the partitioner must leave nodes with a refusing verdict to PyTorch",
            )
        self.excluded.update(new)

    def _exclude_node(self, error: ConversionError, block: fx.GraphModule) -> dict[str, Verdict]:
        if self.settings.pass_through_build_failures:
            raise error
        name = error.node_name
        nodes = {node.name: node for node in self.graph.graph.nodes}
        if name not in nodes or nodes[name].op != "call_function" or name in self.excluded:
            # the failure belongs to the block, not to one of its nodes
            return self._exclude_block(error, block._get_name(), [node.name for node in block.graph.nodes])
        logger.warning("%s runs in PyTorch: %s", name, error.why)
        return {name: Verdict.refuse(Reason.CONVERSION_FAILED, error.why, source_line(nodes[name]))}

    def _exclude_block(self, error: Exception, name: str, nodes: Sequence[str]) -> dict[str, Verdict]:
        if self.settings.pass_through_build_failures:
            raise error
        why = getattr(error, "why", "") or str(error)
        logger.warning("%s runs in PyTorch: %s", name, why)
        verdict = Verdict.refuse(Reason.BUILD_FAILED, why)
        return {node: verdict for node in nodes if node not in self.excluded}


def announce(report: PartitionReport, settings: CompilationSettings) -> None:
    """Prints or saves a report when `dryrun` asks for it; else it goes to the logger at DEBUG."""
    write_report(report, settings.dryrun)


def dynamic_shapes_of(graph: fx.GraphModule, ranges: ShapeRanges) -> dict[str, Any] | None:
    """Returns the dynamic dimensions of a graph's inputs as `torch.export.export` takes them, None when all are fixed.

    Args:
        graph: A graph that is called like its model.
        ranges: Ranges of the symbolic dimensions.
    """
    info = getattr(graph.graph._codegen, "pytree_info", None)
    if info is None:
        return None
    dims = [_dynamic_dims(node.meta.get("val"), ranges) for node in graph.graph.nodes if node.op == "placeholder"]
    if not any(dims):
        return None
    args, kwargs = pytree.tree_unflatten(dims, info.in_spec)
    names = [name for name in info.orig_args if name not in kwargs]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _dynamic_dims(value: Any, ranges: ShapeRanges) -> dict[int, Any] | None:
    if not isinstance(value, torch.Tensor):
        return None
    found: dict[int, Any] = {}
    for axis, extent in enumerate(value.shape):
        if isinstance(extent, torch.SymInt):
            low, _, high = ranges.bounds(extent)
            found[axis] = torch.export.Dim.DYNAMIC(min=low, max=high)
    return found or None
