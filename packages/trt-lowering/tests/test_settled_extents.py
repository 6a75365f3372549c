"""Sizes that capturing fixes late are numbers everywhere, as in programs that fixed them at first."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from trt_core import CompilationSettings
from trt_lowering import lower

AUTO = torch.export.Dim.AUTO


class _Convolved(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x.clamp(min=-0.5), torch.ones(1, 3, 2, 2))


class _Attended(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x.relu(), x, F.linear(x, torch.ones(4, 4)))


@pytest.mark.parametrize(
    ("model", "shape", "fixed"),
    [(_Convolved(), (2, 3, 5, 6), 1), (_Attended(), (2, 3, 4), 2)],
    ids=["channels", "heads"],
)
def test_sizes_that_an_operator_fixes_are_numbers(model: torch.nn.Module, shape: tuple[int, ...], fixed: int) -> None:
    x = torch.randn(shape)
    program = torch.export.export(model, (x,), dynamic_shapes=(dict.fromkeys(range(len(shape)), AUTO),))
    lowered = lower(program, CompilationSettings(), preserve=lambda target: True)
    for node in lowered.graph.nodes:
        value = node.meta.get("val")
        for extent in (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else ():
            assert isinstance(extent, int) or not extent.node.expr.is_Integer
    (placeholder,) = lowered.graph.find_nodes(op="placeholder")
    assert type(placeholder.meta["val"].shape[fixed]) is int
    torch.testing.assert_close(lowered(x), model(x))
