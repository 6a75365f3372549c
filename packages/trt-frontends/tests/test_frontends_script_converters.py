"""Engines as bytes, and converters and plugins in the form that scripts of this field write them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import trt_frontends
from trt_core import IncompleteCompilationError, InputError
from trt_core.log import provider_logger
from trt_core.provider import provider_module
from trt_frontends import dynamo
from trt_frontends.dynamo.conversion import DYNAMO_CONVERTERS, ConverterPriority, dynamo_tensorrt_converter, plugins
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
