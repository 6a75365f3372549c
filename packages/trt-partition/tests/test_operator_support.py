"""The rules that are composed around every support check."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn

from trt_core import CompilationSettings, Reason, Verdict
from trt_core.operators import draws_random_numbers
from trt_partition import compose_support, get_graph_converter_support
from trt_partition.costs import counts_as_computation
from trt_partition.effects import Effect, effect_of

aten = torch.ops.aten


def _call(target: Any, *args: Any, value: Any = None, **kwargs: Any) -> fx.Node:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(2, 2)
    node = graph.call_function(target, tuple(x if arg == "x" else arg for arg in args), kwargs)
    node.meta["val"] = torch.empty(2, 2) if value is None else value
    return node


class Raising:
    def verdict(self, node: fx.Node) -> Verdict:
        raise RuntimeError(f"no luck with {node.name}")


class Wrong:
    def verdict(self, node: fx.Node) -> Any:
        return "yes"


def test_exception_becomes_a_refusal() -> None:
    verdict = compose_support(Raising(), CompilationSettings()).verdict(_call(aten.relu.default, "x"))
    assert verdict.reason is Reason.CHECK_FAILED
    assert verdict.message == "RuntimeError: no luck with relu_default"


def test_answer_that_is_no_verdict_becomes_a_refusal() -> None:
    verdict = compose_support(Wrong(), CompilationSettings()).verdict(_call(aten.relu.default, "x"))
    assert verdict.reason is Reason.CHECK_FAILED


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (_call(aten.add_.Tensor, "x", "x"), Reason.MUTATION),
        (_call(aten.copy_.default, "x", "x"), Reason.MUTATION),
        (_call(aten.rand_like.default, "x"), Reason.SIDE_EFFECT),
        (_call(aten.dropout.default, "x", 0.5, True), Reason.SIDE_EFFECT),
        (_call(aten._assert_async.default, "x"), Reason.SIDE_EFFECT),
        (_call(torch.ops.higher_order.cond, "x"), Reason.HIGHER_ORDER),
        (_call(aten.relu.default, "x", value="text"), Reason.UNSUPPORTED_VALUE),
    ],
    ids=lambda item: str(item.target) if isinstance(item, fx.Node) else item.name,
)
def test_structural_refusals(refuse: Any, node: fx.Node, reason: Reason) -> None:
    assert compose_support(refuse(), CompilationSettings()).verdict(node).reason is reason


@pytest.mark.parametrize(
    "node",
    [
        _call(aten.dropout.default, "x", 0.5, False),
        _call(aten.dropout.default, "x", 0.0, True),
        _call(aten.scaled_dot_product_attention.default, "x", "x", "x"),
        _call(aten.native_dropout.default, "x", 0.5, False),
        _call(aten.relu.default, "x"),
    ],
    ids=lambda node: str(node.target),
)
def test_operators_that_could_draw_and_do_not_are_fit(refuse: Any, node: fx.Node) -> None:
    assert not draws_random_numbers(node)
    assert effect_of(node) is Effect.NONE
    assert compose_support(refuse(), CompilationSettings()).verdict(node).supported


def test_forced_operator_comes_before_every_other_reason(refuse: Any) -> None:
    settings = CompilationSettings(torch_executed_ops=frozenset({"aten.rand_like"}))
    verdict = compose_support(refuse(), settings).verdict(_call(aten.rand_like.default, "x"))
    assert verdict.reason is Reason.FORCED_OPERATOR


@pytest.mark.parametrize(
    ("node", "counts"),
    [
        (_call(aten.relu.default, "x"), True),
        (_call(aten.cat.default, ["x"]), True),
        (_call(aten.view.default, "x", [4]), False),
        (_call(aten.reshape.default, "x", [4]), False),
        (_call(aten.permute.default, "x", [1, 0]), False),
        (_call(aten.slice.Tensor, "x", 0, 0, 1), False),
        (_call(aten.to.dtype, "x", torch.float16), False),
        (_call(aten._to_copy.default, "x"), False),
        (_call(aten.clone.default, "x"), False),
        (_call(aten.view_copy.default, "x", [4]), False),
    ],
    ids=lambda item: str(item.target) if isinstance(item, fx.Node) else "",
)
def test_what_counts_as_computation(node: fx.Node, counts: bool) -> None:
    assert counts_as_computation(node) is counts


class InModule(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.tanh(x)) + 1


def test_refusals_name_the_source_line(capture: Any, refuse: Any) -> None:
    gm = capture(InModule(), torch.randn(2))
    node = next(node for node in gm.graph.nodes if node.target is aten.tanh.default)
    source = compose_support(refuse("tanh.default"), CompilationSettings()).verdict(node).source
    assert source.rpartition(":")[0].endswith("test_operator_support.py")


def test_graph_converter_support_counts(capture: Any, refuse: Any) -> None:
    gm = capture(InModule(), torch.randn(2))
    assert get_graph_converter_support(gm, refuse("tanh.default")) == (2, 3)
    forced = CompilationSettings(torch_executed_ops=frozenset({"aten.add"}))
    assert get_graph_converter_support(gm, refuse("tanh.default"), forced) == (1, 3)
