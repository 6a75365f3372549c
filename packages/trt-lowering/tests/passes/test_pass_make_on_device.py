from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.export import Dim

from trt_core.internals import FakeTensorMode, ShapeEnv

DYNAMIC = (({0: Dim("rows"), 1: Dim("columns", min=4)},),)


@pytest.fixture
def on_gpu() -> Callable[..., torch.Tensor]:
    """Makes a tensor of a device that need not be there."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)

    def make(*shape: int) -> torch.Tensor:
        with mode:
            return torch.empty(*shape, device="cuda:0")

    return make


def moves(gm: fx.GraphModule) -> list[fx.Node]:
    """Nodes that read a tensor on the CPU and leave one elsewhere."""

    def devices(nodes: Any) -> set[str]:
        values = (node.meta.get("val") for node in nodes)
        return {value.device.type for value in values if isinstance(value, torch.Tensor)}

    return [node for node in gm.graph.nodes if devices([node]) == {"cuda"} and "cpu" in devices(node.all_input_nodes)]


def on_cpu(gm: fx.GraphModule) -> fx.GraphModule:
    """The same graph with every tensor on the CPU, so that it runs here."""
    for node in gm.graph.nodes:
        node.args, node.kwargs = fx.node.map_aggregate(
            (node.args, dict(node.kwargs)),
            lambda item: torch.device("cpu") if isinstance(item, torch.device) else item,
        )
    gm.recompile()
    return gm


def positions(x: torch.Tensor) -> torch.Tensor:
    return x + torch.arange(x.shape[1]).to(x.device)


def mask(x: torch.Tensor) -> torch.Tensor:
    seen = torch.zeros(x.shape[0], x.shape[1]).bool().to(device=x.device)
    return x * (~seen).cumsum(1, dtype=torch.float32)


def frequencies(x: torch.Tensor) -> torch.Tensor:
    steps = torch.arange(0, 8, 2, dtype=torch.float32)
    angles = torch.outer(torch.arange(x.shape[1], dtype=torch.float32), 100.0 ** (-steps / 8))
    return x[..., None] + torch.cat((angles.sin(), angles.cos()), -1).type_as(x)


def a_table(x: torch.Tensor) -> torch.Tensor:
    table = torch.tensor([0.5, 2.0, 4.0])
    return x * table[torch.arange(x.shape[1]) % 3].to(x.device, non_blocking=True)


def written_to(x: torch.Tensor) -> torch.Tensor:
    made = torch.ones(x.shape[0], x.shape[1])
    made[:, :2] = 0.5
    return x * made.to(x)


def moved_twice(x: torch.Tensor) -> torch.Tensor:
    made = torch.arange(x.shape[1], dtype=torch.float32)
    return x * made.to(x.device) + (made + 1).to(x.device)


@pytest.mark.parametrize("function", [positions, mask, frequencies, a_table, written_to, moved_twice])
def test_what_follows_from_sizes_is_made_where_it_is_used(
    function: Callable[[torch.Tensor], torch.Tensor], decomposed: Any, on_gpu: Any, compare: Any
) -> None:
    gm = decomposed(function, on_gpu(2, 6), dynamic_shapes=DYNAMIC)
    assert {node.all_input_nodes[0].op for node in moves(gm)} <= {"get_attr"}
    for shape in ((2, 6), (3, 9)):
        x = torch.randn(*shape)
        compare(function(x), on_cpu(gm)(x), tolerance=1e-5)


def drawn(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(x.shape[0], x.shape[1]).to(x.device)


def kept(x: torch.Tensor) -> torch.Tensor:
    return x + torch.arange(x.shape[1]).to(x.device)


@pytest.mark.parametrize(("function", "changes"), [(drawn, {}), (kept, {"torch_executed_ops": {"aten.arange"}})])
def test_random_numbers_and_what_runs_in_pytorch_stay_where_they_are(
    function: Callable[[torch.Tensor], torch.Tensor], changes: Any, decomposed: Any, on_gpu: Any
) -> None:
    assert len(moves(decomposed(function, on_gpu(2, 6), dynamic_shapes=DYNAMIC, **changes))) == 1


def test_inputs_on_the_cpu_stay_there(decomposed: Any, on_gpu: Any) -> None:
    x = on_gpu(2, 6)
    with x.fake_mode:
        bias = torch.empty(6)
    gm = decomposed(lambda x, bias: x + (bias * 2).to(x.device), x, bias)
    assert len(moves(gm)) == 1


def test_a_result_on_the_cpu_stays_there(decomposed: Any, on_gpu: Any) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = torch.arange(x.shape[1])
        return x + made.to(x.device), made

    gm = decomposed(function, on_gpu(2, 6), dynamic_shapes=DYNAMIC)
    assert not moves(gm)
    results = gm.graph.output_node().args[0]
    assert [result.meta["val"].device.type for result in results] == ["cuda", "cpu"]
