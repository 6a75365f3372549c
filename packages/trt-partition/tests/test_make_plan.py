"""What `make_plan` decides, setting by setting."""

from __future__ import annotations

import dataclasses
import operator
import os
from typing import Any

import pytest
import torch
from counted_calls import count_calls
from torch import fx, nn

from trt_core import IncompleteCompilationError, PartitionError, Reason, SettingsError
from trt_partition import BlockKind, make_plan, make_report, require_known_modules, split_into_blocks

aten = torch.ops.aten
INFINITE = float("inf")


def _names(plan: Any) -> list[str]:
    return [block.name for block in plan.blocks]


def _block_of(plan: Any, node: str) -> str:
    return next(block.name for block in plan.blocks if node in block.nodes)


def test_names_count_blocks_of_both_kinds_in_order(branchy_graph: Any, refuse: Any, settings: Any) -> None:
    plan = make_plan(branchy_graph, refuse("relu.default", "sigmoid.default"), settings())
    assert _names(plan) == [
        "_run_on_acc_0",
        "_run_on_gpu_1",
        "_run_on_acc_2",
        "_run_on_gpu_3",
        "_run_on_acc_4",
    ]


def test_plan_is_frozen_and_the_graph_untouched(branchy_graph: Any, refuse: Any, settings: Any) -> None:
    before = str(branchy_graph.graph)
    plan = make_plan(branchy_graph, refuse("relu.default"), settings())
    assert str(branchy_graph.graph) == before
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.blocks = ()
    with pytest.raises(TypeError):
        plan.verdicts["relu"] = None


def test_same_arguments_give_the_same_plan(branchy_graph: Any, refuse: Any, settings: Any) -> None:
    plans = [make_plan(branchy_graph, refuse("relu.default"), settings()) for _ in range(2)]
    assert plans[0] == plans[1]


def test_the_check_is_asked_once_per_node(branchy_graph: Any, refuse: Any, settings: Any) -> None:
    support = refuse()
    make_plan(branchy_graph, support, settings(use_fast_partitioner=False))
    assert sorted(support.asked) == sorted(n.name for n in branchy_graph.graph.nodes if n.op == "call_function")


def test_wholly_supported_graph_is_one_engine_whatever_its_size(branchy_graph: Any, refuse: Any, settings: Any) -> None:
    plan = make_plan(branchy_graph, refuse(), settings(min_block_size=1000))
    assert _names(plan) == ["_run_on_acc_0"]
    assert plan.sweep.at(10**9).engines == 1


def test_infinite_min_block_size_builds_nothing(branchy_graph: Any, refuse: Any, settings: Any) -> None:
    plan = make_plan(branchy_graph, refuse(), settings(min_block_size=INFINITE))
    assert _names(plan) == ["_run_on_gpu_0"]
    assert plan.sweep.at(INFINITE).engines == 0
    assert all(verdict.supported for verdict in plan.verdicts.values())


class Stretch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x)
        y = y.reshape(8).to(torch.float64).to(torch.float32).reshape(2, 4)
        z = torch.tanh(y) + y
        return torch.relu(z).permute(1, 0).reshape(4, 2)


def test_views_and_casts_do_not_count(capture: Any, refuse: Any, settings: Any) -> None:
    gm = capture(Stretch(), torch.randn(2, 4))
    plan = make_plan(gm, refuse("relu.default"), settings(min_block_size=2))
    assert [block.computations for block in plan.engines] == [2]
    assert not make_plan(gm, refuse("relu.default"), settings(min_block_size=3)).engines
    reasons = {name: verdict.reason for name, verdict in plan.fallbacks.items()}
    assert set(reasons.values()) == {Reason.NO_COMPUTATION}
    assert any(name.startswith("permute") for name in reasons)


def test_small_block_says_its_size(branchy_graph: Any, refuse: Any, settings: Any) -> None:
    plan = make_plan(branchy_graph, refuse("relu.default"), settings(min_block_size=4))
    assert plan.fallbacks["tanh"].reason is Reason.SMALL_BLOCK
    assert "3 operator(s)" in plan.fallbacks["tanh"].message
    assert plan.verdicts["tanh"].supported


def test_tuples_stay_with_their_producer(branchy_graph: Any, refuse: Any, settings: Any) -> None:
    by_name = {n.name: n for n in branchy_graph.graph.nodes}
    split = next(n for n in by_name.values() if n.target in (aten.split.Tensor, aten.split_with_sizes.default))
    item = next(iter(split.users)).name
    refused = make_plan(branchy_graph, refuse(nodes=(split.name,)), settings())
    assert _block_of(refused, item) == _block_of(refused, split.name)
    assert refused.fallbacks[item].reason is Reason.NO_COMPUTATION
    through_item = make_plan(branchy_graph, refuse(nodes=(item,)), settings())
    assert through_item.fallbacks[split.name].reason is Reason.UNSUPPORTED_VALUE
    assert _block_of(through_item, split.name).startswith("_run_on_gpu_")


