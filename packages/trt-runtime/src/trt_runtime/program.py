"""Saved programs: a compiled model with its engines as one `.pt2` file.

The file is what `torch.export.save` writes, with a manifest of the engines beside it. Of that format PyTorch
pickles example inputs, tensor subclasses and script objects; `save` leaves out the first and refuses the others,
and `load` refuses files that contain any of them before PyTorch opens the file (see `trt_runtime.archive`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx, nn

from trt_core.errors import ExportError, InputError, PlanError
from trt_core.input import Input
from trt_core.ranges import allow_extent_one
from trt_runtime.archive import MANIFEST, read_manifest
from trt_runtime.compatibility import check_compatible
from trt_runtime.container import Path, replacing
from trt_runtime.header import PlanHeader, parse_header
from trt_runtime.operator import execute_engine
from trt_runtime.plain_structure import distinct_tensors, raise_extents, with_plain_outputs

if TYPE_CHECKING:
    from torch.export import ExportedProgram

MANIFEST_VERSION: Final = 1
_COPY_AGAIN: Final = "copy the file again from where it was written, or save the model again"


def save(
    compiled: nn.Module | ExportedProgram,
    path: Path,
    *,
    arg_inputs: Sequence[Any] | None = None,
    kwarg_inputs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> None:
    """Saves a compiled model with its engines; the file appears complete or not at all.

    A result of a class that only the model's library knows (an output of `transformers`, a dataclass) is saved as a
    dict, so that whoever loads the program does not need that library.

    Args:
        compiled: A module with `TRTModule` children, as compiling returns it; or an exported program, which is
            saved as it is.
        path: The file, usually `*.pt2`; an existing one is replaced.
        arg_inputs: Example inputs: tensors, or `Input`s, whose tuned shape is used.
        kwarg_inputs: Example keyword inputs.
        dynamic_shapes: Dynamic dimensions as `torch.export.export` takes them; by default those that the model
            was compiled with, `compiled.meta["dynamic_shapes"]`.

    Raises:
        InputError: Example inputs are needed and not given.
        ExportError: The module cannot be exported, or holds what can only be saved with pickle.
        OSError: The file cannot be written.
    """
    import torch.export  # costly, and needed here only

    if isinstance(compiled, torch.export.ExportedProgram):
        program = compiled
    else:
        program = _export(compiled, arg_inputs, kwarg_inputs, dynamic_shapes)
    _refuse_pickled_state(program)
    manifest = {
        "format_version": MANIFEST_VERSION,
        "torch_version": str(torch.__version__),
        "engines": [header.to_json() for header in engines_in(program)],
    }
    examples = program.example_inputs
    program.example_inputs = None  # PyTorch would pickle them
    try:
        with replacing(path) as file:
            torch.export.save(program, file, extra_files={MANIFEST: json.dumps(manifest)})
    finally:
        program.example_inputs = examples


def load(path: Path) -> nn.Module:
    """Loads a saved program; needs nothing of what compiled it.

    Engines are checked here and deserialized at the first call.

    Args:
        path: A file that `save` wrote.

    Returns:
        A module that is called like the model that was compiled.

    Raises:
        PlanError: The file is truncated, corrupt or foreign, or its engines cannot run here; the message says
            what does not match.
        OSError: The file cannot be read.
    """
    import torch.export  # costly, and needed here only

    name = os.fspath(path)
    manifest = _Manifest(read_manifest(name), name)
    for header in manifest.engines:
        check_compatible(header, where=name)
    try:
        with open(name, "rb") as file:
            return torch.export.load(file).module()
    except Exception as error:
        raise PlanError(
            "PyTorch cannot read the saved program",
            where=name,
            why=f"{type(error).__name__}: {error}",
            hint=f"it was saved with PyTorch {manifest.torch_version}, this is {torch.__version__}; "
            "save the model again with this version",
        ) from error


def engines_in(program: ExportedProgram) -> list[PlanHeader]:
    """Returns the headers of the engines that an exported program calls, in order of their calls."""
    headers = []
    for module in program.graph_module.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        for node in module.graph.nodes:
            if node.op == "call_function" and node.target is execute_engine:
                headers.append(parse_header(node.args[2]))
    return headers


class _Manifest:
    """The manifest of a saved program, read strictly."""

    def __init__(self, text: bytes, where: str) -> None:
        try:
            value = json.loads(text)
            version = value["format_version"]
            engines, self.torch_version = value["engines"], str(value["torch_version"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise PlanError(
                "the manifest of the saved program cannot be read",
                where=where,
                why=f"{type(error).__name__}: {error}",
                hint=_COPY_AGAIN,
            ) from error
        if version != MANIFEST_VERSION:
            raise PlanError(
                f"the saved program has format version {version!r}, this trt-runtime reads {MANIFEST_VERSION}",
                where=where,
                hint="install the version of trt-runtime that wrote it, or save the model again",
            )
        self.engines = [PlanHeader.from_json(engine) for engine in engines]


def _export(
    compiled: nn.Module,
    arg_inputs: Sequence[Any] | None,
    kwarg_inputs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
) -> ExportedProgram:
    import torch.export

    if arg_inputs is None and kwarg_inputs is None:
        raise InputError(
            "saving a compiled model needs example inputs",
            hint="give arg_inputs=(...) or kwarg_inputs={...} as the model is called with",
        )
    if dynamic_shapes is None:
        dynamic_shapes = getattr(compiled, "meta", {}).get("dynamic_shapes")
    device = _device(compiled)
    args = tuple(_example(value, device) for value in arg_inputs or ())
    kwargs = {name: _example(value, device) for name, value in (kwarg_inputs or {}).items()}
    args, kwargs = distinct_tensors(args, kwargs)
    if dynamic_shapes is not None:
        args, kwargs = raise_extents(compiled, args, kwargs, dynamic_shapes)
    try:
        program = torch.export.export(
            with_plain_outputs(compiled), args, kwargs, dynamic_shapes=dynamic_shapes, strict=False
        )
        allow_extent_one(program)
        return program
    except (InputError, PlanError):
        raise
    except Exception as error:  # whatever tracing raises
        raise ExportError(
            "the compiled model cannot be exported for saving",
            why=f"{type(error).__name__}: {error}",
            hint="give inputs and dynamic_shapes that fit what the model was compiled for",
        ) from error


def _device(compiled: nn.Module) -> str:
    for module in compiled.modules():
        header = getattr(module, "header", None)
        if isinstance(header, PlanHeader):
            return header.device
    return "cpu"


def _example(value: Any, device: str) -> Any:
    return value.example(device=device) if isinstance(value, Input) else value


def _refuse_pickled_state(program: ExportedProgram) -> None:
    for name, value in (*program.state_dict.items(), *program.constants.items()):
        if isinstance(value, torch.Tensor) and type(value.data) is torch.Tensor:
            continue
        raise ExportError(
            f"{name!r} is a {type(value).__name__}, which can only be saved with pickle",
            hint="replace tensor subclasses and script objects by plain tensors before compiling",
        )
