"""Saving, as scripts of this field write it: `trt_runtime.save`, with the keywords that they bring from elsewhere."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from trt_core import InputError
from trt_runtime import save as save_program


def save(
    compiled: nn.Module | torch.export.ExportedProgram,
    path: str | os.PathLike[str],
    *,
    inputs: Sequence[Any] | None = None,
    arg_inputs: Sequence[Any] | None = None,
    kwarg_inputs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    format: str | None = None,  # noqa: A002 - what the field calls it
    output_format: str | None = None,
    retrace: bool | None = None,
) -> None:
    """Saves a compiled model with its engines; see `trt_runtime.save`.

    Args:
        compiled: What `compile` or `load` returned, or an exported program.
        path: The file.
        inputs, arg_inputs: Example inputs, where some are needed.
        kwarg_inputs: Example inputs by keyword.
        dynamic_shapes: Dynamic dimensions of a module that is exported.
        format, output_format: `"program"` (default) or `"exported_program"`.
        retrace: No effect: a compiled model is saved as it is.

    Raises:
        InputError: Inputs or the format were given twice; or see `trt_runtime.save`.
        ExportError, FileError, OSError: See `trt_runtime.save`.
    """
    if inputs is not None and arg_inputs is not None:
        raise InputError("inputs and arg_inputs are the same thing", hint="give arg_inputs alone")
    if format is not None and output_format is not None:
        raise InputError("format and output_format are the same thing", hint="give format alone")
    examples = inputs if inputs is not None else arg_inputs
    chosen = next((name for name in (format, output_format) if name is not None), "program")
    save_program(
        compiled, path, arg_inputs=examples, kwarg_inputs=kwarg_inputs, dynamic_shapes=dynamic_shapes, format=chosen
    )
