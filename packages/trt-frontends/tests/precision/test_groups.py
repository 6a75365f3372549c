"""Groups of operators, as fine as their number allows."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

from trt_frontends.precision.automatic import group_operators
from trt_lowering import export_module


class Layers(nn.Module):
    """Six times a linear layer, a view of its result, and an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Flatten(), nn.ReLU()) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N, 4), float32."""
        for block in self.blocks:
            x = block(x) + 1
        return x


@pytest.fixture(scope="module")
def nodes() -> list[fx.Node]:
    """Its operators."""
    graph = export_module(Layers().eval(), (torch.ones(2, 4),)).graph
    return [node for node in graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize(
    ("most", "count", "name"),
    [
        (100, 18, "blocks.3.0/linear_3"),
        (17, 13, "linear.default in blocks.3.0"),
        (12, 7, "blocks.3"),
        (6, 2, "blocks"),
        (1, 1, "linear to add_5"),
    ],
)
def test_groups_are_as_fine_as_they_may_be(nodes: list[fx.Node], most: int, count: int, name: str) -> None:
    groups = group_operators(nodes, lambda node: 2, most)
    assert len(groups) == count
    assert name in {group.name for group in groups}
    assert sorted(node for group in groups for node in group.nodes) == sorted(node.name for node in nodes)
    assert sum(group.flops for group in groups) == 2 * len(nodes)


def test_views_belong_to_what_they_view(nodes: list[fx.Node]) -> None:
    groups = group_operators(nodes, lambda node: 0)
    views = [node for node in nodes if "flatten" in node.name or "view" in node.name]
    for view in views:
        (home,) = (group for group in groups if view.name in group.nodes)
        assert view.args[0].name in home.nodes  # type: ignore[union-attr]
    assert len(views) == 6