@pytest.mark.parametrize("spelling", [aten.relu.default, aten.relu, "torch.ops.aten.relu.default", "aten::relu"])
def test_torch_executed_ops(branchy_graph: Any, refuse: Any, settings: Any, spelling: Any) -> None:
    plan = make_plan(branchy_graph, refuse(), settings(torch_executed_ops=frozenset({spelling})))
    assert plan.verdicts["relu"].reason is Reason.FORCED_OPERATOR
    assert len(plan.engines) == 2


@pytest.mark.parametrize("name", ["second", "Linear", "torch.nn.modules.linear.Linear"])
def test_torch_executed_modules(branchy_graph: Any, refuse: Any, settings: Any, name: str) -> None:
    config = settings(torch_executed_modules=frozenset({name}))
    require_known_modules(branchy_graph, config)
    plan = make_plan(branchy_graph, refuse(), config)
    forced = [name for name, verdict in plan.verdicts.items() if verdict.reason is Reason.FORCED_MODULE]
    assert len(forced) == (1 if name == "second" else 3)
    assert all(name.startswith("linear") for name in forced)


def test_unknown_module_is_an_error_with_a_suggestion(branchy_graph: Any, settings: Any) -> None:
    with pytest.raises(SettingsError, match="did you mean 'second'"):
        require_known_modules(branchy_graph, settings(torch_executed_modules=frozenset({"secund"})))


def test_require_full_compilation_lists_the_obstacles(branchy_graph: Any, refuse: Any, settings: Any) -> None:
    with pytest.raises(IncompleteCompilationError) as caught:
        make_plan(branchy_graph, refuse("relu.default"), settings(require_full_compilation=True))
    assert "torch.ops.aten.relu.default at relu: TRT-F001 relu.default is refused" in str(caught.value)
    make_plan(branchy_graph, refuse(), settings(require_full_compilation=True))


def test_graph_that_calls_modules_is_refused_at_the_door(refuse: Any, settings: Any) -> None:
    with pytest.raises(PartitionError, match="call_module"):
        make_plan(fx.symbolic_trace(nn.Sequential(nn.ReLU())), refuse(), settings())


