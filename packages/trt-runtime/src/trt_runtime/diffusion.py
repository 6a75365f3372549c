"""Pipelines of diffusers whose parts are compiled: the parts as programs, all around them as diffusers has it.

diffusers runs the loop: schedulers, tokenizers and processors are its own, and are read by it. `trt_frontends` compiles
pipelines; this runs them, and loads what was saved, without anything that compiles.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import inspect
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Final

import torch
from torch import nn

from trt_core.dtypes import FLOATS, dtype_name, dtype_of_weights
from trt_core.errors import FileError, InputError, PlanError, TrtError
from trt_core.files import records, typed
from trt_core.files.folder import Folder
from trt_core.files.opening import map_file, read_file
from trt_core.files.records import Form
from trt_core.files.replacing import Path as FilePath
from trt_core.files.replacing import replacing
from trt_core.files.strict_json import BadJson, parse_json
from trt_core.held_arguments import held_to_signature
from trt_core.wording import kind_of
from trt_runtime.program import load

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from trt_runtime.program.loading import LoadKeywords
    from trt_runtime.program.saving import SaveKeywords

MANIFEST: Final = "compiled.json"
"""Says which parts of a saved pipeline are programs."""

_INDEX: Final = "model_index.json"
_MAX_BYTES: Final = 1 << 20
_MOST_PARTS: Final = 64
_MOST_PROGRAMS: Final = 16
"""Ways in which one method is called."""
_MOST_NUMBERS: Final = 1024
"""In a buffer that pipelines read themselves."""
_TYPES: Final = {dtype_name(dtype): dtype for dtype in FLOATS | {torch.float64}}
_LIBRARIES: Final = ("diffusers", "transformers")


@dataclass(frozen=True)
class CompiledMethod:
    """A method of a part, or of a module in it, compiled.

    Attributes:
        programs: What computes it, one for each way in which it is called: what `compile` or `load` returned.
    """

    programs: tuple[nn.Module, ...]

    def bound_to(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns what is called in the place of a method: it has its name and signature.

        Raises:
            InputError: When called with what no program was compiled for.
        """
        signature = inspect.signature(function)
        parameters, required = tuple(signature.parameters), required_names(signature)
        *others, last = self.programs

        @functools.wraps(function)
        def compiled(*args: Any, **kwargs: Any) -> Any:
            given = {**dict(zip(parameters, args, strict=False)), **kwargs}
            given = {name: value for name, value in given.items() if value is not None or name in required}
            for program in others:
                with contextlib.suppress(InputError):
                    return program(**given)
            return last(**given)

        compiled.__signature__ = signature  # type: ignore[attr-defined]  # pipelines look for names of parameters
        return compiled


@held_to_signature
def required_names(signature: inspect.Signature) -> frozenset[str]:
    """Returns the parameters without a default; a None there is a value that a program was compiled for."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    required = (one for one in signature.parameters.values() if one.default is one.empty and one.kind in kinds)
    return frozenset(one.name for one in required)


class CompiledPart(nn.Module):
    """A part of a pipeline whose calls run programs; `with_programs` makes parts so.

    It is of the class that it was before, too, and has all that pipelines read of it but the weights.
    """

    if TYPE_CHECKING:
        compiled_methods: dict[str, CompiledMethod]

    @property
    def _programs(self) -> list[nn.Module]:
        return [program for method in self.compiled_methods.values() for program in method.programs]

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self._programs[0].device  # type: ignore[return-value]  # programs say

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Refuses: the weights are in the programs.

        Raises:
            InputError: Always.
        """
        raise InputError("a compiled part has no weights to save", hint="save the pipeline by save_pipeline")

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> CompiledPart:
        """Moves the programs; what type pipelines give to weights is remembered alone."""
        device = self.device
        for tensor in (*self.parameters(), *self.buffers()):
            tensor.data = tensor.data.to(dtype=fn(torch.empty(0, dtype=tensor.dtype, device=device)).dtype)
        moved = fn(torch.empty(0, device=device)).device
        if moved != device:
            for program in self._programs:
                program.to(moved)
        return self


