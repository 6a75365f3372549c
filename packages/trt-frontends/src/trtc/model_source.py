"""Models by what the command line names: files, callables, models of libraries; and their peers in `trtc bench`."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from trt_core import Input, InputError
from trt_core.dtypes import dtype_of_weights, parse_dtype
from trt_core.exported_programs import module_of
from trt_core.files.foreign import EXPORTED_PROGRAM, ForeignFile, foreign_file
from trt_core.files.opening import opened
from trt_core.internals import pytree
from trt_core.wording import did_you_mean, kind_of
from trt_runtime.exchange import engines_in
from trt_runtime.program_file import PROGRAM
from trtc.usual_inputs import known_inputs, require_inputs, usual_inputs

Model = tuple["nn.Module | torch.export.ExportedProgram", "Sequence[Any] | None", "Mapping[str, Any] | None"]

Shapes = Mapping[str, Sequence[tuple[int, ...]]]
"""One shape of an input, or three: least, usual, greatest."""


def load_model(
    source: str, shapes: Shapes | None = None, *, needs_inputs: bool = True, random_weights: bool = False
) -> Model:
    """Loads a model from a saved program, from Python code, or by its name in a library.

    Args:
        source: Path of a `.pt2` file, a name that `load_named_model` takes, or `module:name`: a module of PyTorch, or a
            callable that returns `(model, inputs)`, `(model, inputs, keyword inputs)`, or an exported program. The
            current directory is on the import path.
        shapes: Shapes of inputs by name, for a model alone.
        needs_inputs: Whether a model alone, without shapes, is refused.
        random_weights: Do not fetch weights of a model by name.

    Returns:
        The model, its positional inputs and its keyword inputs; None for a program, which knows its own. A model by
        name is on a GPU where there is one.

    Raises:
        InputError: There is no such file, module or callable, it fails, or it returns something else.
    """
    path = Path(source)
    if path.suffix == ".pt2" or path.exists():
        if shapes:
            raise _has_inputs(source)
        return _load_program(path), None, None
    named = load_named_model(source, shapes or {}, random_weights=random_weights)
    if named is not None:
        return on_device(named[0]), None, named[1]
    module_name, separator, name = source.partition(":")
    if not separator:
        is_module = Path(f"{module_name.replace('.', os.sep)}.py").exists() or path.suffix == ".py"
        raise InputError(
            f"cannot find the model {source!r}",
            hint=f"write {source.removesuffix('.py')}:NAME, where NAME is a function of the module that returns "
            "(model, inputs)"
            if is_module
            else "give the path of a .pt2 file, module:callable, or torchvision:NAME, timm:NAME or hf:FOLDER",
        )
    return _read_result(source, _find(_import(module_name, name), module_name, name), shapes or {}, needs_inputs)


def on_device(model: nn.Module, device: str | None = None) -> nn.Module:
    """Moves a model to a device; by default to a GPU where there is one."""
    return model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def _load_program(path: Path) -> torch.export.ExportedProgram:
    if path.is_dir():
        raise InputError(
            f"{path} is a folder", hint=f"hf:{path} is the checkpoint of transformers in it; or give a .pt2 file"
        )
    if not path.is_file():
        raise InputError(f"there is no file {path}", hint="give the path of a .pt2 file, or module:callable")
    if path.suffix == ".onnx":
        raise InputError(
            f"{path} is an ONNX model, and this command takes programs of PyTorch",
            hint="trtc explain, compile and export onnx take ONNX models",
        )
    if is_compiled(path):
        raise _already_compiled(path)
    kind = foreign_file(path)
    if kind is not EXPORTED_PROGRAM:  # PyTorch would write of it to the log, with a traceback
        raise _no_program(path, f"it is {kind.what}" if kind else "it is no archive of torch.export", kind)
    if path.suffix not in _EVALUATED:
        raise InputError(
            f"{path} is a program of torch.export under another name, and is not opened",
            why="PyTorch evaluates and unpickles what it holds: whoever wrote it can run code here",
            hint="if you trust it, rename it to end in .pt2",
        )
    try:
        program = torch.export.load(path)
    except Exception as error:
        raise _no_program(path, str(error).partition("\n")[0]) from error
    if not _are_inputs(program.example_inputs):
        raise _no_program(path, "the example inputs in it are none")
    if engines_in(program):
        raise _already_compiled(path)
    return program


_EVALUATED: Final = (".pt2", ".ep")
"""Names by which PyTorch's users know files that it runs code of; weights and plans under other names run none."""


