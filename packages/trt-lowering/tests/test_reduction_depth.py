"""How many elements operators add up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

from trt_core.sizes.ranges import ShapeRanges
from trt_lowering.precision_rules import reduction_depth

X = torch.randn(2, 6, 8, 10)

DEPTHS: dict[str, tuple[Callable[..., Any], int]] = {
    "matmul": (lambda x: x @ torch.ones(10, 3), 10),
    "linear": (lambda x: F.linear(x, torch.ones(3, 10)), 10),
    "bmm": (lambda x: torch.bmm(x[0], torch.ones(6, 10, 2)), 10),
    "addmm": (lambda x: torch.addmm(torch.ones(3), x[0, 0], torch.ones(10, 3)), 10),
    "addbmm": (lambda x: torch.addbmm(torch.ones(8, 2), x[0], torch.ones(6, 10, 2)), 60),
    "bilinear": (lambda x: F.bilinear(x, x, torch.ones(3, 10, 10)), 100),
    "einsum": (lambda x: torch.einsum("bchw,cw->bh", x, torch.ones(6, 10)), 60),
    "einsum with an ellipsis": (lambda x: torch.einsum("...w,wk->...k", x, torch.ones(10, 3)), 10),
    "einsum without a result": (lambda x: torch.einsum("hw,wk", x[0, 0], torch.ones(10, 3)), 10),
    "conv2d": (lambda x: F.conv2d(x, torch.ones(4, 6, 3, 3)), 54),
    "conv2d in groups": (lambda x: F.conv2d(x, torch.ones(6, 1, 3, 3), groups=6), 9),
    "conv_transpose2d": (lambda x: F.conv_transpose2d(x, torch.ones(6, 4, 3, 3)), 54),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x), 10),
    "sum": (lambda x: x.sum(), 960),
    "sum of axes": (lambda x: x.sum((-1, 1)), 60),
    "mean": (lambda x: x.mean(2, keepdim=True), 8),
    "variance": (lambda x: x.var(-1), 10),
    "norm": (lambda x: torch.linalg.vector_norm(x, dim=1), 6),
    "softmax": (lambda x: x.softmax(1), 6),
    "cumsum": (lambda x: x.cumsum(2), 8),
    "layer_norm": (lambda x: F.layer_norm(x, (8, 10)), 80),
    "group_norm": (lambda x: F.group_norm(x, 3), 160),
    "instance_norm": (lambda x: F.instance_norm(x), 80),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, (2, 5)), 10),
    "avg_pool2d of a square": (lambda x: F.avg_pool2d(x, 3), 9),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (3, 5)), 6),
    "amax picks": (lambda x: x.amax(-1), 1),
    "relu": (lambda x: x.relu(), 1),
}


@pytest.mark.parametrize("name", DEPTHS)
def test_depth(name: str, captured: Callable[..., Any]) -> None:
    function, expected = DEPTHS[name]
    gm = captured(function, X)
    assert max(reduction_depth(node, int) for node in gm.graph.nodes) == expected


def test_depth_of_a_dimension_that_varies_is_its_largest(captured: Callable[..., Any]) -> None:
    gm = captured(lambda x: x.sum(0), torch.randn(4, 3), dynamic_shapes=(({0: Dim("n", min=2, max=77)},),))
    ranges = ShapeRanges.from_placeholders(gm)
    assert max(reduction_depth(node, lambda extent: ranges.bounds(extent)[2]) for node in gm.graph.nodes) == 77


@pytest.mark.parametrize(
    ("function", "axis", "expected"),
    [
        (lambda x: torch.native_group_norm(x, None, None, x.shape[0], 6, x.shape[2] * 10, 3, 1e-5)[0], 2, 2 * 80 * 10),
        (lambda x: F.layer_norm(x, (10, x.shape[3])), 3, 10 * 80),
        (lambda x: F.adaptive_avg_pool2d(x, (x.shape[2] // 2, 5)), 2, 4),
    ],
    ids=["group", "layer", "pool"],
)
def test_depth_of_sizes_that_are_computed(
    function: Callable[..., Any], axis: int, expected: int, captured: Callable[..., Any]
) -> None:
    rows = Dim("rows", min=2, max=40)
    gm = captured(function, torch.randn(2, 6, 10, 10), dynamic_shapes=(({axis: 2 * rows},),))
    ranges = ShapeRanges.from_placeholders(gm)
    assert max(reduction_depth(node, lambda extent: ranges.bounds(extent)[2]) for node in gm.graph.nodes) == expected
