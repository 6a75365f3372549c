from __future__ import annotations

import operator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trt_lowering.operator_traits import mutated_arguments
from trt_lowering.passes.functionalize import Functionalize, functional_operator

aten = torch.ops.aten


def in_place(gm):
    return [
        node.target
        for node in gm.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload) and mutated_arguments(node.target)
    ]


def rewritten(gm):
    step = Functionalize()
    step(gm)
    gm.recompile()
    return step


def chain(x):
    y = x * 2
    y.add_(1)
    return y.relu_().mul_(3) - y


def alias_used_later(x):
    y = x * 2
    z = y.detach()
    y.add_(1)
    return y + z


def narrow_type(x):
    y = x.half()
    y.add_(x)
    return y


def whole_numbers(x):
    y = torch.zeros_like(x, dtype=torch.int32)
    y.add_(3)
    return y.mul_(2)


def filled(x):
    y = x + 1
    y.zero_()
    z = x + 2
    z.fill_(7)
    return y, z


def copied(x):
    y = torch.empty_like(x)
    y.copy_(x[0])
    z = torch.empty_like(x, dtype=torch.float64)
    z.copy_(x)
    w = x + 1
    w.copy_(x)
    w.add_(1)
    return y, z, w


def view_written_and_dead(x):
    y = (x * 2).reshape(-1)
    y.add_(1)
    return y


def one_of_two(x):
    """As routers of experts do."""
    weights, chosen = x.topk(2)
    weights /= weights.sum(-1, keepdim=True)
    return weights, chosen


def shape_used_later(x):
    """As what sets bits of floats does."""
    y = x * 2
    bits = y.view(torch.int32)
    bits.add_(1)
    return bits, torch.full_like(y, 3), y.new_zeros(y.size(0))


def drop_nothing(x):
    """As the last layers of MobileNetV3 do; of what is in use later, which nobody has written to."""
    y = x * 2
    z = torch.nn.functional.dropout(y, training=False, inplace=True)
    return torch.nn.functional.alpha_dropout(z.t(), training=False, inplace=True), y


@pytest.mark.parametrize(
    "function",
    [
        drop_nothing,
        shape_used_later,
        chain,
        alias_used_later,
        narrow_type,
        whole_numbers,
        filled,
        copied,
        view_written_and_dead,
        one_of_two,
    ],
    ids=lambda function: function.__name__,
)
def test_writes_to_fresh_values_become_functional(function, captured, compare):
    x = torch.randn(3, 4)
    gm = captured(function, x)
    assert in_place(gm)
    step = rewritten(gm)
    assert step.entangled is None
    assert in_place(gm) == []
    compare(function(x), gm(x))


def base_used_later(x):
    y = x * 2
    y[:, 0].add_(1)
    return y


def view_used_later(x):
    y = x * 2
    z = y[0]
    y.add_(1)
    return z


def part_of_a_part(x):
    y = x * 2
    rows = y[1:]
    rows[:, ::2] = 5
    rows[0].mul_(y[0])
    return rows.detach(), y.t()


def regions(x):
    mask = torch.zeros_like(x)
    for number, rows in enumerate((slice(0, -2), slice(-2, -1), slice(-1, None))):
        mask[rows, 1:] = number
        mask.diagonal()[:2] += x[0, 0]
    return mask


@pytest.mark.parametrize("function", [base_used_later, view_used_later, part_of_a_part, regions])
def test_writes_seen_through_other_views_reach_them(function, captured, compare):
    x = torch.randn(3, 4)
    gm = captured(function, x)
    assert rewritten(gm).entangled is None
    assert in_place(gm) == []
    compare(function(x), gm(x))


def written_in_another_order(x):
    y = x * 2
    y.t()[0].add_(1)
    return y


def perhaps_a_view(x):
    y = x.t() * 2
    z = y.reshape(-1)
    y.add_(1)
    return z


def one_of_several(x):
    y = x * 2
    first, second = y.chunk(2, 1)
    first.add_(1)
    return y, second


@pytest.mark.parametrize("function", [written_in_another_order, perhaps_a_view, one_of_several])
def test_writes_through_what_may_lie_elsewhere_are_entangled(function, captured):
    step = Functionalize()
    step(captured(function, torch.randn(3, 4)))
    assert step.entangled is not None


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(2))

    def forward(self, x):
        before = self.steps + 0
        self.steps.add_(1)
        self.steps.mul_(2)
        return x + self.steps, before


