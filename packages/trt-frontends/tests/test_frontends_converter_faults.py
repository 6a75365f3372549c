"""Converters and checks of others that fail, lie or meddle: their node runs in PyTorch, and the reason names them."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import trt_frontends
from trt_converters import DYNAMO_CONVERTERS, converter
from trt_converters.layers import binary
from trt_core import SUPPORTED, Input, Reason, Verdict, trt
from trt_core.log import provider_logger

X = torch.randn(2, 3)


@pytest.fixture(scope="module", autouse=True)
def _operators() -> Iterator[None]:
    """Operators with one result, with two, and with a list of them."""
    library = torch.library.Library("faulty", "FRAGMENT")
    library.define("one(Tensor x, float scale=1.0) -> Tensor")
    library.impl("one", lambda x, scale=1.0: x * scale + 1, "CompositeExplicitAutograd")
    torch.library.register_fake("faulty::one", lambda x, scale=1.0: torch.empty_like(x), lib=library)
    library.define("two(Tensor x) -> (Tensor, Tensor)")
    library.impl("two", lambda x: (x + 1, x * 2), "CompositeExplicitAutograd")
    torch.library.register_fake("faulty::two", lambda x: (torch.empty_like(x), torch.empty_like(x)), lib=library)
    library.define("many(Tensor[] xs, Tensor? offset=None) -> Tensor[]")
    library.impl(
        "many", lambda xs, offset=None: [x + (1 if offset is None else offset) for x in xs], "CompositeExplicitAutograd"
    )
    torch.library.register_fake("faulty::many", lambda xs, offset=None: [torch.empty_like(x) for x in xs], lib=library)
    yield
    library._destroy()


class One(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.ops.faulty.one(torch.sin(x)))


class Two(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = torch.ops.faulty.two(torch.sin(x))
        return first * second


class Many(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = torch.ops.faulty.many([torch.sin(x), x], torch.cos(x))
        return first * second


MODELS = {"one": One, "two": Two, "many": Many}


def _add_one(ctx: Any, x: Any, scale: float) -> Any:
    return binary(ctx, "SUM", x, torch.ones(1, 1))


def _convert(function: Any, checks: Any = (), name: str = "one") -> dict[str, Verdict]:
    """Compiles with a converter, holds the results to eager's, and returns the verdicts of what runs in PyTorch."""
    registry = DYNAMO_CONVERTERS.copy()
    converter(getattr(torch.ops.faulty, name).default, checks=checks, registry=registry)(function)
    model = MODELS[name]().eval()
    compiled = trt_frontends.compile(model, arg_inputs=(X,), min_block_size=1, optimization_level=0, registry=registry)
    torch.testing.assert_close(compiled(X), model(X))
    report = compiled.meta["partition_report"]
    return {node.op.split(".")[-2]: node.verdict for node in report.torch_nodes if "getitem" not in node.op}


def _raises(error: BaseException) -> Callable[..., Any]:
    def fails(*_: Any, **__: Any) -> Any:
        raise error

    return fails


def _endless(ctx: Any, **arguments: Any) -> Any:
    return _endless(ctx, **arguments)


def _foreign_tensor(ctx: Any, x: Any, scale: float) -> Any:
    other = trt.Builder(provider_logger()).create_network(0)
    tensor = other.add_input("elsewhere", trt.DataType.FLOAT, (2, 3))
    ctx.kept = other  # as long as the context lives
    return tensor


def _reshaped(*dims: int) -> Callable[..., Any]:
    def reshaped(ctx: Any, x: Any, scale: float) -> Any:
        layer = ctx.network.add_shuffle(x)
        layer.reshape_dims = dims
        return ctx.output(layer)

    return reshaped