@held_to_signature
def with_programs(model: nn.Module, methods: Mapping[str, CompiledMethod]) -> Any:
    """Has programs compute what a part of a pipeline computes.

    Args:
        model: The part, whose tensors are on the device `meta`. It is changed, and returned.
        methods: What was compiled of it by path: `forward`, `decode`, `quant_conv.forward`.

    Returns:
        The part, a `CompiledPart`. A module in it that has weights and that the calls of `methods` do not stand for
        refuses to be called.

    Raises:
        PlanError: The part has no such method.
    """
    kind = type(model)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    model.__class__ = type(kind.__name__, (CompiledPart, kind), names)
    model.__dict__["compiled_methods"] = dict(methods)
    ways = ", ".join(methods)
    for path, module in model.named_modules():
        if next(module.parameters(), None) is not None:
            module.__dict__["forward"] = functools.partial(_refuse, path or kind.__name__, ways)
    modules = dict(model.named_modules())
    for path, method in methods.items():
        owner, name = modules.get(path.rpartition(".")[0]), path.rpartition(".")[2]
        function = getattr(type(owner), name, None)
        if owner is None or not inspect.isfunction(function) or name.startswith("__") or _is_of_modules(name):
            raise PlanError(f"{kind.__name__} has no method {path!r:.80}", hint="install the release it was saved with")
        owner.__dict__[name] = method.bound_to(function.__get__(owner))
    return model


def _is_of_modules(name: str) -> bool:
    return name != "forward" and hasattr(nn.Module, name)


def _refuse(path: str, ways: str, *args: Any, **kwargs: Any) -> Any:
    raise InputError(
        f"the part of the pipeline was not compiled for {path}",
        why=f"the call that it was compiled for uses {ways} alone",
        hint="compile the pipeline for a call that uses it",
    )


def components_of(pipeline: Any) -> Mapping[str, Any]:
    """Returns the parts of a pipeline by name.

    Raises:
        InputError: It is no pipeline of diffusers.
    """
    components = getattr(pipeline, "components", None)
    if not isinstance(components, Mapping):
        raise InputError(
            f"{kind_of(pipeline)} is no pipeline of diffusers",
            why="it has no components",
            hint="give what DiffusionPipeline.from_pretrained returns; a model alone is compiled by compile",
        )
    return components


@held_to_signature
def with_parts(pipeline: Any, parts: Mapping[str, CompiledPart]) -> Any:
    """Returns a pipeline with compiled parts in the place of its own; the pipeline itself is left as it is.

    Args:
        pipeline: A `diffusers.DiffusionPipeline`, or a `Pipeline` of transformers, whose part is its `model`.
        parts: The parts by the names of its components.

    Raises:
        InputError: It is no pipeline, or has no such components.
    """
    is_object = hasattr(pipeline, "__dict__") and not isinstance(pipeline, type)
    if not is_object or not all(hasattr(pipeline, name) for name in parts):
        raise InputError(
            f"{kind_of(pipeline)} is no pipeline with the parts that were compiled",
            why=f"these are {', '.join(parts)}" if is_object else "",
            hint="give what DiffusionPipeline.from_pretrained or transformers.pipeline returns",
        )
    twin = copy.copy(pipeline)
    twin.__dict__.update(parts)  # past diffusers' bookkeeping, which goes on naming the classes that the parts were of
    return twin


@held_to_signature
def save_pipeline(pipeline: Any, folder: str | os.PathLike[str], **options: Unpack[SaveKeywords]) -> None:
    """Saves a pipeline with compiled parts: each part as programs, the rest as diffusers saves it.

    Args:
        pipeline: What `compile_pipeline` or `load_pipeline` returned.
        folder: A new folder, or an empty one.
        options: As for `trt_runtime.save`, for each program.

    Raises:
        InputError: The pipeline has no compiled parts, or a part that could not be loaded; nothing is written then.
        FileError: The folder holds something already.
        ExportError, OSError: See `trt_runtime.save`.
    """
    components = components_of(pipeline)
    parts = {name: part for name, part in components.items() if isinstance(part, CompiledPart)}
    if not parts:
        raise InputError(
            "the pipeline has no compiled parts", hint="save what compile_pipeline or load_pipeline returned"
        )
    for name, component in components.items():
        _require_loadable(name, component, pipeline.config.get(name))
    place = Path(folder)
    is_new = not place.exists()
    place.mkdir(parents=True, exist_ok=True)
    if any(place.iterdir()):
        raise FileError(f"{place} holds something already", hint="give a new folder")
    try:
        _write_pipeline(pipeline, parts, place, options)
    except BaseException:
        for path in place.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if is_new:
            place.rmdir()
        raise


