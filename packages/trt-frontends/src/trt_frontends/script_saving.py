"""Saving, as scripts of this field write it: `trt_runtime.save`, with the keywords that they bring from elsewhere.

And the serialized engine of a model that is one engine, for those who run it with TensorRT's own API.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from trt_core import InputError, logger
from trt_core.held_arguments import also_named, held_to_signature, text_at
from trt_core.settings_reader import warn_caller
from trt_runtime import save as save_program
from trt_runtime.module import engine_modules

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from trt_core.setting_keywords import SettingKeywords


@also_named(module="compiled", file_path="path")
@held_to_signature
def save(
    compiled: nn.Module | torch.export.ExportedProgram,
    path: str | os.PathLike[str],
    *,
    inputs: Sequence[Any] | None = None,
    arg_inputs: Sequence[Any] | None = None,
    kwarg_inputs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    metadata: Mapping[str, str] | None = None,
    sign: bool | None = None,
    format: str | None = None,  # noqa: A002 - what the field calls it
    output_format: str | None = None,
    retrace: bool | None = None,
    use_legacy_exporter: bool | None = None,
    pickle_protocol: int | None = None,
) -> None:
    """Saves a compiled model with its engines; see `trt_runtime.save`.

    Args:
        compiled: What `compile` or `load` returned, or an exported program.
        path: The file.
        inputs, arg_inputs: Example inputs, where some are needed.
        kwarg_inputs: Example inputs by keyword.
        dynamic_shapes: Dynamic dimensions of a module that is exported.
        metadata: What to say of the program beside it.
        sign: Sign the file with this user's key; by default where that is possible.
        format, output_format: `"program"` (default) or `"exported_program"`.
        retrace, use_legacy_exporter, pickle_protocol: No effect: a compiled model is saved as it is, without pickle.

    Raises:
        InputError: Inputs or the format were given twice; or see `trt_runtime.save`.
        ExportError, FileError, OSError: See `trt_runtime.save`.

    Warns:
        UserWarning: No format is given, and the file is called as those of PyTorch are.
    """
    if inputs is not None and arg_inputs is not None:
        raise InputError("inputs and arg_inputs are the same thing", hint="give arg_inputs alone")
    if format is not None and output_format is not None:
        raise InputError("format and output_format are the same thing", hint="give format alone")
    if format is None and output_format is None and Path(os.fspath(path)).suffix in _OF_PYTORCH:
        warn_caller(
            f"{os.fspath(path)} becomes a saved program, which trt_runtime.load reads and torch.export.load does not; "
            'output_format="exported_program" writes what both read'
        )
    examples = inputs if inputs is not None else arg_inputs
    chosen = next((name for name in (format, output_format) if name is not None), "program")
    begin = time.perf_counter()
    save_program(
        compiled,
        path,
        arg_inputs=examples,
        kwarg_inputs=kwarg_inputs,
        dynamic_shapes=dynamic_shapes,
        metadata=metadata,
        sign=sign,
        format=chosen,
    )
    logger.info("saved: %s, %.2f s", path, time.perf_counter() - begin)


_OF_PYTORCH: Final = (".ep", ".pt2")


@held_to_signature
def convert_exported_program_to_serialized_trt_engine(
    exported_program: torch.export.ExportedProgram,
    inputs: Sequence[Any] | None = None,
    *,
    arg_inputs: Sequence[Any] | None = None,
    kwarg_inputs: Mapping[str, Any] | None = None,
    arg_input_binding_names: Any = None,
    kwarg_input_binding_names: Any = None,
    output_binding_names: Any = None,
    **settings: Unpack[SettingKeywords],
) -> bytes:
    """Returns the serialized engine of a model.

    Args:
        exported_program: The model.
        inputs, arg_inputs, kwarg_inputs, settings: See `compile`; all of the model has to run in the engine.
        arg_input_binding_names, kwarg_input_binding_names: What the engine's inputs are called, nested as the model's
            inputs are. By default as the model's parameters; `input_1` for one that has the name of a Python function.
        output_binding_names: What its outputs are called, nested as the model's results are. By default `output_0`, ...

    Raises:
        IncompleteCompilationError: Some nodes cannot run in an engine.
        InputError: The model is no single engine: it has several, or works beside one.
        BindingNameMismatchError: Names are nested otherwise, or are not all different.
        ExportError, SettingsError, BuildError: See `compile`.
    """
    names = (arg_input_binding_names, kwarg_input_binding_names, output_binding_names)
    if all(given is None for given in names):
        return _engine_of(exported_program, inputs, arg_inputs, kwarg_inputs, settings)
    from trt_frontends.pipeline import capture_model, settings_to_build
    from trt_frontends.single_engine import SingleEngine, require_nothing_beside

    settings_to_build(settings)
    demands = {"min_block_size": 1, **settings, "require_full_compilation": True}
    captured = capture_model(exported_program, inputs, arg_inputs, kwarg_inputs, demands, needs_weights=True)
    engine = SingleEngine.of(captured, "engine")
    require_nothing_beside(engine.call.graph, 1)
    engine.name_bindings(exported_program, *names)
    return engine.build()


@text_at(3, "ir")
@held_to_signature
def convert_method_to_trt_engine(
    module: nn.Module,
    method_name: str = "forward",
    inputs: Sequence[Any] | None = None,
    *,
    arg_inputs: Sequence[Any] | None = None,
    kwarg_inputs: Mapping[str, Any] | None = None,
    **settings: Unpack[SettingKeywords],
) -> bytes:
    """Returns the serialized engine of a model; see `convert_exported_program_to_serialized_trt_engine`.

    Args:
        module: The model.
        method_name: `"forward"`.
        inputs, arg_inputs, kwarg_inputs, settings: See `compile`.

    Raises:
        InputError: Another method is named, or the model is no single engine.
        IncompleteCompilationError: Some nodes cannot run in an engine.
        ExportError, SettingsError, BuildError: See `compile`.
    """
    if method_name != "forward":
        raise InputError(
            f"method {method_name!r} cannot be converted",
            why="a model is captured by its calls",
            hint="give a module whose forward calls the method",
        )
    return _engine_of(module, inputs, arg_inputs, kwarg_inputs, settings)


def _engine_of(model: Any, inputs: Any, arg_inputs: Any, kwarg_inputs: Any, settings: Mapping[str, Any]) -> bytes:
    from trt_frontends.compiler import compile  # saving a model that is compiled needs no compiler
    from trt_frontends.pipeline import settings_to_build
    from trt_frontends.single_engine import require_nothing_beside

    settings_to_build(settings)
    demands = {"min_block_size": 1, **settings, "require_full_compilation": True}
    compiled = compile(model, inputs, arg_inputs=arg_inputs, kwarg_inputs=kwarg_inputs, **demands)
    engines = engine_modules(compiled)
    require_nothing_beside(compiled.graph, len(engines))
    return bytes(memoryview(engines[0].plan.numpy().data))