def _are_inputs(value: Any) -> bool:
    """Whether a value may be the example inputs of a program: positional ones and those by keyword, or nothing."""
    if value is None:
        return True
    kinds = [type(part) for part in value] if isinstance(value, tuple) else []
    return kinds in ([tuple, dict], [list, dict])


def _no_program(path: Path, why: str, kind: ForeignFile | None = None) -> InputError:
    hint = kind.hint if kind else "save one with torch.export.save(program, path)"
    return InputError(f"{path} is not a saved program", why=why, hint=hint)


def _already_compiled(path: Path) -> InputError:
    return InputError(
        f"{path} is a compiled model, whose operators are in engines already",
        hint="give the model that it was compiled from; trtc inspect looks into compiled ones",
    )


def _import(name: str, function: str) -> Any:
    if name.endswith(".py") or os.sep in name:
        file = Path(name.removesuffix(".py"))
        raise InputError(
            f"{name} is no name of a module",
            hint=f"write {file.name}:{function}, in the folder {file.absolute().parent}",
        )
    directory = str(Path.cwd())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what a model prints is no part of a report
            return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a model's file may fail in any way
        raise InputError(
            f"cannot import {name}",
            where=_place(error),
            why=f"{type(error).__name__}: {error}",
            hint="run trtc where the module can be imported",
        ) from error


def _find(module: Any, module_name: str, name: str) -> Callable[[], Any]:
    function = getattr(module, name, None)
    if isinstance(function, nn.Module):
        return lambda: function
    if not callable(function):
        is_there = hasattr(module, name)
        raise InputError(
            f"{module_name} has no callable {name!r}",
            why=f"it is {kind_of(function)}" if is_there else "",
            hint=(not is_there and did_you_mean(name, dir(module)))
            or "name a function of it that returns (model, inputs)",
        )
    found: Callable[[], Any] = function
    return found


def _read_result(source: str, function: Callable[[], Any], shapes: Shapes, needs_inputs: bool) -> Model:
    try:
        with contextlib.redirect_stdout(sys.stderr):
            result = function()
    except (Exception, SystemExit) as error:
        raise InputError(
            f"{source} failed",
            where=_place(error),
            why=f"{type(error).__name__}: {error}",
            hint="it is called without arguments, and returns (model, inputs)",
        ) from error
    if shapes and isinstance(result, nn.Module):
        own = dtype_of_weights(result) or torch.float32
        return result, None, {name: _input(name, given, None, own) for name, given in shapes.items()}
    if shapes:
        raise _has_inputs(source)
    if isinstance(result, torch.export.ExportedProgram) or (isinstance(result, nn.Module) and not needs_inputs):
        return result, None, None
    parts = result if isinstance(result, tuple) else (result,)
    if len(parts) not in (2, 3) or not isinstance(parts[0], (nn.Module, torch.export.ExportedProgram)):
        raise InputError(
            f"{source} returned {_describe(result)}",
            hint="return (model, inputs), (model, inputs, keyword inputs), or an exported program; trtc compile "
            "also takes a model alone, with the --shapes of its inputs",
        )
    model, inputs, *rest = parts
    return model, inputs, rest[0] if rest else None


def _has_inputs(source: str) -> InputError:
    return InputError(
        f"--shapes are not for {source}, which has its inputs with it",
        hint="leave them out; or give module:callable where the callable returns the model alone",
    )


def _describe(result: Any) -> str:
    if isinstance(result, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in result) or 'nothing'}"
    return kind_of(result)


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    return f"{outside[-1].filename}:{outside[-1].lineno}" if outside else ""


_PIXELS: Final = 224