@held_to_signature
def kept_buffers(part: nn.Module) -> dict[str, torch.Tensor]:
    """Returns the small buffers of a part itself, which pipelines read: means of latents and the like."""
    return {
        name: buffer
        for name, buffer in part.named_buffers(recurse=False)
        if buffer.numel() <= _MOST_NUMBERS and buffer.is_floating_point()
    }


def _buffers_of(part: nn.Module) -> dict[str, tuple[float, ...]]:
    held = {name: buffer.double().flatten() for name, buffer in kept_buffers(part).items() if not buffer.is_meta}
    return {name: tuple(buffer.tolist()) for name, buffer in held.items() if bool(buffer.isfinite().all())}


def _require_loadable(name: str, component: Any, described: Any) -> None:
    """Refuses a component that `load_pipeline` would not read.

    Raises:
        InputError: It is of no class that diffusers or transformers has, or is made by more than a configuration.
    """
    if component is None or not isinstance(described, (tuple, list)):
        return
    problem = ""
    try:
        kind = _class_of(described, name)
    except PlanError as error:
        problem = error.what
    else:
        if isinstance(component, CompiledPart):
            if not hasattr(component, "config") or not _reads_configuration(kind):
                problem = f"{kind.__name__} is made by more than a configuration"
        elif not hasattr(component, "save_pretrained"):
            problem = f"{kind.__name__} has no save_pretrained"
    if problem:
        raise InputError(
            f"the pipeline cannot be saved: its {name} could not be loaded",
            why=problem,
            hint="save programs of its parts one by one with trt_runtime.save, and make the pipeline of them",
        )


def _write_pipeline(pipeline: Any, parts: Mapping[str, CompiledPart], place: Path, options: Mapping[str, Any]) -> None:
    from trt_runtime.program.saving import save

    saved: dict[str, _Saved] = {}
    for name, part in parts.items():
        methods: dict[str, tuple[str, ...]] = {}
        for method, compiled in part.compiled_methods.items():
            suffixes = ["", *(f".{at}" for at in range(1, len(compiled.programs)))]
            methods[method] = tuple([f"{name}.{method}{suffix}.trtp" for suffix in suffixes])
            for file, program in zip(methods[method], compiled.programs, strict=True):
                save(program, place / file, **options)
        saved[name] = _Saved(methods, dtype_of_weights(part) or torch.float32, _buffers_of(part))
        (place / name).mkdir()
        owner: Any = part  # of diffusers; of transformers it is the configuration that knows how
        if hasattr(owner.config, "save_pretrained"):
            owner.config.save_pretrained(place / name)
        else:
            owner.save_config(place / name)
    for name, component in components_of(pipeline).items():
        if name not in parts and hasattr(component, "save_pretrained"):
            component.save_pretrained(place / name)
    with replacing(place / _INDEX) as stream:
        stream.write(pipeline.to_json_string().encode())
    with replacing(place / MANIFEST) as stream:
        stream.write(json.dumps(records.write(_Manifest(type(pipeline).__name__, saved)), indent=1).encode())


