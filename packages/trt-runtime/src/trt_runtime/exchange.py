"""Compiled models as PyTorch's exported programs, for exchange with other tools.

The format belongs to PyTorch, which evaluates expressions and unpickles objects while it reads it. So a file of that
format is as trustworthy as whoever wrote it, and is read only where the caller says that it is.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import torch
from torch import fx, nn

from trt_core.errors import ExportError, InputError, PlanError
from trt_core.exported_programs import module_of
from trt_core.files.opening import opened
from trt_core.files.replacing import Path, replacing
from trt_core.input import Input
from trt_core.nesting import distinct_tensors
from trt_core.sizes.ranges import allow_extent_one
from trt_core.wording import kind_of
from trt_runtime.compatibility import check_compatible
from trt_runtime.header import PlanHeader, parse_header
from trt_runtime.module import running_device
from trt_runtime.operator import execute_engine
from trt_runtime.plain_structure import raise_extents, with_plain_outputs
from trt_runtime.program.graph import Program

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def write_exported_program(
    compiled: nn.Module | ExportedProgram,
    path: Path,
    arg_inputs: Sequence[Any] | None,
    kwarg_inputs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
) -> None:
    """Writes a file that `torch.export.load` reads after `import trt_runtime`; see `trt_runtime.save`."""
    import torch.export  # costly, and needed here only

    if isinstance(compiled, torch.export.ExportedProgram):
        program = compiled
    else:
        program = export(compiled, arg_inputs, kwarg_inputs, dynamic_shapes)
    _refuse_pickled_state(program)
    examples = program.example_inputs
    program.example_inputs = None  # PyTorch would pickle them
    try:
        with replacing(path) as file:
            sink = _Sink(file)
            torch.export.save(program, sink)  # type: ignore[arg-type]  # it writes, and nothing else is asked of it
            sink.finish()
    finally:
        program.example_inputs = examples


def read_exported_program(path: Path) -> nn.Module:
    """Loads a file that PyTorch reads, and whatever code is in it.

    Raises:
        PlanError: PyTorch cannot read it, or its engines cannot run here.
    """
    import torch.export  # costly, and needed here only

    try:
        with opened(path) as file:
            program = torch.export.load(file)
        for header in engines_in(program):
            check_compatible(header, where=str(path))
        module = module_of(program)
        if not hasattr(module, "module"):
            # FX makes a class for each module; scripts ask an exported program for its module
            setattr(type(module), "module", lambda self: self)  # noqa: B010 - classes of modules have no such attribute
        return module
    except PlanError:
        raise
    except Exception as error:
        raise PlanError(
            "PyTorch cannot read the saved program",
            where=str(path),
            why=f"{type(error).__name__}: {error}",
            hint=f"this is PyTorch {torch.__version__}; it reads programs of this release",
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


def export(
    compiled: nn.Module, arg_inputs: Sequence[Any] | None, kwarg_inputs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> ExportedProgram:
    """Exports a module with engines among its children; see `trt_runtime.save`.

    Raises:
        InputError: There are no example inputs.
        ExportError: The module cannot be exported.
    """
    import torch.export

    if arg_inputs is None and kwarg_inputs is None:
        raise InputError(
            "saving this module needs example inputs",
            why="it has to be exported, and torch.export captures what runs on them",
            hint="give arg_inputs=(...) or kwarg_inputs={...} as the model is called with",
        )
    if dynamic_shapes is None:
        dynamic_shapes = getattr(compiled, "meta", {}).get("dynamic_shapes")
    device = running_device(compiled)
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


def device_of(program: Program) -> str:
    """Kind of device that a program runs on."""
    kinds = {engine.header.device for engine in program.engines} | {tensor.device for tensor in program.tensors}
    return "cuda" if "cuda" in kinds else "cpu"


class _Sink(io.RawIOBase):
    """Passes bytes on to a file, and keeps an error for later: PyTorch's writer aborts the process on one."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._error: OSError | None = None

    def writable(self) -> bool:
        """Asked before anything is written."""
        return True

    def seekable(self) -> bool:
        """Asked before anything is written; what is written in the end is in order, though."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Called when all is written, for whoever reads next; nobody does."""
        return offset

    def write(self, data: Any) -> int:
        """Writes, unless writing has failed before."""
        if self._error is None:
            try:
                self._file.write(data)
            except OSError as error:
                self._error = error
        return memoryview(data).nbytes

    def finish(self) -> None:
        """Raises what was kept.

        Raises:
            OSError: A write failed.
        """
        if self._error is not None:
            raise self._error


def _example(value: Any, device: torch.device) -> Any:
    return value.example(device=device) if isinstance(value, Input) else value


def _refuse_pickled_state(program: ExportedProgram) -> None:
    for name, value in (*program.state_dict.items(), *program.constants.items()):
        if isinstance(value, torch.Tensor) and type(value.data) is torch.Tensor:
            continue
        raise ExportError(
            f"{name!r} is {kind_of(value)}, which can only be saved with pickle",
            hint="replace tensor subclasses and script objects by plain tensors before compiling",
        )
