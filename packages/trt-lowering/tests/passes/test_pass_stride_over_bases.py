from __future__ import annotations

import torch

from trt_lowering.passes.known_values import StrideOverBases


def _strided(gm):
    (node,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.as_strided.default)
    return node


def test_strides_name_the_owner_of_the_memory(lower_module, compare):
    def function(x):
        parts = x.sin()[2:, 1:].transpose(0, 1)
        return parts.as_strided((2, 3), (4, 1)) * 2

    x = torch.randn(5, 4)
    gm = lower_module(function, x)
    node = _strided(gm)
    assert node.args[0].target is torch.ops.aten.sin.default
    assert node.args[3] == 9
    compare(function(x), gm(x))


def test_an_offset_that_is_given_counts_from_the_start_of_the_memory(lower_module, compare):
    def function(x):
        return x.sin()[2:].as_strided((2, 3), (4, 1), 1) * 2

    x = torch.randn(5, 4)
    gm = lower_module(function, x)
    assert _strided(gm).args[3] == 1
    compare(function(x), gm(x))


def test_views_of_inputs_stay_since_inputs_may_start_anywhere(captured):
    def function(x):
        return x[2:].as_strided((2, 3), (4, 1)) * 2

    assert not StrideOverBases()(captured(function, torch.randn(5, 4))).changed
