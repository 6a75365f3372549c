"""Where the command line gets a model from."""

from __future__ import annotations

import importlib
import sys
import traceback
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trt_core import InputError
from trt_core.files.opening import opened
from trt_core.wording import did_you_mean, kind_of
from trt_runtime.exchange import engines_in
from trt_runtime.program_file import PROGRAM

Model = tuple["nn.Module | torch.export.ExportedProgram", "Sequence[Any] | None", "Mapping[str, Any] | None"]


def load_model(source: str) -> Model:
    """Loads a model from a saved program or from Python code.

    Args:
        source: Path of a `.pt2` file, or `module:callable` where the callable returns `(model, inputs)`,
            `(model, inputs, keyword inputs)`, or an exported program. The current directory is on the import path.

    Returns:
        The model, its positional inputs and its keyword inputs; None for a program, which knows its own.

    Raises:
        InputError: There is no such file, module or callable, it fails, or it returns something else.
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
    return _read_result(source, _find(_import(module_name), module_name, name))


def _load_program(path: Path) -> torch.export.ExportedProgram:
    if not path.is_file():
        raise InputError(f"there is no file {path}", hint="give the path of a .pt2 file, or module:callable")
    with opened(path) as file:
        if file.read(len(PROGRAM.magic)) == PROGRAM.magic:
            raise _already_compiled(path)
        if not zipfile.is_zipfile(file):  # PyTorch would write of it to the log, with a traceback
            raise _no_program(path, "it is no archive")
    try:
        program = torch.export.load(path)
    except Exception as error:
        raise _no_program(path, str(error).partition("\n")[0]) from error
    if engines_in(program):
        raise _already_compiled(path)
    return program


def _no_program(path: Path, why: str) -> InputError:
    return InputError(f"{path} is not a saved program", why=why, hint="save one with torch.export.save(program, path)")


def _already_compiled(path: Path) -> InputError:
    return InputError(
        f"{path} is a compiled model, whose operators are in engines already",
        hint="give the model that it was compiled from; trtc inspect looks into compiled ones",
    )


def _import(name: str) -> Any:
    directory = str(Path.cwd())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        return importlib.import_module(name)
    except Exception as error:  # a model's file may fail in any way
        raise InputError(
            f"cannot import {name}",
            where=_place(error),
            why=f"{type(error).__name__}: {error}",
            hint="run trtc where the module can be imported",
        ) from error


def _find(module: Any, module_name: str, name: str) -> Callable[[], Any]:
    function = getattr(module, name, None)
    if not callable(function):
        raise InputError(f"{module_name} has no callable {name!r}", hint=did_you_mean(name, dir(module)))
    found: Callable[[], Any] = function
    return found


def _read_result(source: str, function: Callable[[], Any]) -> Model:
    try:
        result = function()
    except Exception as error:
        raise InputError(
            f"{source} failed",
            where=_place(error),
            why=f"{type(error).__name__}: {error}",
            hint="it is called without arguments, and returns (model, inputs)",
        ) from error
    if isinstance(result, torch.export.ExportedProgram):
        return result, None, None
    parts = result if isinstance(result, tuple) else (result,)
    if len(parts) not in (2, 3) or not isinstance(parts[0], (nn.Module, torch.export.ExportedProgram)):
        raise InputError(
            f"{source} returned {_describe(result)}",
            hint="return (model, inputs), (model, inputs, keyword inputs), or an exported program",
        )
    model, inputs, *rest = parts
    return model, inputs, rest[0] if rest else None


def _describe(result: Any) -> str:
    if isinstance(result, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in result) or 'nothing'}"
    return kind_of(result)


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    return f"{outside[-1].filename}:{outside[-1].lineno}" if outside else ""
