"""The passes that change types of computation: whole-graph conversion and autocast."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.export import Dim

from trt_core import SettingsError
from trt_core.precision import PrecisionRule, exclusion_of
from trt_lowering import export_module, lower
from trt_lowering.passes.convert_float_type import Autocast, ConvertFloatType
from trt_lowering.passes.functionalize import Functionalize
from trt_lowering.precision_rules import ExcludeState

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


def test_bits_are_those_of_the_type_that_the_model_reads(captured):
    def function(x):
        bits = (x * 2).view(torch.int32)
        return bits >> 23 & 255, (bits & ~1).view(torch.float32) + 1, torch.ones(3, dtype=torch.int16).view(torch.half)

    x = torch.randn(3, 4)
    gm = captured(function, x)
    assert ConvertFloatType(torch.float32, torch.float16)(gm).changed
    gm.recompile()
    for found, expected in zip(gm(x), function(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=HALF, atol=HALF)


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


REDUCED = [torch.float16, torch.bfloat16]
LOWEST = torch.finfo(torch.float32).min


class Held(torch.nn.Module):
    """Runs a function of itself and its inputs, with one buffer."""

    def __init__(self, function, buffer):
        super().__init__()
        self.function = function
        self.register_buffer("buffer", buffer)

    def forward(self, *args):
        return self.function(self, *args)


MASKS = {
    "masked_fill": lambda module, x, m: x.masked_fill(m, LOWEST),
    "masked_fill with a whole number": lambda module, x, m: x.masked_fill(m, -(10**9)),
    "where": lambda module, x, m: torch.where(m, LOWEST, x),
    "full": lambda module, x, m: torch.where(m, torch.full((3,), LOWEST), x),
    "full_like": lambda module, x, m: torch.where(m, torch.full_like(x, LOWEST), x),
    "product": lambda module, x, m: x + m.to(x.dtype) * LOWEST,
    "buffer": lambda module, x, m: torch.where(m, module.buffer, x),
    "literal": lambda module, x, m: torch.where(m, torch.tensor(LOWEST), x),
}


@pytest.mark.parametrize("dtype", REDUCED)
@pytest.mark.parametrize("name", MASKS)
def test_what_says_masked_out_stays_finite(name, dtype, lower_module):
    x, mask = torch.rand(2, 3), torch.tensor([[True, True, True], [False, True, False]])
    model = Held(lambda module, x, m: torch.softmax(MASKS[name](module, x, m), -1), torch.full((3,), LOWEST))
    found = lower_module(model, x, mask, precision=dtype)(x, mask)
    torch.testing.assert_close(found, model(x, mask), rtol=2e-2, atol=2e-2)  # bfloat16 has 8 bits


@pytest.mark.parametrize("dtype", REDUCED)
def test_masks_that_are_given_stay_finite(dtype, lower_module):
    def attend(q, mask, bias):
        scores = torch.softmax(q @ q.mT + mask[:, None, :, :3], -1)
        attended = torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask[..., :3].unsqueeze(1))
        return scores @ q + bias, attended

    q = torch.randn(1, 2, 3, 4) / 4
    mask = torch.zeros(1, 3, 5).index_fill(1, torch.tensor([1]), LOWEST)
    args = (q, mask, torch.tensor([float("inf"), -float("inf"), 0.0, 1.0]))
    for found, wanted in zip(lower_module(attend, *args, precision=dtype)(*args), attend(*args), strict=True):
        torch.testing.assert_close(found, wanted, rtol=5e-2, atol=5e-2)


def test_infinities_stay_infinite(lower_module):
    model = Held(lambda module, x: x + module.buffer, torch.tensor([float("inf"), -float("inf"), LOWEST]))
    found = lower_module(model, torch.ones(3), precision=torch.float16)(torch.ones(3))
    assert found.tolist() == [float("inf"), -float("inf"), torch.finfo(torch.float16).min]


def test_the_number_of_elements_is_no_number_to_stop(lower_module):
    found = lower_module(lambda x: x + torch.arange(70000.0)[:3], torch.ones(3), precision=torch.float16)(torch.ones(3))
    assert found.tolist() == [1, 2, 3]


@pytest.mark.parametrize("dtype", REDUCED)
def test_autocast_keeps_masks_of_attention_finite(dtype, lower_module):
    q = torch.randn(1, 2, 3, 4)
    keep = torch.tensor([[False, False, False], [True, False, True], [True, True, True]])

    def attend(q, keep):
        mask = torch.zeros(3, 3).masked_fill(~keep, LOWEST)
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)

    found = lower_module(attend, q, keep, enable_autocast=True, autocast_dtype=dtype)(q, keep)
    assert torch.isfinite(found).all()  # the row that is masked as a whole means nothing, and must not spread
    torch.testing.assert_close(found[..., 1:, :], attend(q, keep)[..., 1:, :], rtol=5e-2, atol=5e-2)


def test_truncation_refuses_constants_that_it_would_change(lower_module):
    x = torch.ones(3, dtype=torch.float64)
    for model in (
        lambda x: x * 1e300,
        Held(lambda module, x: x * module.buffer, torch.tensor([1.0, -1e200, 2.0], dtype=torch.float64)),
    ):
        with pytest.raises(SettingsError, match="truncate_long_and_double would change the constant"):
            lower_module(model, x, truncate_long_and_double=True)


def test_truncation_takes_the_extremes_for_what_they_mean(lower_module):
    x, mask = torch.rand(3, dtype=torch.float64), torch.tensor([True, False, True])

    def model(x, mask):
        return torch.softmax(x.masked_fill(mask, torch.finfo(torch.float64).min), -1)

    found = lower_module(model, x, mask, truncate_long_and_double=True)(x, mask)
    torch.testing.assert_close(found, model(x, mask))


WRITES = {
    "buffer": lambda module, x: module.buffer.add_(x).relu() + 1,
    "two buffers": lambda module, x: (module.buffer.add_(x), x.mul_(2), x + module.buffer),
    "input": lambda module, x: x.add_(1) * 2,
    "cache": lambda module, x: module.buffer.index_copy_(0, torch.tensor([1]), x[:1]).sum() + x,
    "copy": lambda module, x: (module.buffer.copy_(x * 2), x + 1)[1],
}


@pytest.mark.parametrize("dtype", REDUCED)
@pytest.mark.parametrize("name", WRITES)
def test_writes_reach_state_in_its_own_type(name, dtype, lower_module, compare):
    start = torch.tensor([1.0, 2.0, 3.0])
    eager, model = Held(WRITES[name], start.clone()), Held(WRITES[name], start.clone())
    gm = lower_module(model, torch.ones(3), precision=dtype)
    for _ in range(2):
        x, same = torch.tensor([0.5, 1.0, 2.0]), torch.tensor([0.5, 1.0, 2.0])
        compare(eager(x), gm(same))
        compare((x, eager.buffer), (same, model.buffer))


@pytest.mark.parametrize("dtype", REDUCED)
def test_running_statistics_are_updated_where_they_are(dtype, settings, preserve):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).train()
    eager, x = copy.deepcopy(model), torch.randn(2, 3, 8, 8)
    gm = lower(export_module(model, (x,)), settings.replace(precision=dtype), preserve=preserve)
    torch.testing.assert_close(gm(x), eager(x), rtol=5e-2, atol=5e-2)
    torch.testing.assert_close(model[1].running_mean, eager[1].running_mean, rtol=5e-2, atol=5e-3)
    assert model[1].running_mean.abs().max() > 0


def test_operators_that_run_in_pytorch_keep_their_type(lower_module):
    def function(x):
        return torch.special.bessel_j0(x * 2) + 1

    x = torch.rand(3)
    gm = lower_module(function, x, precision=torch.float16)
    torch.testing.assert_close(gm(x), function(x), rtol=HALF, atol=HALF)
    by_name = {str(node.target): node.meta["val"].dtype for node in gm.graph.nodes if node.op == "call_function"}
    assert by_name["aten.special_bessel_j0.default"] == torch.float32
    assert by_name["aten.mul.Tensor"] == torch.float16


def test_branches_of_control_flow_keep_their_type(lower_module):
    def function(flag, x):
        return torch.cond(flag, lambda y: torch.sin(y) * 2, lambda y: torch.cos(y), (x * 2,)) + 1

    x, flag = torch.rand(3), torch.tensor(True)
    gm = lower_module(function, flag, x, precision=torch.float16)
    torch.testing.assert_close(gm(flag, x), function(flag, x), rtol=HALF, atol=HALF)


def test_what_carries_a_state_on_stays_in_float32(captured):
    class Recurrent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("cache", torch.zeros(4, 3))
            self.register_buffer("hidden", torch.zeros(3))
            self.layer = torch.nn.Linear(3, 3)

        def forward(self, x):
            self.cache.copy_(torch.cat([self.cache[1:], self.layer(x)]))
            self.hidden.copy_(torch.tanh(self.layer(self.hidden)))
            return torch.relu(self.cache) * self.hidden

    gm = captured(Recurrent(), torch.randn(1, 3))
    Functionalize()(gm)
    assert ExcludeState()(gm).changed
    kept = {node.name: exclusion_of(node).rule for node in gm.graph.nodes if exclusion_of(node) is not None}
    assert {"slice_1", "cat"} <= kept.keys()
    assert not kept.keys() & {"linear", "linear_1", "tanh", "relu", "mul"}
    assert set(kept.values()) == {PrecisionRule.STATE}
    assert not ExcludeState()(gm).changed


CARRYING = {
    "another state": lambda module, x: module.buffer.copy_(module.other[0].expand_as(module.buffer)),
    "an input that is only moved": lambda module, x: module.buffer.copy_(x.view(4, 3)[torch.tensor([3, 0, 1, 2])]),
    "elements that are chosen": lambda module, x: module.buffer.copy_(module.buffer.sort(0).values.repeat(2, 1)[::2]),
    "elements that are moved by composites": lambda module, x: module.buffer.copy_(
        torch.pixel_shuffle(module.buffer.tril().view(1, 4, 1, 3), 2).view_as(module.buffer)
    ),
    "a condition on the state": lambda module, x: module.buffer.copy_(torch.where(module.buffer > 7, 0, module.buffer)),
}


@pytest.mark.parametrize("name", CARRYING)
def test_all_that_leads_from_states_to_a_state_carries_it(name, captured):
    model = Held(CARRYING[name], torch.rand(4, 3))
    model.register_buffer("other", torch.rand(2, 3))
    gm = captured(model, torch.rand(12))
    Functionalize()(gm)
    ExcludeState()(gm)
    *calls, write = (node for node in gm.graph.nodes if node.op == "call_function")
    assert calls and write.target is torch.ops.aten.copy_.default
    for node in calls:
        assert exclusion_of(node) is not None or getattr(node.meta["val"], "dtype", None) is torch.int64, node
