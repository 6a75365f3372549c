"""The entry points that compile, and that explain what compiling would do."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import nn

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry
from trt_core import SettingsError
from trt_core.held_arguments import also_named, text_at
from trt_frontends.capture import device_of
from trt_frontends.compiled_module import CompiledModule, move, offload
from trt_frontends.custom_engine_cache import CustomCache
from trt_frontends.entry_point import entry_point
from trt_frontends.pipeline import (
    CALIBRATION,
    BuiltModel,
    CapturedModel,
    Progress,
    capture_model,
    no_progress,
    settings_in,
)
from trt_frontends.stages import build, lower
from trt_frontends.stored_layers import keep_boundary
from trt_partition import PartitionReport
from trt_runtime.sharded import compare_at_first_call, digests_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from trt_core.setting_keywords import SettingKeywords
    from trt_frontends.custom_engine_cache import BaseEngineCache  # whatever saves and loads will do
    from trt_frontends.onnx_models import OnnxReport


@text_at(1, "ir")
@also_named(exported_program="module")
@entry_point
def compile(
    module: nn.Module | torch.export.ExportedProgram | str | os.PathLike[str],
    inputs: Sequence[Any] | None = None,
    *,
    arg_inputs: Sequence[Any] | None = None,
    kwarg_inputs: Mapping[str, Any] | None = None,
    autocast_calibration_dataloader: Iterable[Any] | None = None,
    custom_engine_cache: BaseEngineCache | None = None,
    progress: Progress = no_progress,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
    **settings: Unpack[SettingKeywords],
) -> CompiledModule:
    """Compiles a module, or an exported program, into engines.

    Args:
        module: What to compile. A module is exported first. The path of a model in ONNX's format (`.onnx`) is read by
            the provider's parser, and becomes one engine.
        inputs, arg_inputs: Positional inputs, tensors or `Input`s. For an exported program they may be left out;
            given, they decide the range and the optimum of its dynamic dimensions.
        kwarg_inputs: Inputs by keyword.
        autocast_calibration_dataloader: Inputs that precision is decided on, where a setting measures anything: tuples
            of positional inputs, dicts of keyword inputs, pairs of both, or tensors. By default the tensors among the
            inputs, and random ones like them.
        custom_engine_cache: Keeps built engines, in the place of the engine cache on disk.
        progress: Called with what is being done, and how much of it.
        registry: Where converters are looked up; a changed `DYNAMO_CONVERTERS.copy()` is for this compilation alone.
        settings: Compilation settings; see `CompilationSettings`. With `ir="torch_compile"` the model is captured by
            its calls: what `optimize` makes of it is returned.

    Returns:
        A module that is called like the model, and refuses inputs that it was not compiled for with an `InputError`.
        All its weights are those of the model at this time, also where PyTorch runs; what the model writes to, such as
        running statistics and caches, is the model's own, as for eager calls.
        `meta["partition_report"]` holds the `PartitionReport`, and where `max_error` was given
        `meta["precision_report"]` says how precision was chosen. With `dryrun` nothing is built, and the module runs in
        PyTorch.

    Raises:
        ExportError: The module cannot be exported.
        InputError: The inputs cannot be read, or do not fit the model; or the model has no weights to build from.
        PartitionError: The report cannot be saved where `dryrun` says.
        SettingsError: A setting cannot be read, or is for `torch.compile` alone.
        IncompleteCompilationError: `require_full_compilation` is set and some nodes cannot run in an engine.
        BuildError: An engine cannot be built, and `pass_through_build_failures` is set.
        ExecutionError: `use_cuda_graphs` is set, and calls of the compiled model cannot be recorded.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU()).eval()
        >>> compiled = compile(model, arg_inputs=(torch.randn(2, 4),))
        >>> compiled.meta["partition_report"].coverage
        1.0
    """
    if settings.get("ir") == "torch_compile":
        from trt_frontends.backend import optimize  # costly to import

        del settings["ir"]
        model: Any = module
        data: Any = {CALIBRATION: autocast_calibration_dataloader}  # which is refused there
        optimized: CompiledModule = optimize(
            model, registry=registry, custom_engine_cache=custom_engine_cache, **data, **settings
        )
        return optimized
    given = {**settings, CALIBRATION: autocast_calibration_dataloader}
    if isinstance(module, (str, os.PathLike)):
        from trt_frontends.onnx_models import compile_onnx  # which few calls need

        if registry is not DYNAMO_CONVERTERS:
            raise SettingsError(
                "registry is for models of PyTorch", why="the provider's own parser makes layers of ONNX's nodes"
            )
        positional = inputs if arg_inputs is None else arg_inputs
        return compile_onnx(module, positional, kwarg_inputs, given, progress, custom_engine_cache)
    captured = capture_model(module, inputs, arg_inputs, kwarg_inputs, given, progress, registry, needs_weights=True)
    if custom_engine_cache is not None:
        captured = replace(captured, engine_cache=CustomCache(custom_engine_cache))
    built = _built(captured, module)
    built.module.meta["model_facts"] = replace(captured.facts, plugins=built.plugins)
    if isinstance(module, nn.Module):
        built.module.meta["model_class"] = type(module)
    result = built.wrap(captured.reader(built.lowered.graph.graph))
    keep_boundary(captured.module, result)
    if report := result.meta.get("partition_report"):
        compare_at_first_call(result, digests_of(report.collectives))
    return result


def _built(captured: CapturedModel, module: nn.Module | torch.export.ExportedProgram) -> BuiltModel:
    """Builds the engines; a model that is to go to the CPU goes before that, and comes back if it fails."""
    if captured.settings.dryrun or not captured.settings.offload_module_to_cpu:
        return build(captured)
    home = device_of(module, None).torch_device
    try:
        return build(captured, functools.partial(offload, module))
    except BaseException:
        move(module, home)
        raise


@overload
def explain(module: str | os.PathLike[str], **settings: Unpack[SettingKeywords]) -> OnnxReport: ...
@overload
def explain(
    module: nn.Module | torch.export.ExportedProgram,
    inputs: Sequence[Any] | None = None,
    *,
    arg_inputs: Sequence[Any] | None = None,
    kwarg_inputs: Mapping[str, Any] | None = None,
    autocast_calibration_dataloader: Iterable[Any] | None = None,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
    **settings: Unpack[SettingKeywords],
) -> PartitionReport: ...
@entry_point
def explain(
    module: nn.Module | torch.export.ExportedProgram | str | os.PathLike[str],
    inputs: Sequence[Any] | None = None,
    *,
    arg_inputs: Sequence[Any] | None = None,
    kwarg_inputs: Mapping[str, Any] | None = None,
    autocast_calibration_dataloader: Iterable[Any] | None = None,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
    **settings: Unpack[SettingKeywords],
) -> PartitionReport | OnnxReport:
    """Returns the report that compiling with the same arguments would give. Builds nothing, prints nothing.

    The module may lack weights: a model on the `meta` device, or made of fake tensors, is explained like the real one,
    in little memory.

    Args:
        module, inputs, arg_inputs, kwarg_inputs, autocast_calibration_dataloader, registry, settings: See `compile`. Of
            the path of a model in ONNX's format every node is tried, for whatever inputs; see `explain_onnx`.

    Raises:
        ExportError: The module cannot be exported.
        InputError: The inputs cannot be read, or do not fit the model.
        SettingsError: A setting cannot be read.

    Example:
        >>> report = explain(nn.ReLU(), arg_inputs=(torch.randn(2, 3),))
        >>> report.total_operators, report.supported_operators
        (1, 1)
    """
    if isinstance(module, (str, os.PathLike)):
        from trt_frontends.onnx_models import explain_onnx  # which few calls need

        settings_in(settings)
        return explain_onnx(module)
    # the obstacles are what the report is asked for, so they are no error here
    without_demands = {
        **settings,
        CALIBRATION: autocast_calibration_dataloader,
        "require_full_compilation": False,
    }
    captured = capture_model(module, inputs, arg_inputs, kwarg_inputs, without_demands, registry=registry)
    return lower(captured).report()