@held_to_signature
def load_pipeline(folder: str | os.PathLike[str], **options: Unpack[LoadKeywords]) -> Any:
    """Loads a pipeline that `save_pipeline` wrote; needs diffusers, and nothing that compiles.

    Programs are read as `load` reads them. Schedulers, tokenizers and the parts that were not compiled are read by
    diffusers, so the folder is as trustworthy as one that `from_pretrained` takes.

    Args:
        folder: The folder.
        options: As for `load`, for each program.

    Returns:
        A pipeline of its class, called like it.

    Raises:
        InputError: diffusers is not installed, or there is no such folder.
        PlanError: A program or the list of them is damaged; see `load`.
    """
    place = Path(folder)
    try:
        opened = Folder.open(str(place))
        manifest = _read_manifest(opened.file(MANIFEST))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(
            f"{place} holds no compiled pipeline", hint="give a folder that save_pipeline wrote"
        ) from error
    diffusers, name, described = _diffusers(), manifest.pipeline, manifest.parts
    kind = _attribute(diffusers, name, str(place))
    if not isinstance(kind, type) or not issubclass(kind, diffusers.DiffusionPipeline):
        raise PlanError(f"diffusers has no pipeline {name!r:.80}", where=str(place), hint="install its newest release")
    try:
        methods = {
            part: {
                method: CompiledMethod(tuple(load(opened.file(file), **options) for file in files))
                for method, files in found.methods.items()
            }
            for part, found in described.items()
        }
        index = _read_index(opened.file(_INDEX))
    except FileNotFoundError as error:
        raise PlanError(
            "a file of the pipeline is missing", where=str(error.filename), hint="copy the whole folder again"
        ) from error
    except OSError as error:
        if isinstance(error, TrtError):
            raise
        raise PlanError(
            "a file of the pipeline cannot be read", where=str(error.filename), why=error.strerror or str(error)
        ) from error
    parts = {
        part: with_programs(_weightless(place / part, index.get(part), found), methods[part])
        for part, found in described.items()
    }
    taken = inspect.signature(kind).parameters
    others = {
        part: _component(place / part, value) if isinstance(value, list) else value
        for part, value in index.items()
        if part in taken and part not in parts
    }
    return _made_by(kind, str(place), **others, **parts)


def _class_of(described: Any, place: str) -> Any:
    """Returns the class of a part of a pipeline: one of diffusers or transformers that reads folders.

    Raises:
        PlanError: It is of a library that pipelines have nothing from, or the library has no such part.
    """
    if not isinstance(described, (list, tuple)) or len(described) != 2 or None in described:
        raise PlanError("the index of the pipeline does not say what a part is", where=place)
    library, name = described
    diffusers = _diffusers()
    if library == "transformers":
        owner: Any = importlib.import_module("transformers")
    elif library == "diffusers":
        owner = diffusers
    elif isinstance(library, str) and inspect.ismodule(found := _pipelines_module(diffusers, library, place)):
        owner = found  # parts that one pipeline alone has
    else:
        raise PlanError(
            f"{os.path.basename(place)} is of {library!r:.80}, not of {' or '.join(_LIBRARIES)}", where=place
        )
    kind = _attribute(owner, name, place)
    if (
        not isinstance(kind, type)
        or _attribute(kind, "from_pretrained", place) is None  # what stands for a class that lacks a library says so
        or issubclass(kind, diffusers.DiffusionPipeline)
    ):
        raise PlanError(
            f"{library} has no part {name!r:.80}", where=place, hint=f"install its newest release: {library}"
        )
    return kind


def _pipelines_module(diffusers: ModuleType, name: str, place: str) -> Any:
    return _attribute(getattr(diffusers, "pipelines", None), name, place) if name.isidentifier() else None


def _attribute(owner: Any, name: str, place: str) -> Any:
    """What a library has under a name; None where it has nothing.

    Raises:
        PlanError: It cannot be imported: libraries import what they have when it is asked for.
    """
    try:
        return getattr(owner, name, None)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise PlanError(f"{name!r:.80} cannot be imported", where=place, why=f"{why:.1000}") from error


def _reads_configuration(kind: Any) -> bool:
    return hasattr(kind, "from_config" if hasattr(kind, "load_config") else "config_class")


def _weightless(folder: Path, described: Any, found: _Saved) -> Any:
    """Makes a part of a pipeline by its configuration, without weights.

    Raises:
        PlanError: It is none that can be made so.
    """
    kind = _class_of(described, str(folder))
    if not _reads_configuration(kind):
        raise PlanError(f"{kind.__name__} is made by more than a configuration", where=str(folder))

    def make() -> Any:
        with torch.device("meta"):
            if hasattr(kind, "load_config"):
                model = kind.from_config(kind.load_config(str(folder), local_files_only=True))
            else:
                config = kind.config_class.from_pretrained(str(folder), local_files_only=True)
                model = kind(config)
        model = model if (dtype_of_weights(model) or torch.float32) is found.dtype else model.to(found.dtype)
        for name, values in found.buffers.items():
            held = model.get_buffer(name)
            read = torch.tensor(values, dtype=held.dtype, device=torch.get_default_device()).reshape(held.shape)
            model.register_buffer(name, read, persistent=False)
        return model.eval()

    return _made_by(make, str(folder))


