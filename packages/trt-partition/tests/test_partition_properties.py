"""What holds for every graph and every support check."""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx

from trt_core import SUPPORTED, CompilationSettings, Reason, Verdict, operator_name
from trt_partition import (
    BlockKind,
    PartitionReport,
    find_boundaries,
    make_plan,
    make_report,
    split_into_blocks,
)
from trt_partition.costs import counts_as_computation

aten = torch.ops.aten
SHAPE = (2, 4)
UNARY = (aten.relu.default, aten.neg.default, aten.tanh.default, aten.view.default, aten.rand_like.default)
BINARY = (aten.add.Tensor, aten.mul.Tensor, aten.sub.Tensor)


@dataclass(frozen=True)
class Case:
    """A random graph as data: per node an operator and operands, and which operators and nodes are refused."""

    steps: tuple[tuple[str, int, int], ...]
    refused_nodes: frozenset[int]
    refused_operators: frozenset[str]
    outputs: tuple[int, ...]

    def build(self) -> fx.GraphModule:
        graph = fx.Graph()
        values = [self._node(graph.placeholder(name)) for name in ("a", "b")]
        weight = self._node(graph.get_attr("weight"))
        for name, left, right in self.steps:
            x, y = values[left % len(values)], [*values, weight][right % (len(values) + 1)]
            if name == "split":
                parts = graph.call_function(aten.split.Tensor, (x, 2, 1))
                parts.meta["val"] = tuple(torch.empty(2, 2, device="meta") for _ in range(2))
                first, second = (graph.call_function(operator.getitem, (parts, i)) for i in (0, 1))
                for part in (first, second):
                    part.meta["val"] = torch.empty(2, 2, device="meta")
                values.append(self._node(graph.call_function(aten.cat.default, ([second, first], 1))))
            elif name == "mutate":
                self._node(graph.call_function(aten.mul_.Tensor, (values[left % 2], y)))
            elif name == "view":
                values.append(self._node(graph.call_function(aten.view.default, (x, list(SHAPE)))))
            elif name in ("relu", "neg", "tanh", "rand_like"):
                values.append(self._node(graph.call_function(getattr(aten, name).default, (x,))))
            else:
                values.append(self._node(graph.call_function(getattr(aten, name).Tensor, (x, y))))
        graph.output(tuple(values[index % len(values)] for index in self.outputs))
        root = torch.nn.Module()
        root.register_parameter("weight", torch.nn.Parameter(torch.linspace(-1, 1, 8).reshape(SHAPE)))
        return fx.GraphModule(root, graph)

    def support(self, graph_module: fx.GraphModule, also: str = "") -> Support:
        calls = [node.name for node in graph_module.graph.nodes if node.op == "call_function"]
        nodes = frozenset(calls[index % len(calls)] for index in self.refused_nodes) if not also else frozenset()
        return Support(nodes, self.refused_operators - {also})

    @staticmethod
    def _node(node: fx.Node) -> fx.Node:
        node.meta["val"] = torch.empty(SHAPE, device="meta")
        return node


@dataclass(frozen=True)
class Support:
    """Refuses nodes and operators by name."""

    nodes: frozenset[str]
    operators: frozenset[str]

    def verdict(self, node: fx.Node) -> Verdict:
        if node.name in self.nodes or operator_name(node.target) in self.operators:
            return Verdict.refuse(Reason.NO_CONVERTER)
        return SUPPORTED


STEPS = ("relu", "neg", "tanh", "view", "add", "mul", "sub", "split", "rand_like", "mutate")
OPERATORS = ("torch.ops.aten.relu.default", "torch.ops.aten.mul.Tensor", "torch.ops.aten.tanh.default")


def cases(steps: tuple[str, ...] = STEPS, nodes: bool = True) -> st.SearchStrategy[Case]:
    """Random cases of 1 to 25 steps."""
    index = st.integers(0, 40)
    return st.builds(
        Case,
        steps=st.lists(st.tuples(st.sampled_from(steps), index, index), min_size=1, max_size=25).map(tuple),
        refused_nodes=st.frozensets(index, max_size=6) if nodes else st.just(frozenset()),
        refused_operators=st.frozensets(st.sampled_from(OPERATORS), max_size=2),
        outputs=st.lists(index, min_size=1, max_size=3).map(tuple),
    )


def _dependences(graph_module: fx.GraphModule, plan: Any) -> set[tuple[str, str]]:
    home = {name: block.name for block in plan.blocks for name in block.nodes}
    return {
        (home[operand.name], home[node.name])
        for node in graph_module.graph.nodes
        if node.op == "call_function"
        for operand in node.all_input_nodes
        if operand.op == "call_function" and home[operand.name] != home[node.name]
    }


@pytest.mark.parametrize("fast", [True, False])
@given(case=cases(), size=st.sampled_from([1, 2, 3, 5, float("inf")]))
@settings(max_examples=60, deadline=None)
def test_blocks_are_disjoint_complete_ordered_and_of_the_size_asked(case: Case, size: float, fast: bool) -> None:
    gm = case.build()
    plan = make_plan(gm, case.support(gm), CompilationSettings(min_block_size=size, use_fast_partitioner=fast))
    members = [name for block in plan.blocks for name in block.nodes]
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    assert Counter(members) == Counter(node.name for node in calls)
    position = {block.name: index for index, block in enumerate(plan.blocks)}
    assert all(position[before] < position[after] for before, after in _dependences(gm, plan))
    assert [block.name for block in plan.blocks] == [
        f"{'_run_on_acc_' if block.kind is BlockKind.ENGINE else '_run_on_gpu_'}{index}"
        for index, block in enumerate(plan.blocks)
    ]
    nodes = {node.name: node for node in calls}
    whole = len(plan.blocks) == 1
    for block in plan.engines:
        assert all(plan.verdicts[name].supported for name in block.nodes)
        assert all(plan.refusal(name) is None for name in block.nodes)
        assert whole or block.computations >= size
        assert block.computations <= sum(counts_as_computation(nodes[name]) for name in block.nodes)
    for block in plan.blocks:
        if block.kind is BlockKind.TORCH:
            assert all(plan.refusal(name) is not None for name in block.nodes)


