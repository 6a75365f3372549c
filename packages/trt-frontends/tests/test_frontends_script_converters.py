"""Engines as bytes, and converters and plugins in the form that scripts of this field write them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import trt_frontends
from trt_core import IncompleteCompilationError, InputError
from trt_core.log import provider_logger
from trt_core.provider import provider_module
from trt_frontends import dynamo
from trt_frontends.dynamo import BindingNameMismatchError
from trt_frontends.dynamo.conversion import (
    DYNAMO_CONVERTERS,
    ConverterPriority,
    dynamo_tensorrt_converter,
    impl,
    plugins,
)
from trt_runtime import TRTModule

X = torch.linspace(-2, 2, 8).view(2, 4)
GELU = torch.ops.aten.gelu.default


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    before = DYNAMO_CONVERTERS.copy()
    yield
    DYNAMO_CONVERTERS.restore(before)


def _runtime() -> Any:
    return provider_module().Runtime(provider_logger())


def test_a_model_is_the_bytes_of_one_engine(mlp: nn.Module) -> None:
    program = torch.export.export(mlp, (X,))
    for made in (
        dynamo.convert_exported_program_to_serialized_trt_engine(program, inputs=[X]),
        trt_frontends.convert_method_to_trt_engine(mlp, "forward", inputs=[X], ir="dynamo"),
    ):
        assert type(made) is bytes
        engine = _runtime().deserialize_cuda_engine(made)
        assert engine.num_io_tensors == 2


class _Two(nn.Module):
    def forward(self, pair: dict[str, torch.Tensor], scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """pair: `a` and `b`, each (batch, 2), float32; scale: (1,), float32."""
        return pair["a"] * scale - pair["b"], torch.relu(pair["a"])


def test_bindings_have_names_in_the_place_of_what_they_are() -> None:
    batch = torch.export.Dim("batch", min=1, max=4)
    pair, scale = {"a": torch.randn(3, 2), "b": torch.randn(3, 2)}, torch.ones(1)
    program = torch.export.export(
        _Two(), (pair,), {"scale": scale}, dynamic_shapes={"pair": {"a": {0: batch}, "b": {0: batch}}, "scale": None}
    )
    shapes = {"min_shape": (1, 2), "opt_shape": (2, 2), "max_shape": (4, 2)}
    ends = {name: trt_frontends.Input(profiles=[shapes], shared_dims={0: "batch"}) for name in ("a", "b")}
    convert = functools.partial(
        dynamo.convert_exported_program_to_serialized_trt_engine,
        program,
        arg_inputs=(ends,),
        kwarg_inputs={"scale": scale},
    )
    made = convert(
        arg_input_binding_names=[{"b": "a", "a": "b"}],  # changed about, and in another order
        output_binding_names=("difference", "positive"),
    )
    engine = _runtime().deserialize_cuda_engine(made)
    names = [engine.get_tensor_name(place) for place in range(engine.num_io_tensors)]
    assert sorted(names) == ["a", "b", "difference", "positive", "scale"]
    assert engine.get_tensor_profile_shape("a", 0) == [(1, 2), (2, 2), (4, 2)]
    context = engine.create_execution_context()
    for name, value in {"b": pair["a"], "a": pair["b"], "scale": scale}.items():
        context.set_input_shape(name, tuple(value.shape))
        context.set_tensor_address(name, value.data_ptr())
    found = {name: torch.empty(3, 2) for name in ("difference", "positive")}
    for name, value in found.items():
        context.set_tensor_address(name, value.data_ptr())
    assert context.execute_async_v3(0)
    torch.testing.assert_close(tuple(found.values()), _Two()(pair, scale))
    for given, why in (
        ({"output_binding_names": ("only_one",)}, "output_binding_names is"),
        ({"arg_input_binding_names": ("x",)}, "arg_input_binding_names is"),
        ({"kwarg_input_binding_names": {"scales": "x"}}, "kwarg_input_binding_names is"),
        ({"output_binding_names": ("scale", "positive")}, "several bindings would be called 'scale'"),
        ({"output_binding_names": ("", "positive")}, "nested alike"),
    ):
        with pytest.raises(BindingNameMismatchError, match=why):
            convert(**given)


class _Input(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x: any shape, float32."""
        return torch.relu(x), x


def test_models_that_are_no_single_engine_say_why(mlp: nn.Module) -> None:
    with pytest.raises(InputError, match=r"beside its engine there is the result x"):
        trt_frontends.convert_method_to_trt_engine(_Input().eval(), inputs=[X])
    with pytest.raises(IncompleteCompilationError):
        trt_frontends.convert_method_to_trt_engine(mlp, inputs=[X], torch_executed_ops={"aten.relu"})
    with pytest.raises(InputError, match="'step' cannot be converted"):
        trt_frontends.convert_method_to_trt_engine(mlp, "step", inputs=[X])


@pytest.mark.parametrize("ir", ["default", "dynamo", "torch_compile"])
def test_each_way_of_capturing_has_its_name(mlp: nn.Module, ir: str) -> None:
    compiled = trt_frontends.compile(mlp, ir=ir, inputs=[X], min_block_size=1)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), mlp(X))
    report = trt_frontends.model_report(compiled) if ir == "torch_compile" else compiled.meta["partition_report"]
    assert report.coverage == 1