def _meddles(change: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def meddles(ctx: Any, x: Any, scale: float) -> Any:
        change(ctx, x)
        return _add_one(ctx, x, scale)

    return meddles


def _forgets_its_node(ctx: Any, x: Any, scale: float) -> Any:
    ctx.node.args = ()
    ctx.node.meta.clear()
    raise ValueError("after the change")


def _of_two_ranks(ctx: Any, x: Any) -> Any:
    """A layer that TensorRT refuses: its operands have different ranks."""
    return ctx.output(ctx.network.add_elementwise(x, ctx.tensor(torch.ones(3)), trt.ElementWiseOperation.SUM))


FAULTS = {
    "ValueError: boom": _raises(ValueError("boom")),
    "MemoryError": _raises(MemoryError()),
    "StopIteration": _raises(StopIteration()),
    "SystemExit: 3": _raises(SystemExit(3)),
    "RecursionError": _endless,
    "ValueError: after the change": _forgets_its_node,
    "made nothing, not a tensor": lambda ctx, x, scale: None,
    "made int, not a tensor": lambda ctx, x, scale: 3,
    "made IIdentityLayer, not a tensor": lambda ctx, x, scale: ctx.network.add_identity(x),
    "made list, not a tensor": lambda ctx, x, scale: [x],
    "made torch.float16": lambda ctx, x, scale: ctx.output(ctx.network.add_cast(x, trt.DataType.HALF)),
    r"made shape \(6,\)": _reshaped(6),
    r"made shape \(3,\)": lambda ctx, x, scale: torch.ones(3),
    "no shape for .* do not fill": _reshaped(7),
    "refused a layer: .* same rank": lambda ctx, x, scale: _of_two_ranks(ctx, x),
    "tensor of another network": _foreign_tensor,
    "added inputs or outputs": _meddles(lambda ctx, x: ctx.network.mark_output(x)),
    "inputs or outputs to": _meddles(lambda ctx, x: ctx.network.add_input("more", trt.DataType.FLOAT, (1,))),
}


@pytest.mark.parametrize("reason", FAULTS)
def test_a_converter_that_fails_is_named(reason: str) -> None:
    (refused,) = _convert(FAULTS[reason]).items()
    assert refused[0] == "one"
    assert refused[1].reason is Reason.CONVERSION_FAILED
    assert f" of {__name__.partition('.')[0]}: " in refused[1].message
    assert re.search(reason, refused[1].message)
    assert __file__ in refused[1].source  # where the model calls the operator


@pytest.mark.parametrize(
    ("name", "function", "reason"),
    [
        ("two", lambda ctx, x: x, "made one ITensor, PyTorch makes 2 results"),
        ("two", lambda ctx, x: (x, x, x), "made 3 results, PyTorch makes 2"),
        ("two", lambda ctx, x: (x, None), "made nothing"),
        ("two", lambda ctx, x: iter((x, x)), "PyTorch makes 2 results"),
        ("many", lambda ctx, xs, offset: xs[:1], "made 1 results, PyTorch makes 2"),
    ],
)
def test_another_number_of_results_is_refused(name: str, function: Any, reason: str) -> None:
    refused = _convert(function, name=name)
    assert list(refused) == [name]
    assert reason in refused[name].message


def test_a_converter_that_fixes_an_extent_which_varies_is_named() -> None:
    def fixed(ctx: Any, x: Any, scale: float) -> Any:
        return ctx.output(ctx.network.add_slice(_add_one(ctx, x, scale), (0, 0), (4, 3), (1, 1)))

    registry = DYNAMO_CONVERTERS.copy()
    converter(torch.ops.faulty.one.default, registry=registry)(fixed)
    rows = Input(min_shape=(1, 3), opt_shape=(4, 3), max_shape=(8, 3))
    model = One().eval()
    compiled = trt_frontends.compile(
        model, arg_inputs=(rows,), min_block_size=1, optimization_level=0, registry=registry
    )
    (refused,) = compiled.meta["partition_report"].torch_nodes
    assert "the converter fixed axis 0 to 4" in refused.verdict.message
    for count in (1, 4, 8):
        x = torch.randn(count, 3)
        torch.testing.assert_close(compiled(x), model(x))


def test_lists_and_optional_operands_are_converted() -> None:
    def many(ctx: Any, xs: Any, offset: Any) -> Any:
        return [binary(ctx, "SUM", x, offset) for x in xs]

    assert not _convert(many, name="many")


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        (_raises(ZeroDivisionError("boom")), "ZeroDivisionError: boom"),
        (_raises(SystemExit(1)), "SystemExit: 1"),
        (lambda call: True, "it returned True, not a Verdict"),
        (lambda call: "no", "it returned 'no', not a Verdict"),
        (lambda: None, "takes 0 positional arguments"),
        (lambda call: Verdict.refuse("TRT-F030", "mine"), "a refusal has a Reason and a message"),
        (lambda call: Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, 3), "a refusal has a Reason and a message"),
        (lambda call: setattr(call.node, "args", ()), "it changed the node"),
        (lambda call: call.node.meta.clear(), "it changed the node"),
    ],
)
def test_a_check_that_fails_is_named(check: Any, reason: str) -> None:
    refused = _convert(_add_one, checks=check)["one"]
    assert refused.reason is Reason.CHECK_FAILED
    assert "a check of converter _add_one of " in refused.message
    assert reason in refused.message


