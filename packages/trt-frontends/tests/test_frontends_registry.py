"""Every way to compile takes a registry of converters of one's own, and leaves the common one alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import trt_frontends
from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry, converter
from trt_core import InputError, SettingsError, trt
from trt_frontends import dynamo, model_report
from trt_frontends.backend import torch_tensorrt_backend
from trt_frontends.dynamo.partitioning import get_graph_converter_support

X = torch.linspace(-1, 1, 8).reshape(2, 4)
OPERATOR = torch.ops.aten.special_bessel_j0.default
Make = Callable[[Callable[..., Any]], nn.Module]


@pytest.fixture(scope="module")
def registry() -> ConverterRegistry:
    """Takes `special_bessel_j0` for the absolute value, so that results tell who was asked; knows no `linear`."""
    changed = DYNAMO_CONVERTERS.copy()
    changed.disable(torch.ops.aten.linear.default)

    @converter(OPERATOR, registry=changed)
    def aten_special_bessel_j0(ctx: Any, self: Any) -> Any:
        return ctx.output(ctx.network.add_unary(ctx.tensor(self), trt.UnaryOperation.ABS))

    return changed


@pytest.fixture
def bessel(function_model: Make) -> nn.Module:
    """An operator that no built-in converter takes."""
    return function_model(lambda m, x: torch.special.bessel_j0(x))


@pytest.mark.parametrize("namespace", [trt_frontends, dynamo])
def test_compile_and_explain(namespace: Any, bessel: nn.Module, registry: ConverterRegistry) -> None:
    compiled = namespace.compile(bessel, arg_inputs=(X,), min_block_size=1, registry=registry)
    assert torch.equal(compiled(X), X.abs())
    assert namespace.explain(bessel, arg_inputs=(X,), registry=registry).coverage == 1
    assert namespace.explain(bessel, arg_inputs=(X,)).coverage == 0


@pytest.mark.parametrize("namespace", [trt_frontends, dynamo])
def test_trace_keeps_whole_what_the_registry_takes(namespace: Any, mlp: nn.Module, registry: ConverterRegistry) -> None:
    def operators(**keywords: Any) -> set[str]:
        program = namespace.trace(mlp, arg_inputs=(X,), **keywords)
        return {str(node.target) for node in program.graph.nodes if node.op == "call_function"}

    assert "aten.linear.default" in operators()
    assert "aten.linear.default" not in operators(registry=registry)


@pytest.mark.parametrize("way", ["option", "argument"])
@torch.no_grad()
def test_torch_compile(way: str, bessel: nn.Module, registry: ConverterRegistry) -> None:
    options: dict[str, Any] = {"min_block_size": 1}
    backend: Any = torch_tensorrt_backend
    if way == "option":
        options["registry"] = registry
    else:
        backend = functools.partial(backend, registry=registry)
    optimized = torch.compile(bessel, backend=backend, dynamic=False, options=options)
    assert torch.equal(optimized(X), X.abs())
    report = model_report(optimized).graphs[0].builds[0].partition
    assert report is not None and report.coverage == 1


def test_verify_and_bisect(bessel: nn.Module, registry: ConverterRegistry) -> None:
    given: dict[str, Any] = {"arg_inputs": (X,), "min_block_size": 1, "registry": registry}
    report = trt_frontends.verify(bessel, samples=1, exact=False, depth=True, **given)
    assert not report.passed
    assert [error.operator for error in report.depth] == ["torch.ops.aten.special_bessel_j0.default"]
    found = trt_frontends.bisect(bessel, **given)
    assert [culprit.operator for culprit in found.culprits] == ["torch.ops.aten.special_bessel_j0.default"]
    assert found.error_after <= found.tolerance < found.error_before


def test_counting_support(bessel: nn.Module, registry: ConverterRegistry) -> None:
    program = torch.export.export(bessel, (X,))
    assert get_graph_converter_support(program.module()) == (0, 1)
    assert get_graph_converter_support(program.module(), registry=registry) == (1, 1)


@torch.no_grad()
def test_what_is_no_registry_is_refused(mlp: nn.Module) -> None:
    with pytest.raises(SettingsError, match=r"(?s)registry=.* is none.*DYNAMO_CONVERTERS.copy"):
        torch_tensorrt_backend(torch.fx.symbolic_trace(mlp), [X], options={"registry": {}})


def test_the_common_registry_is_left_alone(registry: ConverterRegistry) -> None:
    assert OPERATOR in registry and OPERATOR not in DYNAMO_CONVERTERS
    assert torch.ops.aten.linear.default in DYNAMO_CONVERTERS


@pytest.mark.parametrize("wrong", [None, {}, "mine"], ids=repr)
def test_every_entry_refuses_what_is_no_registry(wrong: Any, mlp: nn.Module) -> None:
    program = torch.export.export(mlp, (X,))
    calls: list[Callable[[], Any]] = [
        lambda: trt_frontends.compile(mlp, arg_inputs=(X,), registry=wrong),
        lambda: trt_frontends.explain(mlp, arg_inputs=(X,), registry=wrong),
        lambda: trt_frontends.trace(mlp, arg_inputs=(X,), registry=wrong),
        lambda: get_graph_converter_support(program.graph_module, registry=wrong),
    ]
    for call in calls:
        with pytest.raises((InputError, SettingsError), match=r"registry=.* is none|cannot take .* as registry"):
            call()