def _add_gelu(seen: list[Any], **options: Any) -> None:
    @dynamo_tensorrt_converter(GELU, **options)
    def gelu(ctx: Any, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
        trt = provider_module()
        seen.append((target, len(args), dict(kwargs), ctx.compilation_settings.min_block_size))
        layer = ctx.net.add_activation(args[0], trt.ActivationType.GELU_TANH)
        layer.name = name
        return layer.get_output(0)


@pytest.mark.parametrize("mode", ["tanh", "none"])
def test_a_converter_runs_where_its_validator_says(mode: str) -> None:
    seen: list[Any] = []
    _add_gelu(
        seen,
        capability_validator=lambda node, settings: node.kwargs.get("approximate") == "tanh",
        supports_dynamic_shapes=True,
        priority=ConverterPriority.HIGH,
        requires_output_allocator=True,
    )
    model = nn.GELU(approximate=mode)
    compiled = trt_frontends.compile(model, arg_inputs=(X,), min_block_size=1)
    torch.testing.assert_close(compiled(X), model(X))
    assert DYNAMO_CONVERTERS[GELU].origin == __name__.partition(".")[0]
    assert inspect.unwrap(DYNAMO_CONVERTERS[GELU].function).__qualname__.startswith("_add_gelu")
    assert seen == ([(GELU, 1, {"approximate": "tanh"}, 1)] if mode == "tanh" else [])
    assert any(isinstance(child, TRTModule) for child in compiled.modules())


@pytest.mark.parametrize("options", [{"priority": ConverterPriority.STANDARD}, {"enabled": False}])
def test_a_converter_of_no_priority_comes_after_those_that_are_there(options: dict[str, Any]) -> None:
    seen: list[Any] = []
    _add_gelu(seen, **options)
    trt_frontends.compile(nn.GELU(), arg_inputs=(X,), min_block_size=1)
    assert not seen


def test_an_operator_becomes_a_plugin_by_its_name() -> None:
    @torch.library.custom_op("script_names::smooth", mutates_args=())
    def smooth(x: torch.Tensor, b: float = 0.5) -> torch.Tensor:
        return x * b + 1

    @smooth.register_fake
    def _(x: torch.Tensor, b: float = 0.5) -> torch.Tensor:
        return torch.empty_like(x)

    class Smooth(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.script_names.smooth(torch.relu(x), b=0.25)

    plugins.custom_op("script_names::smooth", supports_dynamic_shapes=True, requires_output_allocator=False)
    compiled = trt_frontends.compile(Smooth().eval(), arg_inputs=(X,), min_block_size=1, require_full_compilation=True)
    torch.testing.assert_close(compiled(X), Smooth()(X))
    with pytest.raises(InputError, match="no operator 'script_names::rough'"):
        plugins.custom_op("script_names::rough")
    with pytest.raises(InputError, match="depend on data"):
        plugins.custom_op("script_names::smooth", requires_output_allocator=True)


HELPERS: dict[str, tuple[Callable[..., Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "elementwise.add": (lambda impl, *given: impl.elementwise.add(*given, 2), lambda x: x + 2),
    "elementwise.div": (lambda impl, *given: impl.elementwise.div(*given, 3), lambda x: x / 3),
    "elementwise.max": (lambda impl, *given: impl.elementwise.max(*given, 0.5), lambda x: x.clamp(min=0.5)),
    "elementwise.le": (lambda impl, *given: impl.elementwise.le(*given, 0.5), lambda x: x <= 0.5),
    "elementwise.ne": (lambda impl, *given: impl.elementwise.ne(*given, 0.5), lambda x: x != 0.5),
    "elementwise.pow": (lambda impl, *given: impl.elementwise.pow(*given, 2.0), lambda x: x**2),
    "unary.exp": (lambda impl, *given: impl.unary.exp(*given), torch.exp),
    "unary.neg": (lambda impl, *given: impl.unary.neg(*given), torch.neg),
    "activation.relu": (lambda impl, *given: impl.activation.relu(*given), torch.relu),
    "activation.leaky_relu": (
        lambda impl, *given: impl.activation.leaky_relu(*given, 0.2),
        lambda x: nn.functional.leaky_relu(x, 0.2),
    ),
    "reduce.sum": (lambda impl, *given: impl.reduce.sum(*given, -1, True), lambda x: x.sum(-1, True)),
    "reduce.mean": (lambda impl, *given: impl.reduce.mean(*given), torch.mean),
    "reduce.amax": (lambda impl, *given: impl.reduce.amax(*given, [0, 1], False), lambda x: x.amax((0, 1))),
    "shuffle.reshape": (lambda impl, *given: impl.shuffle.reshape(*given, (4, -1)), lambda x: x.reshape(4, -1)),
    "condition.where": (
        lambda impl, *given: impl.condition.where(*given, 2.0, impl.elementwise.gt(*given, 0.5)),
        lambda x: torch.where(x > 0.5, x, 2.0),
    ),
}


@pytest.mark.parametrize("name", HELPERS)
def test_converters_are_written_with_the_helpers_of_scripts(name: str) -> None:
    call, eager = HELPERS[name]
    library = torch.library.Library("script_helpers", "FRAGMENT")
    operator = name.replace(".", "_")
    library.define(f"{operator}(Tensor x) -> Tensor")
    library.impl(operator, eager, "CompositeExplicitAutograd")
    overload = getattr(torch.ops.script_helpers, operator).default

    @dynamo_tensorrt_converter(overload, supports_dynamic_shapes=True)
    def convert(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        return call(impl, ctx, target, None, name, args[0])

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = overload(x)
            return found

    compiled = trt_frontends.compile(
        Model().eval(), arg_inputs=(X,), min_block_size=1, optimization_level=0, require_full_compilation=True
    )
    torch.testing.assert_close(compiled(X), eager(X))
    library._destroy()
