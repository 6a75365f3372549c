"""What refitting refuses: weights that do not fit, engines without the setting, converters that bake numbers in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from refit_models import Net, X, assert_same, compile_to_refit
from torch import nn

import trt_runtime
from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry, converter
from trt_core import InputError, RefitError
from trt_frontends import refit_module_weights

aten = torch.ops.aten


def test_weights_that_are_missing_or_do_not_fit_are_named(mlp: nn.Module) -> None:
    compiled = compile_to_refit(mlp, X)
    state = dict(mlp.state_dict())
    bias = state.pop("2.bias")
    with pytest.raises(RefitError, match=r"'2\.bias' is missing"):
        refit_module_weights(compiled, state)
    for wrong in (bias.double(), torch.ones(3)):
        with pytest.raises(RefitError, match=r"'2\.bias' does not fit"):
            refit_module_weights(compiled, {**state, "2.bias": wrong})
    assert_same(compiled, mlp, X)


def _freed(like: torch.Tensor) -> torch.Tensor:
    """As libraries leave it that shard models: with its sizes, and without its memory."""
    value = like.clone()
    value.untyped_storage().resize_(0)
    return value


@pytest.mark.parametrize(
    "make",
    [
        _freed,
        lambda like: like.to("meta"),
        lambda like: like.to_sparse(),
        lambda like: torch.nested.nested_tensor([torch.ones(1), torch.ones(1)]),
    ],
    ids=["freed", "meta", "sparse", "nested"],
)
def test_weights_without_numbers_in_memory_are_refused(make: Callable[[torch.Tensor], Any], mlp: nn.Module) -> None:
    """One whose memory was freed ended the process, others left as PyTorch's errors."""
    compiled = compile_to_refit(mlp, X)
    state = {name: value.detach() for name, value in mlp.state_dict().items()}
    for name in ("2.bias", "2.weight"):
        with pytest.raises(RefitError, match=f"'{name}' is no tensor with numbers"):
            trt_runtime.refit_module(compiled, {**state, name: make(state[name])})
    assert_same(compiled, mlp, X)


def test_engines_without_refit_say_so(mlp: nn.Module) -> None:
    compiled = compile_to_refit(mlp, X, refit=False)
    with pytest.raises(RefitError, match="without refit=True"):
        refit_module_weights(compiled, mlp.state_dict())
    with pytest.raises(RefitError, match="no engines"):
        refit_module_weights(mlp, mlp.state_dict())
    with pytest.raises(InputError, match="cannot take a list as new_weight_module"):
        refit_module_weights(compiled, [])  # type: ignore[arg-type]


def test_verification_needs_a_model_and_inputs(mlp: nn.Module) -> None:
    compiled = compile_to_refit(mlp, X)
    with pytest.raises(InputError, match="cannot be verified"):
        refit_module_weights(compiled, mlp.state_dict(), (X,), verify_output=True)
    with pytest.raises(InputError, match="cannot be verified"):
        refit_module_weights(compiled, mlp, verify_output=True)


def test_verification_finds_a_model_that_computes_something_else(mlp: nn.Module) -> None:
    compiled = compile_to_refit(mlp, X)
    other = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).eval()
    with pytest.raises(RefitError, match="output 0 of the refitted module differs"):
        refit_module_weights(compiled, other, (X * 5,), verify_output=True, in_place=True)
    assert_same(compiled, mlp, X)


class Constant(nn.Module):
    """Has a buffer that no state dict holds."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("scale", torch.full((4,), scale), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.linear.bias * self.scale


def test_buffers_that_state_dicts_leave_out_stay_and_must_be_the_same() -> None:
    model, other = Constant(2.0), Constant(2.0)
    compiled = compile_to_refit(model, X)
    for source in (other.state_dict(), other, torch.export.export(other.eval(), (X,))):
        assert_same(refit_module_weights(compiled, source), other, X)
    with pytest.raises(RefitError, match="'scale' of the model has changed"):
        refit_module_weights(compiled, Constant(3.0))


class PlainConstant(Constant):
    """The same with a tensor that is neither a buffer nor a parameter."""

    def __init__(self, scale: float) -> None:
        super().__init__(scale)
        del self.scale
        self.scale = torch.full((4,), scale)


def test_tensors_that_are_plain_attributes_must_be_the_same() -> None:
    """Their numbers stayed, and nobody was told."""
    model, other = PlainConstant(2.0), PlainConstant(2.0)
    compiled = compile_to_refit(model, X)
    for source in (other.state_dict(), other):
        assert_same(refit_module_weights(compiled, source), other, X)
    with pytest.raises(RefitError, match="'scale' of the model has changed"):
        refit_module_weights(compiled, PlainConstant(3.0))


def _registry(function: Callable[..., Any]) -> ConverterRegistry:
    registry = DYNAMO_CONVERTERS.copy()
    converter(aten.mul.Tensor, priority=1, fold=False, registry=registry)(function)
    return registry


def _scaled(ctx: Any, value: Any, factor: torch.Tensor) -> Any:
    from trt_converters.layers import binary

    return binary(ctx, "PROD", value, factor)


def reads_numbers(ctx: Any, self: Any, other: Any) -> Any:
    """Looks at a weight's numbers, and bakes one in."""
    return _scaled(ctx, self, torch.full((4,), float(other[0])))


def lists_numbers(ctx: Any, self: Any, other: Any) -> Any:
    """The same, by a way that calls no operator."""
    return _scaled(ctx, self, torch.tensor(other.tolist()))


def writes_in_place(ctx: Any, self: Any, other: Any) -> Any:
    """Changes a copy of a weight in place, where a view of it shows."""
    doubled = other.clone()
    view = doubled.view(4)
    doubled.mul_(2)
    return _scaled(ctx, self, view)


@pytest.mark.parametrize("function", [reads_numbers, lists_numbers, writes_in_place])
def test_a_weight_that_cannot_be_followed_is_named_when_it_changes(function: Callable[..., Any]) -> None:
    model = Net(lambda n, x: n.linear(x) * n.w, linear=nn.Linear(4, 4), w=torch.full((4,), 3.0))
    compiled = compile_to_refit(model, X, registry=_registry(function), pass_through_build_failures=True)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    state["linear.bias"] += 1  # another weight may change
    refitted = refit_module_weights(compiled, state)
    torch.testing.assert_close(
        refitted(X) - compiled(X), compiled(X) * 0 + (6.0 if function is writes_in_place else 3.0)
    )
    state["w"][0] = 5.0
    with pytest.raises(RefitError, match="'w'"):
        refit_module_weights(compiled, state)
