"""Saves compiled models: as a program of our own, or as PyTorch's exported program for interchange."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypedDict

import torch
from torch import fx, nn

from trt_core.device import present_device
from trt_core.errors import ExportError, InputError, TrtError
from trt_core.exported_programs import module_of, with_free_names
from trt_core.files.replacing import Path, replacing
from trt_core.held_arguments import held_to_signature
from trt_core.input import Input
from trt_core.internals import OpOverload
from trt_core.log import logger
from trt_core.sizes.guards import conditions_of
from trt_core.sizes.ranges import Bounds, ShapeRanges
from trt_core.wording import kind_of
from trt_runtime.exchange import device_of, export, write_exported_program
from trt_runtime.header import PlanHeader
from trt_runtime.module import TRTModule
from trt_runtime.plan_notes import is_own, plan_bytes
from trt_runtime.profile_choice import InputRanges
from trt_runtime.program.document import MAX_METADATA, MAX_METADATA_TEXT, program_to_bytes
from trt_runtime.program.emitter import DETACH, can_emit, emit
from trt_runtime.program.fields import FACTS
from trt_runtime.program.graph import (
    CapturedProgram,
    Dimension,
    EngineCall,
    Program,
    Signature,
    StoredEngine,
    TensorInput,
    Value,
)
from trt_runtime.program.graph_signature import signature_of
from trt_runtime.program.input_reader import InputReader
from trt_runtime.program.loaded_program import LoadedProgram, captured_from
from trt_runtime.program.model_facts import require_facts
from trt_runtime.program.weights import pack
from trt_runtime.program_file import PROGRAM as FILE
from trt_runtime.program_file import SectionKind
from trt_runtime.signatures import INSTALL, Signer, can_sign, signing_key

if TYPE_CHECKING:
    from torch.export import ExportedProgram

PROGRAM: Final = "program"
EXPORTED_PROGRAM: Final = "exported_program"
_PIECE_BYTES: Final = 16 << 20


class SaveKeywords(TypedDict, total=False):
    """Keywords of `save`, for type checkers; a test holds them to it."""

    arg_inputs: Sequence[Any] | None
    kwarg_inputs: Mapping[str, Any] | None
    dynamic_shapes: Any
    metadata: Mapping[str, str] | None
    sign: bool | None
    format: str


@held_to_signature
def save(
    compiled: nn.Module | ExportedProgram,
    path: Path,
    *,
    arg_inputs: Sequence[Any] | None = None,
    kwarg_inputs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    metadata: Mapping[str, str] | None = None,
    sign: bool | None = None,
    format: str = PROGRAM,  # noqa: A002 - what the field calls it
) -> None:
    """Saves a compiled model with its engines; the file appears complete or not at all.

    A result of a class that only the model's library knows (an output of `transformers`, a dataclass) is saved as a
    dict, so that whoever loads the program does not need that library; `load` gives its parts as attributes.

    Args:
        compiled: What `compile` or `load` returned, or an exported program. Any other module with `TRTModule`
            children is exported first, which needs example inputs.
        path: The file; an existing one is replaced and keeps its permissions.
        arg_inputs: Example inputs: tensors, or `Input`s, whose tuned shape is used. A compiled model knows what it
            takes and needs none in our own format; given, they are checked.
        kwarg_inputs: Example keyword inputs.
        dynamic_shapes: Dynamic dimensions as `torch.export.export` takes them, for modules that are exported; by
            default `compiled.meta["dynamic_shapes"]`.
        metadata: What to say of the program beside it, `meta` of what is loaded: at most 64 entries. None keeps that of
            a loaded program.
        sign: Sign the file with this user's key, so that `load` trusts it where this key is trusted. By default it is
            signed where `cryptography` is installed, unless it holds an engine from a file that was not trusted.
        format: `"program"`: the format that `load` reads from anyone, without running code. `"exported_program"`:
            PyTorch's own format, for exchange with other tools; it can hold code, so `load` reads it only with
            `trust=True`.

    Raises:
        InputError: Example inputs are needed and not given, or do not fit; the format is unknown; or `path` is no
            regular file.
        ExportError: The module holds something that has no place in the format; the message names the operator.
        FileError: There is no room for the file.
        OSError: The file cannot be written for another reason.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.trtp"
        >>> from trt_runtime import load
        >>> save(torch.export.export(nn.ReLU(), (torch.ones(2),)), path)
        >>> load(path)(torch.tensor([-1.0, 1.0]))
        tensor([0., 1.])
    """
    if format not in (PROGRAM, EXPORTED_PROGRAM):
        raise InputError(
            f"there is no format {format!r}",
            why="TorchScript and ahead-of-time packages of PyTorch hold no engines"
            if format in ("torchscript", "aot_inductor")
            else "",
            hint=f"choose {PROGRAM!r} or {EXPORTED_PROGRAM!r}",
        )
    _refuse_callables(compiled)
    if format == EXPORTED_PROGRAM:
        if metadata is not None:
            raise InputError("PyTorch's format has no place for metadata", hint=f"choose {PROGRAM!r}")
        write_exported_program(compiled, path, arg_inputs, kwarg_inputs, dynamic_shapes)
        return
    captured = _capture(compiled, arg_inputs, kwarg_inputs, dynamic_shapes)
    _write(path, captured if metadata is None else _with_metadata(captured, metadata), (), sign)


def save_with(compiled: nn.Module, inside: Sequence[nn.Module], path: Path, metadata: Mapping[str, str]) -> None:
    """Saves a compiled model with others inside of its file, which `load_with` gives again.

    Args:
        compiled: What `compile` or `load` returned.
        inside: Others such.
        path: The file; an existing one is replaced.
        metadata: What to say of them, as for `save`.

    Raises:
        InputError, ExportError, FileError, OSError: As for `save`.
    """
    for module in (compiled, *inside):
        _refuse_callables(module)
    captured = _with_metadata(_capture(compiled, None, None, None), metadata)
    _write(path, captured, [_capture(module, None, None, None) for module in inside], None)


def _with_metadata(captured: CapturedProgram, metadata: Mapping[str, str]) -> CapturedProgram:
    facts = {name: text for name, text in captured.program.metadata.items() if name == FACTS}
    return replace(captured, program=replace(captured.program, metadata={**_checked(metadata), **facts}))


def _write(path: Path, captured: CapturedProgram, inside: Sequence[CapturedProgram], sign: bool | None) -> None:
    signer = _signer([plan for program in (captured, *inside) for plan in program.plans], sign)
    with replacing(path) as file:
        write_program(file, captured, signer, inside)


def program_of(compiled: nn.Module | ExportedProgram) -> CapturedProgram:
    """Returns the program of a module that says of itself what it takes, as it is saved.

    Raises:
        InputError: The module does not.
        ExportError: It holds something that has no place in a program.
    """
    return _capture(compiled, None, None, None)


def write_program(
    file: BinaryIO, captured: CapturedProgram, signer: Signer | None = None, inside: Sequence[CapturedProgram] = ()
) -> None:
    """Writes a program to an open, seekable file.

    Args:
        file: Open for writing.
        captured: The program.
        signer: Signs it.
        inside: Programs to write as sections of it.

    Raises:
        OSError: The file cannot be written.
    """
    packed = pack(captured.program.tensors, captured.tensors)
    first = 1 + bool(packed.storages)
    numbers: dict[tuple[int, int], int] = {}
    plans: list[torch.Tensor] = []
    for plan in captured.plans:
        key = (plan.data_ptr(), plan.numel())
        if key not in numbers:
            numbers[key] = first + len(plans)
            plans.append(plan)
    engines = tuple(
        replace(engine, section=numbers[(plan.data_ptr(), plan.numel())])
        for engine, plan in zip(captured.program.engines, captured.plans, strict=True)
    )
    program = replace(
        captured.program,
        tensors=packed.entries,
        storages=packed.storages,
        engines=engines,
        torch_version=str(torch.__version__),
        writer_version=_own_version(),
    )
    sections: list[tuple[SectionKind, Any]] = [(SectionKind.GRAPH, [program_to_bytes(program)])]
    if packed.storages:
        sections.append((SectionKind.WEIGHTS, packed.parts()))
    sections += [(SectionKind.PLAN, [plan_bytes(plan)]) for plan in plans]
    sections += [(SectionKind.PROGRAM, _pieces_of(other)) for other in inside]
    if signer is not None:
        sections = [(kind, signer.passing(kind, parts)) for kind, parts in sections]
        sections.append((SectionKind.SIGNATURE, signer.signature()))
    FILE.write(file, sections)


def _pieces_of(captured: CapturedProgram) -> Iterator[bytes]:
    """The bytes of a whole file of a program, which is as large as its engines, in pieces."""
    with tempfile.TemporaryFile() as file:
        write_program(file, captured)
        file.seek(0)
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _signer(plans: Sequence[torch.Tensor], sign: bool | None) -> Signer | None:
    """What signs a file with these plans; None where nothing does.

    Raises:
        InputError: It is to be signed, and cannot be.
    """
    if sign is False:
        return None
    why, hint = "", ""
    if not can_sign():
        why, hint = "cryptography is not installed", INSTALL
    elif sign is None and not all(map(is_own, plans)):
        why = "it holds an engine from a file that was not trusted"
    else:
        try:
            return Signer(signing_key())
        except (TrtError, OSError) as error:
            why = str(error)
    if sign:
        raise InputError("the program cannot be signed", why=why, hint=hint)
    logger.debug("the program is not signed: %s", why)
    return None


def _capture(
    compiled: nn.Module | ExportedProgram,
    arg_inputs: Sequence[Any] | None,
    kwarg_inputs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
) -> CapturedProgram:
    captured = _without_examples(compiled)
    if captured is None:
        assert isinstance(compiled, nn.Module)
        program = export(compiled, arg_inputs, kwarg_inputs, dynamic_shapes)
        return _from_exported(program)
    if arg_inputs is not None or kwarg_inputs is not None:
        _check_examples(captured, compiled, arg_inputs or (), kwarg_inputs or {})
    return captured


def _without_examples(compiled: nn.Module | ExportedProgram) -> CapturedProgram | None:
    """The program of what says of itself what it takes; None for other modules."""
    if isinstance(compiled, LoadedProgram):
        return captured_from(compiled)
    if isinstance(compiled, TRTModule):
        return _from_engine(compiled)
    if isinstance(compiled, nn.Module):
        if not can_emit(compiled):
            return None
        assert isinstance(compiled, fx.GraphModule)
        ranges = compiled.meta.get("shape_ranges") or ShapeRanges.from_placeholders(compiled)
        signature = compiled.meta.get("signature")  # of what `compile` returned
        if signature is None:
            signature = signature_of(compiled.graph, ranges, conditions_of(compiled.graph, ranges))
        return emit(compiled, ranges, signature)
    return _from_exported(compiled)


def _from_exported(program: ExportedProgram) -> CapturedProgram:
    graphs = [module.graph for module in program.graph_module.modules() if isinstance(module, fx.GraphModule)]
    if any(_writes_in_place(node.target) for graph in graphs for node in graph.nodes):
        # makes the graph functional, with writes to state at its end
        program = with_free_names(program).run_decompositions({})
    module = module_of(program)
    ranges = ShapeRanges.from_placeholders(module, None, program.range_constraints)
    return emit(module, ranges, signature_of(module.graph, ranges, conditions_of(module.graph, ranges, program)))


def _writes_in_place(target: Any) -> bool:
    return isinstance(target, OpOverload) and target._schema.is_mutable and target is not DETACH


def _from_engine(engine: TRTModule) -> CapturedProgram:
    """A program that is one engine, called with its inputs by position."""
    header = engine.header
    leaves = tuple(
        TensorInput(
            binding.dtype,
            tuple(Dimension(extent, low, high) for extent, (low, _, high) in zip(binding.shape, shape, strict=True)),
            header.device,
        )
        for binding, shape in zip(header.inputs, header.ranges, strict=True)
    )
    names = tuple(binding.name for binding in header.inputs)
    values = tuple(Value(index) for index in range(len(names)))
    program = Program(
        signature=Signature(names, len(names), values, leaves),
        symbols=_symbols(header, header.ranges),
        profiles=tuple(_symbols(header, ranges) for ranges in header.profiles),
        storages=(),
        tensors=(),
        engines=(StoredEngine("engine", 0, header),),
        steps=(EngineCall(0, tuple(range(len(names)))),),
        output=Value(len(names)),
    )
    return CapturedProgram(program, (), (engine.plan,))


def _symbols(header: PlanHeader, ranges: InputRanges) -> dict[str, Bounds]:
    return {name: ranges[index][axis] for name, (index, axis) in header.symbols.items()}


def _check_examples(
    captured: CapturedProgram, compiled: Any, arg_inputs: Sequence[Any], kwarg_inputs: Mapping[str, Any]
) -> None:
    device = present_device(device_of(captured.program))

    def example(value: Any) -> Any:
        return value.example(device=device) if isinstance(value, Input) else value

    reader = InputReader.of(captured.program, device)
    reader.read(tuple(map(example, arg_inputs)), {name: example(value) for name, value in kwarg_inputs.items()})


def _checked(metadata: Mapping[str, str]) -> dict[str, str]:
    """Returns metadata that can be read again.

    Raises:
        InputError: It is none, or too long.
    """
    require_facts(metadata)
    entries = dict(metadata) if isinstance(metadata, Mapping) else {None: None}
    if any(not isinstance(part, str) for entry in entries.items() for part in entry):
        raise InputError("metadata is a mapping of names to texts", where="metadata")
    too_long = any(len(name) > 128 or len(text) > MAX_METADATA_TEXT for name, text in entries.items())
    if too_long or len(entries) > MAX_METADATA:
        raise InputError(
            "the metadata is too long",
            where="metadata",
            hint=f"give at most {MAX_METADATA} entries, with names of up to 128 characters and texts of up to "
            f"{MAX_METADATA_TEXT}",
        )
    return entries


def _refuse_callables(compiled: Any) -> None:
    """What `torch.compile` returns holds no graphs until it is called, and then one for each way it was called."""
    if type(compiled).__name__ == "OptimizedModule" or hasattr(compiled, "_torchdynamo_orig_callable"):
        raise ExportError(
            "what torch.compile returned cannot be saved",
            why="its graphs are made while it is called",
            hint="compile the model with trt_frontends.compile(model, arg_inputs=...), and save that",
        )
    if not isinstance(compiled, nn.Module) and type(compiled).__name__ != "ExportedProgram":
        raise InputError(f"{kind_of(compiled)} cannot be saved", hint="give what compile or load returned")


def _own_version() -> str:
    try:
        return version("trt-runtime")
    except PackageNotFoundError:  # a source tree that is on the path without being installed
        return "0+source"