class Sized(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        y = torch.tanh(x).reshape(x.shape[0] * 4)
        return torch.relu(y).reshape(x.shape[0], 4) + torch.full((x.shape[0], 4), 2.0), x.shape[0] * 7


@pytest.fixture(scope="module")
def sized(capture: Any) -> fx.GraphModule:
    module = capture(Sized(), torch.randn(3, 4), dynamic=({0: torch.export.Dim("batch", min=2, max=9)},))
    assert isinstance(module, fx.GraphModule)
    return module


def test_sizes_do_not_part_a_graph(sized: Any, refuse: Any, settings: Any) -> None:
    plan = make_plan(sized, refuse(), settings(require_full_compilation=True))
    assert _names(plan) == ["_run_on_acc_0"]
    assert plan.outside, "the product by 7 is an output alone"
    counted = {name for block in plan.blocks for name in block.nodes} | set(plan.outside)
    assert counted == set(plan.verdicts)


def test_node_that_takes_a_refused_number_runs_in_pytorch(sized: Any, refuse: Any, settings: Any) -> None:
    product = next(
        n.name for n in sized.graph.nodes if n.op == "call_function" and 4 in n.args[1:] and n.name[:3] == "mul"
    )
    plan = make_plan(sized, refuse(nodes=(product,)), settings())
    refused = [name for name, verdict in plan.verdicts.items() if verdict.reason is Reason.NOT_CONSTANT]
    assert len(refused) == 1
    assert refused[0].startswith(("reshape", "view"))
    assert product in plan.verdicts[refused[0]].message


class DataDependent(nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        count = n.item()
        torch._check(count >= 1)
        torch._check(count <= 4)
        return torch.tanh(x) * torch.ones(count, 4)[:1]


def test_number_from_data_keeps_its_takers_in_pytorch(capture: Any, refuse: Any, settings: Any) -> None:
    gm = capture(DataDependent(), torch.randn(1, 4), torch.tensor(2))
    plan = make_plan(gm, refuse(), settings())
    reasons = {verdict.reason for verdict in plan.verdicts.values() if not verdict.supported}
    assert {Reason.UNSUPPORTED_VALUE, Reason.NOT_CONSTANT} <= reasons
    assert _block_of(plan, "tanh").startswith("_run_on_acc_")


def test_strategies_differ_where_nodes_are_free(refuse: Any, settings: Any) -> None:
    """A free pair of nodes fills up the second engine when both ends are tried."""
    graph = fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    first = graph.call_function(aten.neg.default, (a,))
    wall = graph.call_function(aten.sort.default, (first,))
    wall.meta["val"] = (torch.empty(4), torch.empty(4, dtype=torch.int64))
    item = graph.call_function(operator.getitem, (wall, 0))
    free = graph.call_function(aten.tanh.default, (graph.call_function(aten.neg.default, (b,)),))
    last = graph.call_function(aten.add.Tensor, (graph.call_function(aten.tanh.default, (item,)), free))
    graph.output((last,))
    for node in graph.nodes:
        node.meta.setdefault("val", torch.empty(4, device="meta"))
    gm = fx.GraphModule(nn.Module(), graph)
    support = refuse("sort.default")
    fast = make_plan(gm, support, settings(min_block_size=4))
    thorough = make_plan(gm, support, settings(min_block_size=4, use_fast_partitioner=False))
    assert not fast.engines
    assert [block.computations for block in thorough.engines] == [4]
    assert [block.kind for block in thorough.blocks] == [BlockKind.TORCH, BlockKind.ENGINE]


class Rotated(nn.Module):
    """Turns products by angles that `sort` stands in for, of positions that are put together from two inputs."""

    def __init__(self, scaled: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scaled = scaled

    def forward(self, x: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.linear(x))
        places = torch.cat((left, right))[:, 0].to(torch.int64)
        if self.scaled:
            places = places * 3
        both = places.unsqueeze(0) + torch.arange(x.shape[0]).unsqueeze(1)
        angles = torch.sort(both if self.scaled else places.unsqueeze(0)).values
        table = torch.sort(torch.arange(x.shape[0]) * 2).values
        return torch.sigmoid(y * angles) * table.unsqueeze(1)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("scaled", [False, True])
def test_what_brings_inputs_and_sizes_to_pytorch_makes_no_engine(
    capture: Any, refuse: Any, settings: Any, scaled: bool, fast: bool
) -> None:
    """Positions that are moved go with what reads them, so that one engine holds the rest; computed ones do not."""
    args = (torch.randn(6, 4), torch.rand(3, 2), torch.rand(1, 2))
    rows = torch.export.Dim("rows", min=2, max=9)
    gm = capture(Rotated(scaled), *args, dynamic=({0: rows}, {}, {}))
    config = settings(use_fast_partitioner=fast)
    plan = make_plan(gm, refuse("sort.default"), config)
    if scaled:
        assert len(plan.engines) == 2
        assert _block_of(plan, "cat").startswith("_run_on_acc_")
        return
    assert _names(plan) == ["_run_on_gpu_0", "_run_on_acc_1"]
    kept = {name: verdict for name, verdict in plan.fallbacks.items() if name in ("cat", "arange", "mul", "select")}
    assert {verdict.reason for verdict in kept.values()} == {Reason.NO_COMPUTATION}
    assert {verdict.message for verdict in kept.values()} == {"it brings inputs or sizes to what runs in PyTorch"}
    report = make_report(gm, plan, config)
    assert report.bridge is None
    split = split_into_blocks(gm, plan)
    torch.testing.assert_close(split(*args), gm(*args))


def _long_chain(count: int) -> fx.GraphModule:
    graph = fx.Graph()
    node = skip = graph.placeholder("x")
    value = torch.empty(4, device="meta")
    node.meta["val"] = value
    for index in range(count):
        target = aten.sigmoid.default if index % 50 == 49 else aten.tanh.default
        args: tuple[Any, ...] = (node,)
        if index % 7 == 6:
            target, args = aten.add.Tensor, (node, skip)
            skip = node
        node = graph.call_function(target, args)
        node.meta["val"] = value
    graph.output((node,))
    return fx.GraphModule(nn.Module(), graph)


@pytest.mark.parametrize("fast", [True, False])
def test_cost_grows_with_the_graph(refuse: Any, settings: Any, fast: bool) -> None:
    config = settings(min_block_size=3, use_fast_partitioner=fast)
    costs = []
    for count in (500, 5_000):
        gm = _long_chain(count)
        costs.append(
            count_calls(lambda gm=gm: make_report(gm, make_plan(gm, refuse("sigmoid.default"), config), config))
        )
    assert costs[1] < 12 * costs[0]


@pytest.mark.slow
def test_a_long_chain_with_one_in_fifty_refused(refuse: Any, settings: Any) -> None:
    length = 100_000 if "TRT_STRESS" in os.environ else 20_000
    gm = _long_chain(length)
    plan = make_plan(gm, refuse("sigmoid.default"), settings(min_block_size=3))
    refused = sum(not verdict.supported for verdict in plan.verdicts.values())
    assert refused > 0.017 * length
    assert len(plan.engines) == refused
