"""Where the command line gets a model from."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trt_core import InputError
from trt_core.suggest import did_you_mean

Model = tuple["nn.Module | torch.export.ExportedProgram", "Sequence[Any] | None", "Mapping[str, Any] | None"]


def load_model(source: str) -> Model:
    """Loads a model from a saved program or from Python code.

    Args:
        source: Path of a `.pt2` file, or `module:callable` where the callable returns `(model, inputs)` or
            `(model, inputs, keyword inputs)`. The current directory is on the import path.

    Returns:
        The model, its positional inputs and its keyword inputs; None for a saved program, which knows its own.

    Raises:
        InputError: There is no such file, module or callable, or it returns something else.
    """
    path = Path(source)
    if path.suffix == ".pt2" or path.exists():
        return _load_program(path), None, None
    module_name, separator, name = source.partition(":")
    if not separator:
        raise InputError(
            f"cannot find the model {source!r}",
            hint="give the path of a .pt2 file, or module:callable",
        )
    return _call(_import(module_name), module_name, name)


def _load_program(path: Path) -> torch.export.ExportedProgram:
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        return torch.export.load(path)
    except Exception as error:
        raise InputError(
            f"{path} is not a saved program",
            why=str(error).partition("\n")[0],
            hint="save one with torch.export.save(program, path)",
        ) from error


def _import(name: str) -> Any:
    directory = str(Path.cwd())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"cannot import {name}", why=str(error), hint="run trtc where the module can be imported"
        ) from error


def _call(module: Any, module_name: str, name: str) -> Model:
    function = getattr(module, name, None)
    if not callable(function):
        raise InputError(f"{module_name} has no callable {name!r}", hint=did_you_mean(name, dir(module)))
    result = function()
    parts = result if isinstance(result, tuple) else (result,)
    if len(parts) not in (2, 3) or not isinstance(parts[0], nn.Module):
        raise InputError(
            f"{module_name}:{name} returned {type(result).__name__}",
            hint="return (model, inputs) or (model, inputs, keyword inputs)",
        )
    model, inputs, *rest = parts
    return model, inputs, rest[0] if rest else None
