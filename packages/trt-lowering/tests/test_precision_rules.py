"""What stays in float32 where the rest is reduced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn

from trt_core.precision import PrecisionRule, kept_in_float32
from trt_lowering import PrecisionRules, begin_lowering, export_module


class Model(nn.Module):
    """A linear layer, an exponential, and a norm that is decomposed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.GroupNorm(2, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N, 4), float32."""
        return self.last(self.norm(torch.exp(self.first(x))))


X = torch.linspace(-1.0, 1.0, 12).reshape(3, 4)
REDUCED = {
    "precision": {"precision": torch.float16},
    "autocast": {"enable_autocast": True},
    "bfloat16": {"precision": torch.bfloat16},
}


def _kept(gm: fx.GraphModule) -> dict[str, Any]:
    return {node.name: kept_in_float32(node) for node in gm.graph.nodes if kept_in_float32(node) is not None}


def _types(gm: fx.GraphModule) -> dict[str, torch.dtype]:
    return {
        node.name: node.meta["val"].dtype
        for node in gm.graph.nodes
        if node.op == "call_function" and isinstance(node.meta["val"], torch.Tensor)
    }


def _as_eager(gm: fx.GraphModule, model: nn.Module) -> None:
    torch.testing.assert_close(gm(X), model(X), rtol=2e-2, atol=2e-2)  # bfloat16 has 8 bits


@pytest.mark.parametrize("how", REDUCED)
def test_operators_are_excluded(how: str, lower_module: Callable[..., fx.GraphModule]) -> None:
    model = Model()
    gm = lower_module(model, X, autocast_excluded_ops={"aten.linear.default"}, **REDUCED[how])
    assert {name: str(why) for name, why in _kept(gm).items()} == dict.fromkeys(
        ("linear", "linear_1"), "autocast_excluded_ops: torch.ops.aten.linear.default"
    )
    assert _types(gm)["linear"] == _types(gm)["linear_1"] == torch.float32
    assert (_types(gm)["exp"] == torch.float32) is (how == "autocast")
    _as_eager(gm, model)


def test_an_operator_that_is_decomposed_is_excluded_with_all_its_pieces(
    lower_module: Callable[..., fx.GraphModule],
) -> None:
    gm = lower_module(Model(), X, precision=torch.float16, autocast_excluded_ops={"aten.group_norm"})
    assert [kept.rule for kept in _kept(gm).values()] == [PrecisionRule.OPERATOR]
    assert "group_norm" not in {str(node.target) for node in gm.graph.nodes}
    assert {"linear": torch.float16, "exp": torch.float16, "linear_1": torch.float16}.items() <= _types(gm).items()


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("linear", {"linear", "linear_1"}),
        ("^linear$", {"linear"}),
        ("last", {"linear_1"}),
        ("first/linear", {"linear"}),
        (".*_1$", {"linear_1"}),
        ("irst", set()),
    ],
)
def test_patterns_match_names_and_modules_from_their_start(
    pattern: str, names: set[str], lower_module: Callable[..., fx.GraphModule]
) -> None:
    gm = lower_module(Model(), X, enable_autocast=True, autocast_excluded_nodes={pattern})
    assert set(_kept(gm)) == names


def test_a_module_is_excluded_with_the_modules_in_it(lower_module: Callable[..., fx.GraphModule]) -> None:
    gm = lower_module(nn.Sequential(Model(), nn.Linear(3, 2)), X, enable_autocast=True, autocast_excluded_nodes={"0$"})
    assert set(_kept(gm)) == {"linear", "linear_1"}


@pytest.mark.parametrize("how", REDUCED)
def test_depth_of_reduction_decides(how: str, lower_module: Callable[..., fx.GraphModule]) -> None:
    gm = lower_module(Model(), X, autocast_max_depth_of_reduction=3, **REDUCED[how])
    kept = {name: str(why) for name, why in _kept(gm).items()}
    assert kept.pop("linear_1") == "autocast_max_depth_of_reduction: adds up 8 elements"
    assert set(kept) == ({"linear"} if how == "autocast" else {"linear", "native_group_norm"})


def test_magnitudes_decide_on_operands_and_results(preserve: Any, settings: Any) -> None:
    program = export_module(Model().eval(), (X,))
    begun = begin_lowering(program, settings.replace(precision=torch.float16), preserve=preserve)
    gm = begun.finish(PrecisionRules(max_magnitude=100.0, magnitudes={"exp": 1e6, "linear": 99.0}))
    reasons = {name: (why.rule, why.why) for name, why in _kept(gm).items()}
    assert reasons == dict.fromkeys(("exp", "native_group_norm"), (PrecisionRule.MAGNITUDE, "exp reaches 1e+06"))


def test_what_was_measured_gives_the_reason(preserve: Any, settings: Any) -> None:
    program = export_module(Model().eval(), (X,))
    begun = begin_lowering(program, settings.replace(precision=torch.float16), preserve=preserve)
    twin = begun.copy()
    gm = begun.finish(PrecisionRules(sensitive={"linear": "0.3 alone"}))
    assert {name: str(why) for name, why in _kept(gm).items()} == {"linear": "max_error: 0.3 alone"}
    assert _kept(twin.finish()) == {}  # a copy knows nothing of the other


def test_exclusions_that_fit_nothing_are_known(preserve: Any, settings: Any) -> None:
    given = settings.replace(
        precision=torch.float16,
        autocast_excluded_nodes={"first", "nowhere"},
        autocast_excluded_ops={"aten.group_norm", "aten.tanh"},
    )
    begun = begin_lowering(export_module(Model().eval(), (X,)), given, preserve=preserve)
    assert begun.unmatched_exclusions == {"nowhere", "torch.ops.aten.tanh"}


def test_nothing_is_kept_where_nothing_is_reduced(lower_module: Callable[..., fx.GraphModule]) -> None:
    gm = lower_module(Model(), X, autocast_excluded_nodes={"linear"}, autocast_max_depth_of_reduction=1)
    assert _kept(gm) == {}


def test_chunks_of_an_excluded_operator_stay_wide(lower_module: Callable[..., fx.GraphModule]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        left, right = (x * 2).chunk(2, 1)
        return left * right

    gm = lower_module(function, X, precision=torch.float16, autocast_excluded_ops={"aten.chunk", "aten.split"})
    assert len(_kept(gm)) == 1
    types = _types(gm)
    assert types["mul_1"] == torch.float16
    torch.testing.assert_close(gm(X), function(X), rtol=2e-3, atol=2e-3)


def test_written_state_is_float32_when_what_writes_it_is_excluded(lower_module: Callable[..., fx.GraphModule]) -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean.mul_(0.5).add_(x.mean(0))
            return self.mean * 1

    eager, model = Mean(), Mean()
    gm = lower_module(model, X, precision=torch.float16, autocast_excluded_nodes={"mul|add|mean"})
    assert torch.equal(gm(X), eager(X))
    assert torch.equal(gm.mean if hasattr(gm, "mean") else model.mean, eager.mean)
