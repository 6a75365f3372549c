"""PyTorch operators as plugins: built, serialized, run, and refused where plugins cannot be used."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from trt_converters import ConverterRegistry, ConverterSupport, build_block, plugin_from_operator
from trt_converters.testing import check_conversion, compare, record_call, run_engine
from trt_core import CompilationSettings, InputError, Reason, trt
from trt_core.operator_plugin import PluginCall, plugin_extents
from trt_core.sizes.ranges import ShapeRanges

LIBRARY = "trt_converters_plugin_tests"


@torch.library.custom_op(f"{LIBRARY}::blend", mutates_args=())
def blend(x: torch.Tensor, y: torch.Tensor, weight: float = 0.5, mode: str = "mean") -> torch.Tensor:
    scale = float(x.numel()) if mode == "mean" else 1.0
    return (x * weight + y * (1 - weight)) / scale


@blend.register_fake
def _(x: torch.Tensor, y: torch.Tensor, weight: float = 0.5, mode: str = "mean") -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op(f"{LIBRARY}::windows", mutates_args=())
def windows(x: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = x.shape[0] // width + x.shape[0] % width
    return x.new_full((rows, 2 * x.shape[1]), 3.0), torch.full((min(x.shape[0], 3),), width, dtype=torch.int64)


@windows.register_fake
def _(x: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = x.shape[0] // width + x.shape[0] % width
    count = torch.sym_min(x.shape[0], 3)
    return x.new_empty((rows, 2 * x.shape[1])), torch.empty((count,), dtype=torch.int64)


@torch.library.custom_op(f"{LIBRARY}::is_large", mutates_args=())
def is_large(x: torch.Tensor) -> torch.Tensor:
    return x > 1


@is_large.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, dtype=torch.bool)


@torch.library.custom_op(f"{LIBRARY}::positive", mutates_args=())
def positive(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


@positive.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty((torch.library.get_ctx().new_dynamic_size(),))


BLEND, WINDOWS, IS_LARGE, POSITIVE = (
    getattr(getattr(torch.ops, LIBRARY), name).default for name in ("blend", "windows", "is_large", "positive")
)
SETTINGS = CompilationSettings(optimization_level=0)


@pytest.fixture
def registry() -> ConverterRegistry:
    made = ConverterRegistry()
    for op in (BLEND, WINDOWS, IS_LARGE, POSITIVE):
        plugin_from_operator(op, registry=made)
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rest", [(), (0.25,), (0.25, "sum")])
def test_an_operator_runs_inside_an_engine(dtype: torch.dtype, rest: Any, registry: ConverterRegistry) -> None:
    x, y = torch.randn(2, 3).to(dtype), torch.randn(2, 3).to(dtype)
    check_conversion(BLEND, (x, y, *rest), registry=registry)
    check_conversion(
        BLEND,
        (x, y, *rest),
        registry=registry,
        dynamic={0: {0: (1, 2, 5), 1: (1, 3, 4)}, 1: {0: (1, 2, 5), 1: (1, 3, 4)}},
    )


def test_constants_can_be_inputs_of_a_plugin(registry: ConverterRegistry) -> None:
    check_conversion(BLEND, (torch.randn(2, 3), torch.randn(2, 3)), constants=(1,), registry=registry)


def test_extents_are_computed_from_those_of_the_inputs(registry: ConverterRegistry) -> None:
    check_conversion(WINDOWS, (torch.randn(7, 3), 2), registry=registry)
    check_conversion(WINDOWS, (torch.randn(7, 3), 4), registry=registry, dynamic={0: {0: (2, 7, 9), 1: (1, 3, 4)}})


def test_the_engine_has_one_plugin_layer(registry: ConverterRegistry) -> None:
    call = record_call(BLEND, (torch.randn(2, 3), torch.randn(2, 3)))
    engine = build_block(call.block, SETTINGS, ShapeRanges(), "block", registry)
    assert engine.layers == 1


def test_plugins_stand_between_other_layers(registry: ConverterRegistry, make_block: Any) -> None:
    from trt_converters import DYNAMO_CONVERTERS

    both = DYNAMO_CONVERTERS.copy()
    plugin_from_operator(BLEND, registry=both)
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    block: fx.GraphModule = make_block(lambda x, y: torch.relu(BLEND(x.abs(), y, 0.1)) + 1, x, y)
    engine = build_block(block, CompilationSettings(), ShapeRanges(), "block", both)
    for _ in range(2):
        compare(run_engine(engine.plan, engine.input_names, (x, y)), (block(x, y),))


def test_the_creator_is_registered_once() -> None:
    first = plugin_from_operator(BLEND, registry=ConverterRegistry())
    assert plugin_from_operator(BLEND, registry=ConverterRegistry()) is first
    assert trt.get_plugin_registry().get_creator(f"{LIBRARY}::blend", "1", "") is first


def test_a_plan_needs_the_creator(registry: ConverterRegistry) -> None:
    call = record_call(BLEND, (torch.randn(2, 3), torch.randn(2, 3)))
    engine = build_block(call.block, SETTINGS, ShapeRanges(), "block", registry)
    creator = trt.get_plugin_registry().get_creator(f"{LIBRARY}::blend", "1", "")
    trt.get_plugin_registry().deregister_creator(creator)
    try:
        with pytest.raises(
            RuntimeError, match=r"no creator is registered for plugin 'trt_converters_plugin_tests::blend"
        ):
            run_engine(engine.plan, engine.input_names, (torch.ones(2, 3), torch.ones(2, 3)))
    finally:
        trt.get_plugin_registry().register_creator(creator, "")


def test_a_call_survives_its_serialization() -> None:
    call = PluginCall(
        {"weight": float("inf"), "axes": [1, None]},
        ["x"],
        ["float32"],
        ["int64"],
        [[["mul", 2, "s0"], 4]],
        {"s0": [0, 1]},
    )
    assert PluginCall.from_bytes(call.to_bytes()) == call


@pytest.mark.parametrize(
    ("op", "reason"), [(IS_LARGE, Reason.UNSUPPORTED_DTYPE), (POSITIVE, Reason.DATA_DEPENDENT_SHAPE)]
)
def test_what_plugins_cannot_return_is_refused(op: Any, reason: Reason, registry: ConverterRegistry) -> None:
    refused = check_conversion(op, (torch.randn(4),), expect_supported=False, registry=registry)
    assert refused.verdict.reason is reason


def test_further_checks_apply() -> None:
    from trt_converters import checks

    registry = ConverterRegistry()
    only = checks.argument("mode", lambda mode: mode == "mean", "only the mean")
    plugin_from_operator(BLEND, checks=only, registry=registry)
    support = ConverterSupport(SETTINGS, registry)
    x = torch.ones(2)
    assert support.verdict(record_call(BLEND, (x, x)).node).supported
    assert support.verdict(record_call(BLEND, (x, x, 0.5, "sum")).node).message == "mode='sum': only the mean"
    assert support.origin(record_call(BLEND, (x, x)).node) == LIBRARY


def test_only_overloads_can_be_plugins() -> None:
    with pytest.raises(InputError, match="give an OpOverload"):
        plugin_from_operator(getattr(torch.ops, LIBRARY).blend)


def test_operators_that_write_to_their_arguments_cannot_be_plugins() -> None:
    registry = ConverterRegistry()
    with pytest.raises(TypeError, match="writes to its arguments"):
        plugin_from_operator(torch.ops.aten.relu_.default, registry=registry)
    assert not len(registry)


class _Numbers:
    """Computes extents where TensorRT's builder writes expressions."""

    made = 0

    def constant(self, number: int) -> int:
        return number

    def operation(self, kind: Any, left: int, right: int) -> int:
        self.made += 1
        assert kind == trt.DimensionOperation.PROD
        return left * right


@pytest.mark.parametrize(("exponent", "wanted"), [(0, 1), (1, 3), (4, 81), (65, None), (-1, None), (1 << 40, None)])
def test_powers_that_a_plan_says_are_bounded(exponent: int, wanted: int | None) -> None:
    call = PluginCall({}, ["x"], ["float32"], ["float32"], [[["pow", "s", exponent]]], {"s": [0, 0]})
    if wanted is None:
        with pytest.raises(ValueError, match="not between 0 and 64"):
            plugin_extents(call, [[3]], _Numbers())
    else:
        assert plugin_extents(call, [[3]], _Numbers()) == [[wanted]]


def test_powers_of_powers_take_as_long_as_they_are_written() -> None:
    extent: Any = "s"
    for _ in range(20):
        extent = ["pow", extent, 2]
    builder = _Numbers()
    plugin_extents(PluginCall({}, ["x"], ["float32"], ["float32"], [[extent]], {"s": [0, 0]}), [[1]], builder)
    assert builder.made == 20