def _component(folder: Path, described: Sequence[Any]) -> Any:
    """Reads what is no program: a scheduler, a tokenizer, a part that was not compiled.

    Raises:
        PlanError: It is of a library that pipelines have nothing from.
    """
    if described[0] is None:
        return None
    kind = _class_of(described, str(folder))
    is_of_transformers = kind.__module__.partition(".")[0] == "transformers"  # pipelines of diffusers show some, too
    options = {"trust_remote_code": False} if is_of_transformers else {}  # else it asks whoever sits there
    return _made_by(kind.from_pretrained, str(folder), str(folder), local_files_only=True, **options)


def _made_by(make: Callable[..., Any], place: str, *args: Any, **kwargs: Any) -> Any:
    """Calls what libraries make of a folder.

    Raises:
        PlanError: They cannot.
    """
    try:
        return make(*args, **kwargs)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise PlanError("a part of the pipeline cannot be read", where=place, why=f"{why:.1000}") from error


@dataclass(frozen=True)
class _Saved:
    """What the list says of a part.

    Attributes:
        methods: Files of programs by method.
        dtype: The type of the weights.
        buffers: Numbers of the part that pipelines read, by name.
    """

    methods: Mapping[str, tuple[str, ...]]
    dtype: Annotated[torch.dtype, Form(partial(typed.choice, _TYPES, what="type of weights"), dtype_name)]
    buffers: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class _Manifest:
    """The list of a pipeline's programs: the name of its class, and what was saved of each part."""

    pipeline: str
    parts: Mapping[str, _Saved]


def _read_manifest(path: FilePath) -> _Manifest:
    """Reads the list.

    Raises:
        PlanError: It is no such list.
    """
    content = map_file(path, "the list of a pipeline's programs", "trt_runtime.diffusion.save_pipeline")
    try:
        manifest = records.read(_Manifest, parse_json(bytes(content), max_bytes=_MAX_BYTES), "the list")
        for name, part in manifest.parts.items():
            for method, files in part.methods.items():
                for file in files:
                    if file != os.path.basename(file) or not file.startswith(f"{name}.{method}."):
                        raise typed.BadField(name, f"{file!r:.80} is no program of the folder")
            counts = [len(files) for files in part.methods.values()]
            if not counts or min(counts) < 1 or max(counts) > _MOST_PROGRAMS or not name.isidentifier():
                raise typed.BadField(name, "it has no methods, or no name of a part")
        if not 0 < len(manifest.parts) <= _MOST_PARTS:
            raise typed.BadField("parts", f"{len(manifest.parts)} are none, or too many")
        return manifest
    except BadJson as error:
        raise PlanError("the list of a pipeline's programs is damaged", where=str(path), why=str(error)) from error
    except typed.BadField as error:
        why = f"{error.place}: {error.why}"
        hint = "lists of earlier releases are not read: compile the pipeline again"
        raise PlanError("the list of a pipeline's programs is damaged", where=str(path), why=why, hint=hint) from error


def _read_index(path: FilePath) -> dict[str, Any]:
    """Returns what diffusers has written of a pipeline: its class, settings, and library and class of each part.

    Raises:
        PlanError: It is no such index.
    """
    try:
        index = dict(typed.mapping(parse_json(read_file(path, _MAX_BYTES), max_bytes=_MAX_BYTES), "the index"))
        for name, value in index.items():
            if isinstance(value, list):
                for part in typed.items(value, name, 2):
                    typed.optional_text(part, name)
        return index
    except (BadJson, typed.BadField) as error:
        raise PlanError("the index of a pipeline is damaged", where=str(path), why=str(error)) from error


def _diffusers() -> ModuleType:
    try:
        import diffusers
    except ImportError as error:
        raise InputError(
            "pipelines need diffusers", why=str(error), hint="pip install trt-runtime[diffusers]"
        ) from error
    return diffusers