def load_named_model(
    source: str, shapes: Shapes, dtype: str | None = None, *, random_weights: bool = False
) -> tuple[nn.Module, dict[str, Input]] | None:
    """Loads a model by its name in a library.

    Args:
        source: `hf:DIR`, a folder that `save_pretrained` of transformers wrote; `timm:NAME`; `torchvision:NAME`.
        shapes: Shapes of inputs by name. Where there are none, inputs are the usual ones of the model, batch 1.
        dtype: Type of weights and floating inputs; None for that of the weights.
        random_weights: Do not fetch weights.

    Returns:
        The model in eval mode, and its inputs by name; None where the source names none of these libraries.

    Raises:
        InputError: The library is not installed, or has no such model or input; or the weights cannot be had.
    """
    model = _named_model(source, dtype, random_weights=random_weights)
    if model is None:
        return None
    model.eval()
    own = dtype_of_weights(model) or torch.float32
    if not source.startswith("hf:"):
        usual = _image(model)
        unknown = shapes.keys() - usual.keys()
        if unknown:
            raise InputError(
                f"{source} has no input {min(unknown)!r}",
                hint=did_you_mean(min(unknown), usual) or f"it takes {min(usual)}",
            )
        return model, {name: _input(name, shapes.get(name), image, own) for name, image in usual.items()}
    if not shapes:
        return model, {name: _input(name, None, usual, own) for name, usual in usual_inputs(model).items()}
    config: Any = model.config
    likely = {name: forms[0] for name, forms in known_inputs(config).items()}
    inputs = {name: _input(name, given, likely.get(name), own) for name, given in shapes.items()}
    require_inputs(model, inputs)
    return model, inputs


def _named_model(source: str, dtype: str | None, *, random_weights: bool) -> nn.Module | None:
    library, separator, name = source.partition(":")
    if not separator or library not in _LIBRARIES:
        return None
    model = _LIBRARIES[library](name, random_weights)
    return model if dtype is None else model.to(parse_dtype(dtype))


def _input(name: str, given: Sequence[tuple[int, ...]] | None, usual: Input | None, dtype: torch.dtype) -> Input:
    shapes = [usual.opt_shape] if given is None and usual is not None else list(given or ())
    is_integer = usual is not None and not usual.dtype.is_floating_point
    is_integer = is_integer or name.endswith(("_ids", "_mask", "_types"))
    kind = torch.int64 if is_integer else dtype
    if len(shapes) == 1:
        return Input(shapes[0], dtype=kind)
    low, best, high = shapes
    return Input(min_shape=low, opt_shape=best, max_shape=high, dtype=kind, dimensions=_dimension_names(low, high))


def _dimension_names(low: Sequence[int], high: Sequence[int]) -> dict[int, str]:
    """The first dimension of all inputs is the batch."""
    return {0: "batch"} if low and low[0] != high[0] else {}


def _library(library: str, name: str) -> Any:
    try:
        return importlib.import_module(library)
    except ModuleNotFoundError as error:
        if error.name == library:
            raise InputError(f"{name} needs {library}", why=str(error), hint=f"pip install {library}") from error
        raise _broken(name, library, error) from error
    except Exception as error:  # libraries with operators of their own fail in many ways beside another PyTorch
        raise _broken(name, library, error) from error


def _broken(name: str, library: str, error: Exception) -> InputError:
    return InputError(
        f"{name} needs {library}, which cannot be imported",
        why=f"{type(error).__name__}: {error}",
        hint=f"install releases of {library} and of what it needs that belong together, such as those of PyTorch",
    )


def _from_transformers(name: str, random_weights: bool) -> nn.Module:
    transformers = _library("transformers", f"hf:{name}")
    if not Path(name).is_dir():
        raise InputError(
            f"there is no folder {name}",
            hint="give hf: the folder that save_pretrained wrote, or that `hf download MODEL --local-dir DIR` made",
        )
    try:
        # else it asks whether code of the folder may run
        plain = {"local_files_only": True, "trust_remote_code": False}
        config = transformers.AutoConfig.from_pretrained(name, **plain)
        kind: Any = getattr(transformers, (config.architectures or [""])[0], None)
        is_model = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
        if not is_model:
            auto = transformers.AutoModel
            model = auto.from_config(config) if random_weights else auto.from_pretrained(name, **plain)
        elif random_weights:
            model = kind(config)
        else:
            model = kind.from_pretrained(name, local_files_only=True)
    except ImportError as error:  # it imports what it needs when it needs it
        raise _broken(f"hf:{name}", "transformers", error) from error
    except Exception as error:  # whatever a configuration leads transformers to
        raise InputError(
            f"transformers cannot load {name}",
            why=f"{type(error).__name__}: {error}".partition("\n")[0],
            hint=without_configuration(Path(name)),
        ) from error
    made: nn.Module = model
    return made


