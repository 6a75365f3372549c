from __future__ import annotations

import pytest
import torch

from trt_lowering.passes.cleanup import DropEmptyOperands


def test_empty_rests_leave_concatenations(lower_module, compare, operators):
    def function(x):
        rotated, rest = x[..., :4], x[..., 4:]
        return torch.cat((rotated.sin(), rest.cos()), dim=-1)

    x = torch.randn(2, 4)
    gm = lower_module(function, x)
    assert "cos" not in operators(gm)
    compare(function(x), gm(x))


def test_writes_of_nothing_leave_the_graph(lower_module, compare, operators):
    def function(x):
        mask = x.sin()
        mask[2:] = 5.0
        mask[1:] = 3.0
        return mask

    x = torch.randn(2, 4)
    gm = lower_module(function, x)
    assert operators(gm)["slice_scatter"] <= 1
    compare(function(x), gm(x))


def test_a_result_of_another_type_keeps_what_made_it(captured, settings):
    def function(x):
        return torch.cat((x.to(torch.int64), x[:0]))

    gm = captured(function, torch.randn(3))
    assert not DropEmptyOperands(settings)(gm).changed


def test_what_is_all_empty_stays(captured, settings, compare):
    def function(x):
        return torch.cat((x[:0], x[:0]))

    x = torch.randn(3)
    gm = captured(function, x)
    assert not DropEmptyOperands(settings)(gm).changed
    compare(function(x), gm(x))


def _write_nothing(x):
    copied = x.clone()
    copied[3:] = 2
    return copied


@pytest.mark.parametrize("function", [lambda x: torch.cat((x, x[:0])), _write_nothing], ids=["joined", "written"])
def test_the_result_is_a_tensor_of_its_own(lower_module, function):
    gm = lower_module(function, torch.randn(3))
    x = torch.ones(3)
    gm(x).zero_()
    assert x.eq(1).all()
