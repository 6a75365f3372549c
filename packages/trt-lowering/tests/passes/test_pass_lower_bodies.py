"""Tests of `LowerBodies`."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from trt_core import CompilationSettings
from trt_core.control_flow import bodies_of
from trt_lowering import lower


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def inner(y: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = torch.cond(y.mean() > 1, lambda z: torch.addcmul(z, z, z), lambda z: z.sinc(), (y,))
            return found

        result: torch.Tensor = torch.cond(x.sum() > 0, inner, lambda y: y - 1, (x,))
        return result


def _targets(gm: fx.GraphModule) -> set[Any]:
    """The operators that a graph calls, those of its bodies included."""
    found = set()
    for node in gm.graph.nodes:
        if node.op == "call_function":
            found.add(node.target)
            for _, body in bodies_of(node):
                found |= _targets(body)
    return found


def test_bodies_are_decomposed_at_every_depth_and_the_program_stays_as_it_is() -> None:
    x = torch.rand(3)
    program = torch.export.export(Branch(), (x,))
    before = _targets(program.graph_module)
    lowered = lower(program, CompilationSettings(), preserve=lambda target: target is torch.ops.aten.mul.Tensor)
    assert torch.ops.aten.addcmul.default in before and torch.ops.aten.addcmul.default not in _targets(lowered)
    assert torch.ops.aten.mul.Tensor in _targets(lowered)
    assert _targets(program.graph_module) == before
    for value in (x, x - 2, x + 2):
        found = lowered(value)
        torch.testing.assert_close(found, Branch()(value))