def test_writes_to_buffers_become_one_write_back_at_the_end(captured, compare):
    model = Counter()
    gm = captured(model, torch.randn(2))
    assert rewritten(gm).entangled is None
    assert in_place(gm) == [aten.copy_.default]
    assert list(gm.graph.nodes)[-2].target is aten.copy_.default
    x = torch.randn(2)
    for _ in range(2):
        state = gm.steps.clone()
        compare((x + (state + 1) * 2, state), gm(x))
        compare((state + 1) * 2, gm.steps)


def test_dropout_that_is_on_is_not_taken_for_what_writes_nothing(captured):
    gm = captured(lambda x: torch.nn.functional.dropout(x * 2, inplace=True), torch.randn(3))
    assert rewritten(gm).entangled.target is aten.dropout_.default


@pytest.mark.parametrize("write_back", [True, False])
def test_dropout_that_is_off_leaves_inputs_alone(write_back, captured):
    gm = captured(lambda x: torch.nn.functional.dropout(x, training=False, inplace=True), x := torch.randn(3))
    Functionalize(write_back=write_back)(gm)
    assert in_place(gm) == []
    gm.recompile()
    assert gm(x) is x


def test_writes_to_inputs_reach_the_caller(captured, compare):
    def function(x):
        x.add_(1)
        return x * 2

    gm = captured(function, torch.randn(3))
    assert rewritten(gm).entangled is None
    given_, expected = torch.ones(3), torch.full((3,), 2.0)
    compare(expected * 2, gm(given_))
    compare(expected, given_)


def test_state_keeps_its_writes_without_write_back(captured):
    gm = captured(Counter(), torch.randn(2))
    step = Functionalize(write_back=False)
    step(gm)
    assert step.entangled is None
    assert in_place(gm) == [aten.add_.Tensor, aten.mul_.Tensor]


def test_write_through_a_view_of_a_buffer_is_entangled(captured):
    class Cache(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("cache", torch.zeros(4, 3))

        def forward(self, x):
            self.cache[0].copy_(x)
            return self.cache.sum()

    step = Functionalize()
    step(captured(Cache(), torch.randn(3)))
    assert step.entangled is not None


def test_saved_programs_are_rewritten_by_schema_alone(tmp_path, compare):
    from trt_lowering import export_module
    from trt_lowering.lower import unlift

    class Model(torch.nn.Module):
        def forward(self, x):
            y = torch.nn.functional.dropout(x * 2, training=False)
            return y.relu_() + y

    x = torch.randn(3)
    torch.export.save(export_module(Model(), (x,)), tmp_path / "model.pt2")
    gm = unlift(torch.export.load(tmp_path / "model.pt2"))
    assert rewritten(gm).entangled is None
    assert in_place(gm) == []
    compare(Model()(x), gm(x))


STEPS = {
    "add": lambda v: v.add_(1.5),
    "relu": lambda v: v.relu_(),
    "mul": lambda v: v.mul_(-0.5),
    "clamp": lambda v: v.clamp_(-1, 1),
    "fresh": lambda v: v + 1,
    "detach": lambda v: v.detach(),
    "flatten": lambda v: v.flatten(),
    "first": lambda v: v[:1],
    "half": lambda v: v[..., :2],
    "wrapped": lambda v: v.unsqueeze(0),
    "inside": lambda v: v[0] if v.dim() > 1 else v,
    "write": lambda v: operator.setitem(v, (..., slice(1)), 7.0) or v,
}


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=7), st.integers(0, 6))
def test_any_chain_of_writes_computes_what_eager_does(names, kept):
    from trt_lowering import export_module
    from trt_lowering.lower import unlift

    class Model(torch.nn.Module):
        def forward(self, x):
            value, seen = x * 2, []
            for name in names:
                seen.append(value)
                value = STEPS[name](value)
            return value, -seen[kept % len(seen)]

    x = torch.randn(2, 3)
    gm = unlift(export_module(Model(), (x,)))
    step = rewritten(gm)
    for expected, actual in zip(Model()(x), gm(x), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    assert step.entangled is not None or in_place(gm) == []


def test_counterparts():
    assert functional_operator(aten.relu_.default) is aten.relu.default
    assert functional_operator(aten.masked_fill_.Scalar) is aten.masked_fill.Scalar
    assert functional_operator(aten.unsqueeze_.default) is None
    assert functional_operator(aten.set_.source_Tensor) is None
