"""Files of mutable modules: the model's weights, and the programs that were compiled of it. Nothing in one is executed.

A file is a ZIP archive without compression: `weights.json` (name, type and shape of each tensor), `weights/N` (its
bytes), and `programs/N.trtp`.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Final

import torch
from torch import nn

from trt_core import FileError
from trt_core.dtypes import dtype_name, parse_dtype
from trt_core.errors import TrtError
from trt_core.files.opening import opened
from trt_core.files.replacing import Path, file_name, replacing
from trt_core.files.strict_json import parse_json
from trt_core.files.typed import fields, integers, items, text
from trt_core.weight_recipes import content_of
from trt_runtime import LoadedProgram
from trt_runtime.program.loading import program_from_memory
from trt_runtime.program.saving import program_of, write_program

_TABLE: Final = "weights.json"
_MAX_TABLE_BYTES: Final = 64 << 20


def write(path: Path, weights: Mapping[str, torch.Tensor], programs: Sequence[nn.Module]) -> None:
    """Writes a file; it appears complete or not at all.

    Args:
        path: The file.
        weights: Tensors by their names in the model.
        programs: What `compile` or `load` returned.

    Raises:
        ExportError: A program holds something that has no place in the format.
        OSError: The file cannot be written.
    """
    table = [
        {"name": name, "dtype": dtype_name(value.dtype), "shape": list(value.shape)} for name, value in weights.items()
    ]
    with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_TABLE, json.dumps(table))
        for number, value in enumerate(weights.values()):
            with archive.open(f"weights/{number}", "w", force_zip64=True) as entry:
                entry.write(content_of(value).numpy().data)
        for number, program in enumerate(programs):
            with tempfile.TemporaryFile() as whole:
                write_program(whole, program_of(program))
                whole.seek(0)
                with archive.open(f"programs/{number}.trtp", "w", force_zip64=True) as entry:
                    shutil.copyfileobj(whole, entry)


def read(path: Path, **trust: Any) -> tuple[dict[str, torch.Tensor], list[LoadedProgram]]:
    """Reads a file that `write` wrote; it may come from anyone.

    Args:
        path: The file.
        trust: See `trt_runtime.load`.

    Returns:
        The weights, on the CPU, and the programs.

    Raises:
        FileError: It is no such file, or damaged.
        PlanError: A program cannot be loaded; see `trt_runtime.load`.
        OSError: The file cannot be read.
    """
    name = file_name(path)
    try:
        with opened(name) as file, zipfile.ZipFile(file) as archive:
            return _weights(archive), _programs(archive, trust)
    except (TrtError, OSError):
        raise
    except (zipfile.BadZipFile, KeyError, ValueError, RuntimeError, NotImplementedError) as error:
        raise FileError(
            "this is no saved mutable module", where=name, why=str(error), hint="save it with MutableModule.save"
        ) from error


def _weights(archive: zipfile.ZipFile) -> dict[str, torch.Tensor]:
    table = parse_json(bytes(_content(archive, _TABLE, _MAX_TABLE_BYTES)), max_bytes=_MAX_TABLE_BYTES)
    weights = {}
    for number, value in enumerate(items(table, _TABLE)):
        entry = fields(value, f"{_TABLE}[{number}]", ("name", "dtype", "shape"))
        dtype = parse_dtype(text(entry["dtype"], "dtype"))
        shape = integers(entry["shape"], "shape")
        content = _content(archive, f"weights/{number}", math.prod(shape) * dtype.itemsize)
        if len(content) != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"weights/{number} has {len(content)} bytes, too few for {shape} of {dtype}")
        flat = torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)
        weights[text(entry["name"], "name")] = flat.reshape(shape)
    return weights


def _programs(archive: zipfile.ZipFile, trust: Mapping[str, Any]) -> list[LoadedProgram]:
    names = sorted(name for name in archive.namelist() if name.startswith("programs/"))
    return [program_from_memory(_content(archive, name), **trust) for name in names]


def _content(archive: zipfile.ZipFile, name: str, most: int | None = None) -> bytearray:
    """Reads an entry, whose checksum is verified; one that says it is larger than the file is damaged."""
    entry = archive.getinfo(name)
    if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
        raise ValueError(f"{name} is compressed")
    if most is not None and entry.file_size > most:
        raise ValueError(f"{name} has {entry.file_size} bytes, at most {most} belong there")
    file: Any = archive.fp
    end = _size_of(file)
    if entry.file_size > end:
        raise ValueError(f"{name} says it has {entry.file_size} bytes, and the file has {end}")
    content = bytearray(entry.file_size)
    with archive.open(entry) as stream:
        view, done = memoryview(content), 0
        while done < len(content):
            count = stream.readinto(view[done:])  # type: ignore[attr-defined]  # its stub does not know
            if not count:
                raise ValueError(f"{name} ends early")
            done += count
        stream.read(1)  # past the end, where the checksum is compared
    return content


def _size_of(file: BinaryIO) -> int:
    place = file.tell()
    end = file.seek(0, 2)
    file.seek(place)
    return end
