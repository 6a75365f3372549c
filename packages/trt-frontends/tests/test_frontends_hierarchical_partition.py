"""Parts of one graph for several compilers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import fx, nn

from trt_core import IncompleteCompilationError, InputError
from trt_frontends.dynamo.conversion import DYNAMO_CONVERTERS
from trt_frontends.dynamo.partitioning import hierarchical_adjacency_partition


class Model(nn.Module):
    """Two results, one of which goes around two parts; a constant; a number that follows from a size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)
        self.register_buffer("shift", torch.arange(8.0))

    def forward(self, x: torch.Tensor, pair: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        y = torch.relu(self.first(x)) + self.shift
        low, high = torch.sort(y, 0)[0].chunk(2, 1)
        z = self.second(torch.sin(y)) * x.shape[0]
        return {"z": z + pair["bias"], "low": low - high, "y": y}


LINEAR, RELU, SIN = (f"torch.ops.aten.{name}.default" for name in ("linear", "relu", "sin"))


@pytest.fixture
def graph() -> fx.GraphModule:
    torch.manual_seed(0)
    rows = torch.export.Dim("rows", min=2, max=8)
    inputs = (torch.randn(3, 4), {"bias": torch.randn(4)})
    program = torch.export.export(Model().eval(), inputs, dynamic_shapes=({0: rows}, {"bias": {}}))
    module = program.module()
    assert isinstance(module, fx.GraphModule)
    return module


@pytest.mark.parametrize(
    ("operators", "priority"),
    [
        (None, None),
        ({"inductor": {LINEAR}, "tensorrt": DYNAMO_CONVERTERS}, None),
        ({"inductor": {LINEAR, SIN}, "tensorrt": DYNAMO_CONVERTERS}, ["tensorrt", "inductor"]),
        ({"one": {LINEAR}, "two": {RELU}, "three": {SIN}}, ["three", "two", "one"]),
        ({"one": {torch.ops.aten.linear.default}, "two": set()}, ["two", "one"]),
    ],
)
@pytest.mark.parametrize("least", [1, 3])
def test_a_split_graph_computes_the_same(
    graph: fx.GraphModule, operators: Mapping[str, Any] | None, priority: list[str] | None, least: int
) -> None:
    split, support = hierarchical_adjacency_partition(
        graph,
        min_block_size=least,
        backend_support_map=operators,
        backend_priority=priority,
        torch_executed_ops={"torch.ops.aten.sort.default"},
    )
    for rows in (2, 5):
        x, bias = torch.randn(rows, 4), torch.randn(4)
        torch.testing.assert_close(split(x, {"bias": bias}), graph(x, {"bias": bias}))
    found = {
        backend: {str(node.target) for name in names for node in split.get_submodule(name).graph.nodes}
        for backend, names in support.parts.items()
    }
    assert any("aten.sort" in name for name in found[""])
    for backend, names in support.operators.items():
        for other in list(support.operators)[: list(support.operators).index(backend)]:
            if least == 1 and backend in found and backend != "tensorrt" != other:
                shared = {f"torch.ops.{name}" for name in found[backend]} & support.operators[other]
                assert not shared, "a node went to the second choice"
        mine = {f"torch.ops.{name}" for name in found.get(backend, ()) if name.startswith("aten")}
        assert mine - {"torch.ops.aten.sym_size.int"} <= names
    calls = [str(node.target) for node in split.graph.nodes if node.op == "call_module"]
    assert sorted(calls) == sorted(name for names in support.parts.values() for name in names)
    assert [name.rpartition("_")[2] for name in calls] == [str(number) for number in range(len(calls))]


def test_what_cannot_be_had_says_why(graph: fx.GraphModule) -> None:
    with pytest.raises(InputError, match="did you mean 'inductor'"):
        hierarchical_adjacency_partition(
            graph, backend_support_map={"inductor": {LINEAR}}, backend_priority=["inducter"]
        )
    with pytest.raises(IncompleteCompilationError, match="parts of the graph stay in PyTorch"):
        hierarchical_adjacency_partition(
            graph, backend_support_map={"inductor": {LINEAR}}, min_block_size=1, require_full_compilation=True
        )