@pytest.mark.parametrize("fast", [True, False])
@given(case=cases(tuple(step for step in STEPS if step not in ("mutate", "rand_like", "view", "split"))))
@settings(max_examples=60, deadline=None)
def test_blocks_are_maximal(case: Case, fast: bool) -> None:
    """There are as many engines as the most broken path has supported stretches, and fewer cannot be."""
    gm = case.build()
    support = case.support(gm)
    gm.graph.eliminate_dead_code()
    plan = make_plan(gm, support, CompilationSettings(min_block_size=1, use_fast_partitioner=fast))
    stretches: dict[fx.Node, int] = {}
    most = 0
    for node in gm.graph.nodes:
        if node.op != "call_function":
            continue
        able = support.verdict(node).supported
        before = [
            stretches[operand] + (able and not support.verdict(operand).supported)
            for operand in node.all_input_nodes
            if operand in stretches
        ]
        stretches[node] = max(before, default=int(able)) or int(able)
        most = max(most, stretches[node])
    assert len(plan.engines) == most
    blocked = [name for name in plan.fallbacks if plan.fallbacks[name].reason is Reason.SMALL_BLOCK]
    assert not blocked


@pytest.mark.parametrize("fast", [True, False])
@given(case=cases(), size=st.sampled_from([1, 2, 4]))
@settings(max_examples=40, deadline=None)
def test_split_graph_computes_what_the_original_computed(case: Case, size: int, fast: bool) -> None:
    gm = case.build()
    plan = make_plan(gm, case.support(gm), CompilationSettings(min_block_size=size, use_fast_partitioner=fast))
    split = split_into_blocks(gm, plan)
    results = []
    for module in (gm, split):
        torch.manual_seed(1)
        arguments = [torch.linspace(-2, 2, 8).reshape(SHAPE), torch.linspace(3, -1, 8).reshape(SHAPE)]
        outputs = module(*arguments)
        results.append([*outputs, *arguments])
    for expected, actual in zip(*results, strict=True):
        assert torch.equal(expected, actual)
    calls = Counter(node.name for child in split.children() for node in child.graph.nodes if node.op == "call_function")
    assert calls == Counter(node.name for node in gm.graph.nodes if node.op == "call_function")
    for child in split.children():
        for node in child.graph.nodes:
            assert node.op == "output" or isinstance(node.meta["val"], (torch.Tensor, tuple))


@pytest.mark.parametrize("fast", [True, False])
@given(case=cases())
@settings(max_examples=40, deadline=None)
def test_sweep_agrees_with_partitioning_at_each_size(case: Case, fast: bool) -> None:
    gm = case.build()
    support = case.support(gm)
    sweep = make_plan(gm, support, CompilationSettings(use_fast_partitioner=fast)).sweep
    for size in [*range(1, 28), float("inf")]:
        plan = make_plan(gm, support, CompilationSettings(min_block_size=size, use_fast_partitioner=fast))
        point = sweep.at(size)
        assert point.engines == len(plan.engines)
        assert point.operators == sum(len(block.nodes) for block in plan.engines)
        assert plan.sweep == sweep


@given(case=cases(nodes=False), size=st.sampled_from([1, 2]))
@settings(max_examples=60, deadline=None)
def test_bridge_is_the_operator_that_leaves_fewest_engines(case: Case, size: int) -> None:
    gm = case.build()
    config = CompilationSettings(min_block_size=size)
    plan = make_plan(gm, case.support(gm), config)
    bridge = make_report(gm, plan, config).bridge
    remaining = {
        name: len(make_plan(gm, case.support(gm, also=name), config).engines) for name in case.refused_operators
    }
    merging = [count for count in remaining.values() if 0 < count < len(plan.engines)]
    if bridge is None:
        assert not merging
    else:
        assert bridge.engines_after == min(merging) == remaining[bridge.operator]
        assert bridge.engines_before == len(plan.engines)


@given(case=cases())
@settings(max_examples=30, deadline=None)
def test_report_survives_json_and_agrees_with_the_plan(case: Case) -> None:
    gm = case.build()
    config = CompilationSettings(min_block_size=2)
    plan = make_plan(gm, case.support(gm), config)
    report = make_report(gm, plan, config)
    assert PartitionReport.from_json(report.to_json()) == report
    assert report.total_operators == len(plan.verdicts)
    assert report.total_operators == sum(report.unsupported.values()) + report.supported_operators
    assert [engine.name for engine in report.engines] == [block.name for block in plan.engines]
    boundaries = find_boundaries(gm, plan)
    taken = sum(len(boundary.inputs) for boundary in boundaries.blocks.values()) + len(boundaries.root.inputs)
    assert sum(edge.tensors for edge in report.edges) == taken
