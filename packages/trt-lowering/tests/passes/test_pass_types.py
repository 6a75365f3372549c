"""The passes that change types of computation: whole-graph conversion and autocast."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim

from trt_lowering.passes.autocast import Autocast
from trt_lowering.passes.convert_float_type import ConvertFloatType

HALF = 2e-3  # relative spacing of float16 near 1 is 1e-3


def types(gm, op="call_function"):
    return {node.meta["val"].dtype for node in gm.graph.nodes if node.op == op and hasattr(node.meta["val"], "dtype")}


def model():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Softmax(-1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_computation_is_reduced_and_the_rim_is_not(dtype, captured):
    module, x = model(), torch.randn(3, 4)
    gm = captured(module, x)
    assert ConvertFloatType(torch.float32, dtype)(gm).changed
    gm.recompile()
    casts = [node for node in gm.graph.nodes if node.target is torch.ops.aten._to_copy.default]
    assert {node.meta["val"].dtype for node in gm.graph.nodes if node.op == "call_function"} == {dtype, torch.float32}
    assert [node for node in casts if node.meta["val"].dtype == torch.float32] == [casts[-1]]
    result = gm(x)
    assert result.dtype == torch.float32
    tolerance = HALF if dtype is torch.float16 else 2e-2  # bfloat16 has three bits fewer
    torch.testing.assert_close(result, module(x), rtol=tolerance, atol=tolerance)


def test_named_types_and_factories_follow(captured):
    def function(x):
        weights = torch.softmax(x.half(), -1, dtype=torch.float32)
        return weights.to(torch.float32) + torch.ones(4) + torch.full((4,), 0.5) + torch.arange(4)

    x = torch.randn(3, 4)
    gm = captured(function, x)
    ConvertFloatType(torch.float32, torch.float16)(gm)
    gm.recompile()
    assert gm(x).dtype == torch.float32
    torch.testing.assert_close(gm(x), function(x), rtol=HALF, atol=HALF)


def test_whole_numbers_keep_their_type(captured):
    def function(x, index):
        return x[index] * 2, index + 1

    x, index = torch.randn(5, 4), torch.tensor([0, 2])
    gm = captured(function, x, index)
    ConvertFloatType(torch.float32, torch.float16)(gm)
    gm.recompile()
    assert gm(x, index)[1].dtype == torch.int64


def test_written_state_keeps_its_type(captured):
    from trt_lowering.passes.functionalize import Functionalize

    class Mean(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x):
            self.mean.mul_(0.5).add_(x)
            return self.mean * 1

    gm = captured(Mean(), torch.randn(3))
    Functionalize()(gm)
    ConvertFloatType(torch.float32, torch.float16)(gm)
    gm.recompile()
    gm(torch.ones(3))
    assert gm.mean.dtype == torch.float32
    assert torch.equal(gm.mean, torch.ones(3))


def test_double_is_truncated_inside_only(captured):
    x = torch.randn(3, 4, dtype=torch.float64)
    module = model().double()
    gm = captured(module, x, dynamic_shapes=(({0: Dim("b", min=1, max=8)},)))
    ConvertFloatType(torch.float64, torch.float32)(gm)
    gm.recompile()
    assert gm(x).dtype == torch.float64
    torch.testing.assert_close(gm(x), module(x), rtol=1e-5, atol=1e-5)  # float32 inside
    products = [node for node in gm.graph.nodes if node.target is torch.ops.aten.linear.default]
    assert {node.meta["val"].dtype for node in products} == {torch.float32}


def test_nothing_of_the_type(captured):
    assert not ConvertFloatType(torch.float64, torch.float32)(captured(model(), torch.randn(3, 4))).changed


def test_settings_decide(settings):
    assert ConvertFloatType.for_settings(settings) == []
    both = settings.replace(truncate_long_and_double=True, precision=torch.float16)
    names = [step.name for step in ConvertFloatType.for_settings(both)]
    assert names == ["convert_float64_to_float32", "convert_float32_to_float16"]


def test_autocast_reduces_products_only(captured, settings):
    module, x = model(), torch.randn(3, 4)
    gm = captured(module, x)
    assert Autocast(settings.replace(enable_autocast=True))(gm).changes == 1
    gm.recompile()
    by_name = {node.target: node.meta["val"].dtype for node in gm.graph.nodes if node.op == "call_function"}
    assert by_name[torch.ops.aten.linear.default] == torch.float16
    assert by_name[torch.ops.aten.layer_norm.default] == torch.float32
    result = gm(x)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, module(x), rtol=HALF, atol=HALF)


def test_neighbouring_products_hand_the_reduced_type_on(captured, settings, operators):
    module = torch.nn.Sequential(torch.nn.Linear(4, 8, bias=False), torch.nn.Linear(8, 2, bias=False))
    gm = captured(module, torch.randn(3, 4))
    Autocast(settings.replace(enable_autocast=True, autocast_dtype=torch.bfloat16))(gm)
    assert operators(gm) == {"linear": 2, "_to_copy": 4}  # input, two weights, result


def test_autocast_is_off_by_default_and_spares_named_operators(captured, settings):
    gm = captured(model(), torch.randn(3, 4))
    assert not Autocast(settings)(gm).changed
    named = settings.replace(enable_autocast=True, torch_executed_ops={"aten.linear"})
    assert not Autocast(named)(gm).changed
