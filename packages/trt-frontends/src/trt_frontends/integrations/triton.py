"""Model repositories of Triton Inference Server: a saved program with the configuration that the server reads.

Programs are served by Triton's Python backend, which needs trt-runtime in its Python; plans of TensorRT by its own
backend, which needs nothing else.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import mmap
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from trt_core import InputError, Provider
from trt_core.files.opening import read_file
from trt_core.files.replacing import replacing
from trt_core.files.staging import leftovers, locked_folder, take_away
from trt_core.held_arguments import held_to_signature
from trt_runtime.command_line.inspection import content_of, inspect_file, require_one_process
from trt_runtime.engine_file import plan_from_memory
from trt_runtime.triton_model import PROGRAM_FILE, TEXT_INPUTS, TEXT_OPTIONS

_TYPES: Final = {
    "bfloat16": "TYPE_BF16",
    "bool": "TYPE_BOOL",
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    "int16": "TYPE_INT16",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "int8": "TYPE_INT8",
    "uint8": "TYPE_UINT8",
}
_NUMBERS: Final = {"bool": "TYPE_BOOL", "float": "TYPE_FP64", "int": "TYPE_INT64"}
_MODEL: Final = f'''"""Serves {PROGRAM_FILE}."""

from trt_runtime.triton_model import %s

__all__ = ["TritonPythonModel"]
'''
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_MOST_CONFIG: Final = 1 << 24
_MOST_COUNT: Final = (1 << 31) - 1
"""Counts of a configuration are int32 (Triton's `model_config.proto`)."""
_STAGED: Final = "triton"
_LOCK: Final = ".lock"
"""A model is made in a folder beside its repository, with a file that is locked meanwhile."""
_COUNTS: Final = re.compile(r"^(?:instance_group \{ kind: \w+ )?(max_batch_size|count): ([0-9]{1,10})\b", re.MULTILINE)
_DELAY_MICROSECONDS: Final = 500


@dataclass(frozen=True)
class _Tensor:
    """An input or output as the configuration has it.

    Attributes:
        name: Its name.
        type: Name of its type.
        dims: Its sizes, -1 for those that vary.
        rows: Name of its first size, where that varies.
        most: Greatest first size.
        is_optional: Whether a request may leave it out.
    """

    name: str
    type: str
    dims: tuple[int, ...]
    rows: str = ""
    most: int = 0
    is_optional: bool = False


@dataclass(frozen=True)
class TritonModel:
    """What a model repository says of a model.

    Attributes:
        name: Its name.
        backend: `python` or `tensorrt`.
        inputs, outputs: Its tensors.
        max_batch_size: Most rows of a call; 0 for a model whose requests are not put together.
        kind: `KIND_GPU` or `KIND_CPU`.
        instances: How many run at the same time.
        files: What the repository holds, by name.
        is_decoupled: Whether a request may have any number of responses.
    """

    name: str
    backend: str
    inputs: tuple[_Tensor, ...]
    outputs: tuple[_Tensor, ...]
    max_batch_size: int
    kind: str
    instances: int
    files: Mapping[str, bytes | mmap.mmap] = field(default_factory=dict, compare=False)
    is_decoupled: bool = False

    def to_config(self) -> str:
        """Returns the text of `config.pbtxt`."""
        lines = [f"name: {_quoted(self.name)}", f"backend: {_quoted(self.backend)}"]
        lines.append(f"max_batch_size: {self.max_batch_size}")
        for kind, tensors in (("input", self.inputs), ("output", self.outputs)):
            for tensor in tensors:
                dims = tensor.dims[1:] if self.max_batch_size else tensor.dims
                lines += [f"{kind} {{", f"  name: {_quoted(tensor.name)}", f"  data_type: {tensor.type}"]
                lines.append(f"  dims: [ {', '.join(map(str, dims or (1,)))} ]")
                lines += [] if dims else ["  reshape { shape: [ ] }"]
                lines += ["  optional: true"] if tensor.is_optional else []
                lines.append("}")
        lines.append(f"instance_group {{ kind: {self.kind} count: {self.instances} }}")
        if self.max_batch_size:
            lines.append(f"dynamic_batching {{ max_queue_delay_microseconds: {_DELAY_MICROSECONDS} }}")
        if self.is_decoupled:
            lines.append("model_transaction_policy { decoupled: true }")
        return "\n".join(lines) + "\n"


@held_to_signature
def export_triton(
    path: str | os.PathLike[str],
    repository: str | os.PathLike[str],
    *,
    name: str | None = None,
    version: int = 1,
    instances: int | None = None,
    max_batch_size: int | None = None,
) -> Path:
    """Writes a saved program, or a plan of TensorRT, into a model repository of Triton Inference Server.

    Where the first size of all inputs and outputs is the same and varies, the server puts requests together: that many
    rows at most, the greatest that the program takes unless `max_batch_size` says less.

    A program that generates text takes `input_ids`, and if a client likes `attention_mask` and how to choose tokens; it
    sends a response for each token, so its clients stream.

    Args:
        path: A file that `trt_runtime.save` wrote, or a plan for TensorRT that `trt_runtime.write_plan` wrote.
        repository: The folder of all models; made where it is missing.
        name: Name of the model; by default that of the file.
        version: Its version. A model that is there gets a further one; it must take and return the same.
        instances: How many of it run at the same time, on each GPU or in all; by default as of earlier versions, or 1.
        max_batch_size: Most rows of a call; 0 to put no requests together. By default no more than in earlier versions.

    Returns:
        The folder of the model.

    Raises:
        InputError: Triton cannot serve this, or the model is there in this version or with another configuration.
        PlanError: The file is damaged, or none of ours.
        OSError: It cannot be read, or the repository not be written.
    """
    source = Path(path)
    chosen = source.name.partition(".")[0] if name is None else name
    if not _NAME.fullmatch(chosen):
        raise InputError(
            f"{chosen!r:.200} is no name of a model",
            hint="255 letters, digits, '_', '-' and '.'; give name=...",
        )
    given = (("version", version, 1), ("instances", instances, 1), ("max_batch_size", max_batch_size, 0))
    for what, number, least in given:
        if number is not None and (isinstance(number, bool) or not least <= number <= _MOST_COUNT):
            raise InputError(f"{what} is a number from {least} to {_MOST_COUNT}, not {number}")
    if os.path.exists(repository) and not os.path.isdir(repository):
        raise InputError("a model repository is a folder, and this is a file", where=os.fspath(repository))
    before = _config_of(Path(repository, chosen))
    counts = {key: int(number) for key, number in _COUNTS.findall(before or "")}
    model = _describe(source, chosen, instances or counts.get("count", 1), max_batch_size)
    if max_batch_size is None:
        most = model.max_batch_size
        model = replace(model, max_batch_size=min(most, counts.get("max_batch_size", most)))
    return _publish(model, Path(repository), version, before)


def _config_of(folder: Path) -> str | None:
    """What the repository says of a model; None where it is not there."""
    if not folder.exists():
        return None
    return read_file(str(folder / "config.pbtxt"), _MOST_CONFIG).decode(errors="replace")


def _describe(source: Path, name: str, instances: int, max_batch_size: int | None) -> TritonModel:
    content = content_of(source)  # opened once: what is described is what is served
    found = inspect_file(source, content)
    if found["kind"] == "plan":
        return _of_plan(source, content, name, instances, max_batch_size)
    require_one_process(found, str(source))
    if found["generation"] is not None:
        return _of_generator(source, content, found, name, instances, max_batch_size)
    read = [entry for entry in found["inputs"] if "always" not in entry]
    returned = [entry for entry in found["outputs"] if entry.get("always", "") is not None]
    inputs, outputs = _tensors(read, "input", str(source)), _tensors(returned, "output", str(source))
    size = _batch_size(inputs, outputs, max_batch_size)
    files = _files_of(content, "TritonPythonModel")
    return TritonModel(name, "python", inputs, outputs, size, _kind_of(found), instances, files)


def _kind_of(found: Mapping[str, Any]) -> str:
    """The kind of device that a program, as `inspect_file` describes it, runs on."""
    devices = {entry.get("device") for entry in found["inputs"] + found["outputs"]}
    return "KIND_GPU" if "cuda" in devices else "KIND_CPU"


def _files_of(content: mmap.mmap, served_by: str) -> dict[str, bytes | mmap.mmap]:
    return {PROGRAM_FILE: content, "model.py": (_MODEL % served_by).encode()}


def _of_generator(
    source: Path,
    content: mmap.mmap,
    found: Mapping[str, Any],
    name: str,
    instances: int,
    max_batch_size: int | None,
) -> TritonModel:
    reads = found["generation"]["source"]
    if reads is not None and not reads["max_length"]:
        raise InputError(
            f"the generator reads {', '.join(reads['inputs'])}, and only those that read text are served",
            where=str(source),
            hint="load it with TextGenerator.load in a model.py of your own",
        )
    if max_batch_size:
        raise InputError(
            "requests for a generator are not put together",
            why="they share its caches, so each is generated alone; it may have several rows itself",
            hint="leave max_batch_size out",
        )
    inputs = [_Tensor(name, _TYPES[dtype], (-1, -1)) for name, dtype in TEXT_INPUTS.items()]
    inputs[1:] = [replace(mask, is_optional=True) for mask in inputs[1:]]
    inputs += [_Tensor(name, _TYPES[dtype], (1,), is_optional=True) for name, dtype in TEXT_OPTIONS.items()]
    files = _files_of(content, "TritonTextModel as TritonPythonModel")
    tokens = (_Tensor("tokens", "TYPE_INT64", (-1,)),)
    return TritonModel(name, "python", tuple(inputs), tokens, 0, _kind_of(found), instances, files, is_decoupled=True)


def _of_plan(source: Path, content: mmap.mmap, name: str, instances: int, max_batch_size: int | None) -> TritonModel:
    header, plan = plan_from_memory(content, where=str(source), check=False)  # whoever serves it checks
    if header.provider != Provider.TENSORRT.value:
        raise InputError(
            "a plan alone is served by TensorRT's backend, and this one is for trt_portable",
            where=str(source),
            hint="export a saved program, x.trtp: Triton's Python backend serves it",
        )
    if max_batch_size:
        raise InputError(
            "requests for a plan of TensorRT are not put together here",
            why="its sizes are those of an engine with explicit batch, which are served as they are",
            hint="leave max_batch_size out, or export a saved program",
        )
    tensors = {
        kind: tuple(
            _Tensor(
                binding.name,
                _type_of(str(binding.dtype).removeprefix("torch."), binding.name, str(source)),
                tuple(extent if isinstance(extent, int) else -1 for extent in binding.shape),
            )
            for binding in bindings
        )
        for kind, bindings in (("inputs", header.inputs), ("outputs", header.outputs))
    }
    files = {"model.plan": plan.numpy().tobytes()}
    return TritonModel(name, "tensorrt", tensors["inputs"], tensors["outputs"], 0, "KIND_GPU", instances, files)


def _tensors(entries: Sequence[Mapping[str, Any]], kind: str, where: str) -> tuple[_Tensor, ...]:
    found: dict[str, _Tensor] = {}
    for index, entry in enumerate(entries):
        name = re.sub(r"^output\['?([^\]']+)'?\]$", r"\1", entry["name"])
        name = f"output_{name}" if name.isdigit() else re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_")
        name = name or f"{kind}_{index}"
        if name in found:
            raise InputError(f"two tensors of the program would be called {name!r}", where=where)
        if "number" in entry:
            found[name] = _Tensor(name, _NUMBERS[entry["number"]], ())
            continue
        if "shape" not in entry:
            raise InputError(f"{entry['name']} is always {entry.get('always')!r}, which Triton cannot say", where=where)
        shape = entry["shape"]
        dims = tuple(-1 if isinstance(extent, dict) else extent for extent in shape)
        first = shape[0] if shape and isinstance(shape[0], dict) else {}
        rows, most = first.get("name", ""), first.get("max") or 0
        found[name] = _Tensor(name, _type_of(entry["dtype"], name, where), dims, rows, most)
    return tuple(found.values())


def _type_of(dtype: str, name: str, where: str) -> str:
    if dtype not in _TYPES:
        raise InputError(f"Triton has no type for {name!r}, which is {dtype}", where=where)
    return _TYPES[dtype]


def _batch_size(inputs: Sequence[_Tensor], outputs: Sequence[_Tensor], wanted: int | None) -> int:
    """Most rows of a call; 0 where the first sizes are not one size that varies.

    Raises:
        InputError: More are wanted than there can be.
    """
    rows = {tensor.rows for tensor in (*inputs, *outputs)}
    is_one = len(rows) == 1 and "" not in rows
    possible = min((*(tensor.most for tensor in inputs), _MOST_COUNT)) if is_one and inputs else 0
    if wanted is not None and wanted > possible:
        raise InputError(
            f"max_batch_size={wanted} is more than the {possible} rows that a call takes",
            why="" if possible else "the first sizes of inputs and outputs are not one size that varies",
            hint="compile the model for more rows, or give less",
        )
    return possible if wanted is None else wanted


def _publish(model: TritonModel, repository: Path, version: int, before: str | None) -> Path:
    """Lets a version of a model appear whole, or not at all, where the repository says the same of the model before."""
    target = repository / model.name
    config = model.to_config()
    if (target / str(version)).exists():
        raise InputError(f"version {version} of the model is there already", where=str(target), hint="give version=...")
    if before is not None and before != config:
        lines = zip_longest(before.splitlines(), config.splitlines(), fillvalue="")
        there, here = next(((old, new) for old, new in lines if old != new), ("other ends of lines", ""))
        raise InputError(
            "the model is there, and takes, returns or runs something else",
            where=str(target / "config.pbtxt"),
            why=f"that says {there.strip()!r:.200}, and this would be {here.strip()!r:.200}",
            hint="give it another name",
        )
    repository.mkdir(parents=True, exist_ok=True)
    # beside the repository: a server that watches the repository sees no half of a model
    beside = repository.absolute().parent
    is_mounted = beside.stat().st_dev != repository.stat().st_dev  # nothing is renamed from one file system to another
    place = repository if is_mounted else beside
    for left in leftovers(place, _STAGED, _LOCK):
        with contextlib.suppress(OSError):
            take_away(left)
    with contextlib.ExitStack() as held:
        staging = locked_folder(place, _STAGED, _LOCK, held, functools.partial(shutil.rmtree, ignore_errors=True))
        staged = staging / model.name
        folder = staged / str(version)
        folder.mkdir(parents=True)
        for name, content in model.files.items():
            with replacing(folder / name) as file:
                file.write(content)
        with replacing(staged / "config.pbtxt") as file:
            file.write(config.encode())
        try:
            if target.exists():
                folder.rename(target / str(version))
            else:
                staged.rename(target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise InputError(
                "somebody else has exported the model meanwhile",
                where=str(target),
                hint="export it again, or give another version=...",
            ) from error
    return target


def _quoted(text: str) -> str:
    return json.dumps(text)