def require_configuration(path: Path) -> None:
    """Holds what is read as a configuration of transformers, where it is a file, to JSON; folders are not looked into.

    Raises:
        InputError: It is something else, such as a model that is compiled already.
    """
    if not path.is_file():
        return
    start = _start_of(path)
    if start.startswith(PROGRAM.magic):
        raise _already_compiled(path)
    if not start.lstrip().startswith(b"{"):
        kind = foreign_file(path)
        raise InputError(
            f"{path} is no configuration of a model",
            why=f"it is {kind.what}" if kind else "it is no object of JSON",
            hint="give the folder of the checkpoint, with its config.json, or that file alone",
        )


_FIRST_BYTES: Final = 64


def is_compiled(path: Path) -> bool:
    """Whether a path is that of a saved program of ours.

    Raises:
        InputError: It is that of a file that cannot be read.
    """
    return path.is_file() and _start_of(path).startswith(PROGRAM.magic)


def _start_of(path: Path) -> bytes:
    try:
        with opened(path) as file:
            return file.read(_FIRST_BYTES)
    except OSError as error:
        raise InputError(f"{path} cannot be read", why=error.strerror or str(error)) from error


def without_configuration(folder: Path) -> str:
    """What to do about a folder that is no checkpoint of transformers, since it says of no model what it is."""
    if not folder.is_dir() or (folder / "config.json").is_file():
        return ""
    return f"{folder} has no config.json: give the folder that save_pretrained wrote, or a function by module:function"


def _from_timm(name: str, random_weights: bool) -> nn.Module:
    timm = _library("timm", f"timm:{name}")
    if not timm.is_model(name):
        raise InputError(f"timm has no model {name!r}", hint=did_you_mean(name, timm.list_models()))
    return _with_weights(f"timm:{name}", lambda: timm.create_model(name, pretrained=not random_weights))


def _from_torchvision(name: str, random_weights: bool) -> nn.Module:
    models = _library("torchvision", f"torchvision:{name}").models
    if name not in models.list_models():
        raise InputError(f"torchvision has no model {name!r}", hint=did_you_mean(name, models.list_models()))
    weights = None if random_weights else "DEFAULT"
    made = {"weights_backbone": None} if random_weights and "weights_backbone" in _parameters(models, name) else {}
    return _with_weights(f"torchvision:{name}", lambda: models.get_model(name, weights=weights, **made))


def _image(model: Any) -> dict[str, Input]:
    """The input of a model of images, by the name that its `forward` gives it."""
    size = getattr(model, "default_cfg", {}).get("input_size", (3, _PIXELS, _PIXELS))  # timm says it
    return {next(iter(inspect.signature(model.forward).parameters)): Input((1, *size))}


def _parameters(models: Any, name: str) -> Any:
    return inspect.signature(models.get_model_builder(name)).parameters


def _with_weights(source: str, make: Callable[[], nn.Module]) -> nn.Module:
    try:
        return make()
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"the weights of {source} cannot be had",
            why=f"{type(error).__name__}: {error}".partition("\n")[0],
            hint="connect to the network once, so that they are kept; or give --random-weights",
        ) from error


_LIBRARIES: Final[dict[str, Callable[[str, bool], nn.Module]]] = {
    "hf": _from_transformers,
    "timm": _from_timm,
    "torchvision": _from_torchvision,
}


_MODES: Final = {
    "inductor": None,
    "reduce-overhead": "reduce-overhead",
    "max-autotune": "max-autotune",
}
"""Modes of `torch.compile` by the name of the peer."""


def peers_of(
    source: str, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Mapping[str, Callable[..., Any]]:
    """What `trtc bench` times beside a program.

    Args:
        source: The model, as `load_model` names it.
        names: `eager`, and modes of `torch.compile`.
        args, kwargs: What the program is called with.

    Raises:
        InputError: See `load_model`.
    """
    tensors = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    model = _load(source, tensors)
    if tensors:
        model = model.to(tensors[0].device)
    return {name: model if name == "eager" else torch.compile(model, mode=_MODES[name]) for name in names}


def _load(source: str, tensors: Sequence[torch.Tensor]) -> nn.Module:
    floating = next((value.dtype for value in tensors if value.is_floating_point()), None)
    kind = None if floating is None else str(floating).removeprefix("torch.")
    named = _named_model(source, kind, random_weights=False)
    if named is not None:
        return named.eval()
    model = load_model(source, needs_inputs=False)[0]  # the program is called with inputs that suit it
    return module_of(model) if isinstance(model, torch.export.ExportedProgram) else model.eval()