def test_checks_that_return_support_or_clear_what_they_were_given_do_no_harm() -> None:
    assert not _convert(_add_one, checks=(lambda call: SUPPORTED, lambda call: call.arguments.clear()))


def test_a_check_that_changes_its_mind_costs_its_node_only() -> None:
    answers = iter([None, *[Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, "not today")] * 50])
    assert list(_convert(_add_one, checks=lambda call: next(answers))) == ["one"]


def test_a_check_that_fails_leaves_the_call_to_other_candidates() -> None:
    registry = DYNAMO_CONVERTERS.copy()
    register = converter(torch.ops.aten.relu.default, checks=_raises(ValueError("boom")), registry=registry)
    register(lambda ctx, self: self)
    report = trt_frontends.explain(nn.ReLU(), arg_inputs=(X,), min_block_size=1, registry=registry)
    assert report.coverage == 1.0


def test_an_interrupt_ends_the_compilation_and_leaves_nothing_behind() -> None:
    for function, checks in ((_raises(KeyboardInterrupt()), ()), (_add_one, _raises(KeyboardInterrupt()))):
        with pytest.raises(KeyboardInterrupt):
            _convert(function, checks)
    assert not _convert(_add_one)


def test_functions_without_a_name_are_named_after_what_they_call() -> None:
    class Adding:
        def __call__(self, ctx: Any, x: Any, scale: float) -> Any:
            raise ValueError("boom")

    package = __name__.partition(".")[0]
    message = _convert(Adding())["one"].message
    assert message.startswith(f"converter Adding of {package}: ")
    message = _convert(functools.partial(_raises(ValueError("boom")), extra=1))["one"].message
    assert message.startswith(f"converter fails of {package}: ")


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (None, {}),
        (_add_one, {"checks": (3,)}),
        (_add_one, {"priority": "high"}),
        (_add_one, {"priority": float("nan")}),
        (_add_one, {"versions": 10}),
        (_add_one, {"dynamic": "no"}),
        (_add_one, {"fold": None}),
        (_add_one, {"origin": 3}),
    ],
)
def test_what_is_no_converter_is_refused_when_it_is_registered(function: Any, options: dict[str, Any]) -> None:
    registry = DYNAMO_CONVERTERS.copy()
    with pytest.raises(TypeError):
        converter(torch.ops.faulty.one.default, registry=registry, **options)(function)
    assert torch.ops.faulty.one.default not in registry


def test_registries_may_change_while_models_compile() -> None:
    registry = DYNAMO_CONVERTERS.copy()
    converter(torch.ops.faulty.one.default, registry=registry)(_add_one)
    (mine,) = registry.candidates(torch.ops.faulty.one.default)
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            registry.unregister(mine)
            registry.register(mine)

    changing = threading.Thread(target=change)
    changing.start()
    try:
        model = One().eval()
        for _ in range(3):
            compiled = trt_frontends.compile(
                model, arg_inputs=(X,), min_block_size=1, optimization_level=0, registry=registry
            )
            torch.testing.assert_close(compiled(X), model(X))
    finally:
        stop.set()
        changing.join()
