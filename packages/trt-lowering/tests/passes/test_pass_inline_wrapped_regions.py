from __future__ import annotations

import pytest
import torch

from trt_core import LoweringError
from trt_lowering.passes.flatten import InlineWrappedRegions, find_autocast_region


def without_gradients(x):
    with torch.no_grad():
        y = x * 2
        with torch.enable_grad():
            z = y.sin()
    return y + z, z


def test_nested_regions_become_flat(captured, compare):
    x = torch.randn(3)
    with torch.enable_grad():
        gm = captured(without_gradients, x)
    assert any(isinstance(node.target, torch._ops.HigherOrderOperator) for node in gm.graph.nodes)
    assert InlineWrappedRegions()(gm).changes == 2
    gm.recompile()
    assert not any(isinstance(node.target, torch._ops.HigherOrderOperator) for node in gm.graph.nodes)
    compare(without_gradients(x), gm(x))


def test_parameters_inside_a_region_are_shared(captured):
    class Inner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, x):
            with torch.no_grad():
                return self.linear(x)

    model = Inner()
    with torch.enable_grad():
        gm = captured(model, torch.randn(2, 3))
    InlineWrappedRegions()(gm)
    gm.recompile()
    pointers = {parameter.data_ptr() for parameter in gm.parameters()}
    assert model.linear.weight.data_ptr() in pointers


def test_disabled_autocast_is_inlined(captured):
    def function(x):
        with torch.autocast("cpu", enabled=False):
            return x @ x

    gm = captured(function, torch.randn(3, 3))
    InlineWrappedRegions()(gm)
    assert not any(isinstance(node.target, torch._ops.HigherOrderOperator) for node in gm.graph.nodes)


def test_enabled_autocast_is_refused(captured):
    def function(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x

    gm = captured(function, torch.randn(3, 3))
    assert find_autocast_region(gm) is not None
    with pytest.raises(LoweringError, match="autocast"):
        InlineWrappedRegions()(gm)


def test_flat_graph_is_left_alone(captured):
    assert not InlineWrappedRegions()(captured(torch.relu, torch.randn(3))).changed
