"""Pipelines of diffusers whose parts are compiled: the parts as programs, all around them as diffusers has it.

diffusers runs the loop: schedulers, tokenizers and processors are its own, and are read by it. `trt_frontends` compiles
pipelines; this runs them, and loads what was saved, without anything that compiles.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from trt_core.errors import FileError, InputError, PlanError
from trt_core.files import typed
from trt_core.files.folder import Folder
from trt_core.files.opening import map_file, read_file
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
_DEEPEST: Final = 16
"""Steps of a path to a number."""
_LIBRARIES: Final = ("diffusers", "transformers")


@dataclass(frozen=True)
class CompiledMethod:
    """A method of a part, compiled.

    Attributes:
        program: What computes it: what `compile` or `load` returned.
        parameters: Names of its parameters in their order.
    """

    program: nn.Module
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class PartAttributes:
    """What pipelines read of a part that its programs do not say.

    Attributes:
        numbers: Numbers inside of it by path: `add_embedding.linear_1.in_features`.
    """

    numbers: Mapping[str, int] = field(default_factory=dict)


class CompiledPart(nn.Module):
    """A part of a pipeline, a denoiser, a text encoder or an autoencoder, in the place of the one that it was made of.

    Args:
        methods: Its compiled methods by name: `forward`, or `decode` and `encode` of an autoencoder.
        attributes: What else pipelines read of it.
    """

    def __init__(self, methods: Mapping[str, CompiledMethod], attributes: PartAttributes | None = None) -> None:
        super().__init__()
        self._methods = dict(methods)
        self._attributes = attributes or PartAttributes()
        for name, method in methods.items():
            self.add_module(f"{name}_program", method.program)
        for path, number in self._attributes.numbers.items():
            _put(self, path, number)

    @property
    def _first(self) -> Any:
        return next(iter(self._methods.values())).program

    @property
    def config(self) -> Any:
        """The part's configuration."""
        return self._first.config

    @property
    def dtype(self) -> torch.dtype:
        """The type of its weights."""
        return self._first.dtype  # type: ignore[no-any-return]  # programs say

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self._first.device  # type: ignore[no-any-return]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the part as pipelines call it.

        Raises:
            InputError: It was compiled for other inputs.
        """
        return self._run("forward", args, kwargs)

    def cache_context(self, name: str, **state: Any) -> contextlib.AbstractContextManager[None]:
        """Does nothing: pipelines say by it where they are to caches of denoisers, and a compiled one has none."""
        return contextlib.nullcontext()

    def decode(self, z: torch.Tensor, return_dict: bool = True, generator: Any = None) -> Any:
        """Decodes latents (N, C, H, W) to images, as autoencoders do."""
        sample = self._run("decode", (z,), {})
        if not return_dict:
            return (sample,)
        from diffusers.models.autoencoders.vae import DecoderOutput

        return DecoderOutput(sample=sample)

    def encode(self, x: torch.Tensor, return_dict: bool = True) -> Any:
        """Encodes images (N, C, H, W) to a distribution of latents, as autoencoders do."""
        from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
        from diffusers.models.modeling_outputs import AutoencoderKLOutput

        distribution = DiagonalGaussianDistribution(self._run("encode", (x,), {}))
        return AutoencoderKLOutput(latent_dist=distribution) if return_dict else (distribution,)

    def _run(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        method = self._methods.get(name)
        if method is None:
            raise InputError(
                f"the part of the pipeline was not compiled for {name}",
                why=f"the call that it was compiled for uses {', '.join(self._methods)} alone",
                hint="compile the pipeline for a call that uses it",
            )
        given = {**dict(zip(method.parameters, args, strict=False)), **kwargs}
        return method.program(**{name: value for name, value in given.items() if value is not None})


def _put(owner: Any, path: str, number: int) -> None:
    *parts, name = path.split(".")
    for part in parts:
        if not isinstance(owner.__dict__.get(part), SimpleNamespace):
            owner.__dict__[part] = SimpleNamespace()
        owner = owner.__dict__[part]
    owner.__dict__[name] = number


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
        pipeline: A `diffusers.DiffusionPipeline`.
        parts: The parts by the names of its components.

    Raises:
        InputError: It is no pipeline of diffusers.
    """
    components_of(pipeline)
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
        InputError: The pipeline has no compiled parts.
        FileError: The folder holds something already.
        ExportError, OSError: See `trt_runtime.save`.
    """
    from trt_runtime.program.saving import save

    components = components_of(pipeline)
    parts = {name: part for name, part in components.items() if isinstance(part, CompiledPart)}
    if not parts:
        raise InputError(
            "the pipeline has no compiled parts", hint="save what compile_pipeline or load_pipeline returned"
        )
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    if any(place.iterdir()):
        raise FileError(f"{place} holds something already", hint="give a new folder")
    manifest: dict[str, Any] = {"pipeline": type(pipeline).__name__, "parts": {}}
    for name, part in parts.items():
        methods = {}
        for method, compiled in part._methods.items():
            file = f"{name}.{method}.trtp"
            save(compiled.program, place / file, **options)
            methods[method] = {"file": file, "parameters": list(compiled.parameters)}
        manifest["parts"][name] = {"methods": methods, "numbers": dict(part._attributes.numbers)}
    for name, component in components.items():
        if name not in parts and hasattr(component, "save_pretrained"):
            component.save_pretrained(place / name)
    (place / _INDEX).write_text(pipeline.to_json_string(), encoding="utf-8")
    with replacing(place / MANIFEST) as stream:
        stream.write(json.dumps(manifest, indent=1).encode())


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
        name, described = _read_manifest(opened.file(MANIFEST))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(
            f"{place} holds no compiled pipeline", hint="give a folder that save_pipeline wrote"
        ) from error
    diffusers = _diffusers()
    kind = getattr(diffusers, name, None)
    if not isinstance(kind, type) or not issubclass(kind, diffusers.DiffusionPipeline):
        raise PlanError(f"diffusers has no pipeline {name!r:.80}", where=str(place), hint="install its newest release")
    try:
        parts = {
            part: CompiledPart(
                {
                    method: CompiledMethod(load(opened.file(file), **options), parameters)
                    for method, (file, parameters) in methods.items()
                },
                PartAttributes(numbers),
            )
            for part, (methods, numbers) in described.items()
        }
        index = _read_index(opened.file(_INDEX))
    except FileNotFoundError as error:
        raise PlanError(
            "a file of the pipeline is missing", where=str(error.filename), hint="copy the whole folder again"
        ) from error
    taken = inspect.signature(kind).parameters
    others = {
        part: _component(place / part, value) if isinstance(value, list) else value
        for part, value in index.items()
        if part in taken and part not in parts
    }
    pipeline = _made_by(kind, str(place), **others, **parts)
    # the classes that the parts were of
    pipeline.register_to_config(**{part: tuple(index[part]) for part in parts if isinstance(index.get(part), list)})
    return pipeline


def _component(folder: Path, described: Sequence[Any]) -> Any:
    """Reads what is no program: a scheduler, a tokenizer, a part that was not compiled.

    Raises:
        PlanError: It is of a library that pipelines have nothing from.
    """
    library, name = described
    if library is None:
        return None
    if library not in _LIBRARIES or name is None:
        raise PlanError(f"{folder.name} is of {library!r:.80}, not of {' or '.join(_LIBRARIES)}", where=str(folder))
    kind = getattr(importlib.import_module(library), name, None)
    is_part = isinstance(kind, type) and hasattr(kind, "from_pretrained")
    if kind is None or not is_part or issubclass(kind, _diffusers().DiffusionPipeline):
        raise PlanError(
            f"{library} has no part {name!r:.80}", where=str(folder), hint=f"install its newest release: {library}"
        )
    options = {"trust_remote_code": False} if library == "transformers" else {}  # else it asks whoever sits there
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


_Methods = dict[str, tuple[str, tuple[str, ...]]]


def _read_manifest(path: FilePath) -> tuple[str, dict[str, tuple[_Methods, dict[str, int]]]]:
    """Returns the name of the pipeline's class, and of each part its methods and numbers.

    Raises:
        PlanError: It is no such list.
    """
    content = map_file(path, "the list of a pipeline's programs", "trt_runtime.diffusion.save_pipeline")
    try:
        document = parse_json(bytes(content), max_bytes=_MAX_BYTES)
        values = typed.fields(document, "the list", ("pipeline", "parts"))
        described = {}
        for name, value in typed.mapping(values["parts"], "parts").items():
            part = typed.fields(value, name, ("methods", "numbers"))
            methods: _Methods = {}
            for method, entry in typed.mapping(part["methods"], name).items():
                found = typed.fields(entry, method, ("file", "parameters"))
                file = typed.text(found["file"], method, 256)
                if file != os.path.basename(file) or method not in ("forward", "decode", "encode"):
                    raise typed.BadField(name, f"{file!r:.80} is no program of the folder")
                methods[method] = file, typed.texts(found["parameters"], method)
            if not methods or not name.isidentifier():
                raise typed.BadField(name, "it has no methods, or no name of a part")
            numbers = {
                path: typed.integer(number, path)
                for path, number in typed.mapping(part["numbers"], name).items()
                if _is_place(path)
            }
            described[name] = methods, numbers
        if not 0 < len(described) <= _MOST_PARTS:
            raise typed.BadField("parts", f"{len(described)} are none, or too many")
        return typed.text(values["pipeline"], "pipeline", 256), described
    except BadJson as error:
        raise PlanError("the list of a pipeline's programs is damaged", where=str(path), why=str(error)) from error
    except typed.BadField as error:
        why = f"{error.place}: {error.why}"
        raise PlanError("the list of a pipeline's programs is damaged", where=str(path), why=why) from error


def _is_place(path: str) -> bool:
    """Whether a number may lie there: beside methods of a part, and not in their place."""
    first, *more = steps = path.split(".")
    names_are_plain = all(step.isidentifier() and not step.startswith("_") for step in steps)
    return names_are_plain and len(more) < _DEEPEST and not hasattr(CompiledPart, first) and first != "training"


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
