"""Compiled artifacts: what a tactic made of an engine at build, for one device and one PyTorch.

An artifact is data: a document (JSON) that says which kernels run on which memory, and the kernels' machine
code. Nothing in it is evaluated or unpickled. It is code all the same, so an engine runs it only where its
plan is trusted (`is_trusted`).
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

import torch

from trt_core.files import records, typed
from trt_core.files.records import Form, Row
from trt_core.files.strict_json import parse_json
from trt_core.forked_lock import ForkedLock
from trt_core.sizes.conditions import Condition, all_hold, check_condition
from trt_portable.plan.engine_info import Shape
from trt_portable.plan.extents import sizes_by_symbol, symbols_of_ranks

_LENGTH: Final = struct.Struct("<Q")
_MAX_REMEMBERED: Final = 4096
_built_here: dict[bytes, None] = {}  # digests in order of age
_lock: Final = ForkedLock()


def machine_of(device: torch.device) -> dict[str, str]:
    """What machine code and the calls around it depend on: PyTorch, its CUDA, and the kind of GPU."""
    machine = {"torch": str(torch.__version__), "device": device.type}
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        machine["cuda"] = str(torch.version.cuda)
        machine["capability"] = f"{major}.{minor}"
        machine["name"] = torch.cuda.get_device_name(device)
    return machine


@dataclass(frozen=True)
class Varying(Row):
    """An extent of an input that an artifact leaves open.

    Attributes:
        source: Index of the input.
        axis: Of its shape.
        least: The smallest extent that the artifact serves.
        most: The largest.
    """

    source: int
    axis: int
    least: int
    most: int


@dataclass(frozen=True)
class Artifact:
    """A program compiled for fixed input shapes, or for a range of them.

    Attributes:
        tactic: Name of the tactic that made it.
        machine: `machine_of` the device it was made on.
        shapes: Shape of each input; where extents vary, those that it was compiled and tuned at.
        document: JSON-compatible description of what runs.
        blobs: Machine code and constants by name.
        varying: The extents that it leaves open.
        conditions: What else it asks of extents, in the symbols of `trt_portable.plan.extents`.
    """

    tactic: str
    machine: Mapping[str, str]
    shapes: tuple[Shape, ...]
    document: Mapping[str, Any]
    blobs: Annotated[Mapping[str, bytes], Form(typed.mapping)] = field(default_factory=dict)
    varying: tuple[Varying, ...] = ()
    conditions: tuple[Condition, ...] = ()

    def serves(self, shapes: tuple[Shape, ...]) -> bool:
        """Whether it computes inputs of these shapes."""
        if shapes == self.shapes:
            return True
        if not self.varying or list(map(len, shapes)) != list(map(len, self.shapes)):
            return False
        usual = [list(shape) for shape in shapes]
        for each in self.varying:
            if not each.least <= shapes[each.source][each.axis] <= each.most:
                return False
            usual[each.source][each.axis] = self.shapes[each.source][each.axis]
        is_fixed = tuple(map(tuple, usual)) == self.shapes
        return is_fixed and (not self.conditions or all_hold(self.conditions, sizes_by_symbol(shapes)))


def write_artifacts(artifacts: Sequence[Artifact]) -> bytes:
    """Artifacts as bytes: the length of a JSON table, the table, and the blobs it refers to."""
    blobs: list[bytes] = []
    offsets: dict[str, list[int]] = {}
    end = 0
    entries = []
    for artifact in artifacts:
        places = {}
        for name, data in artifact.blobs.items():
            digest = hashlib.sha256(data).hexdigest()
            if digest not in offsets:  # the same kernel serves several shapes
                offsets[digest] = [end, end + len(data)]
                blobs.append(data)
                end += len(data)
            places[name] = offsets[digest]
        entries.append(records.write(artifact) | {"blobs": places})
    table = json.dumps(entries, separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(table)), table, *blobs])


def read_artifacts(section: bytes) -> list[Artifact]:
    """Inverse of `write_artifacts`; an empty section holds none.

    Raises:
        ValueError: Not a section of artifacts.
    """
    if not section:
        return []
    try:
        (length,) = _LENGTH.unpack_from(section)
        start = _LENGTH.size + length
        table = parse_json(section[_LENGTH.size : start], max_bytes=len(section))
        entries = typed.items(table, "the table of compiled artifacts")
        return [_read_artifact(entry, section, start) for entry in entries]
    except (TypeError, ValueError, RecursionError, struct.error) as error:
        raise ValueError(f"not a section of compiled artifacts: {error}") from error


def _read_artifact(entry: Any, section: bytes, start: int) -> Artifact:
    artifact = records.read(Artifact, entry, "a compiled artifact")
    ranks = list(map(len, artifact.shapes))
    for each in artifact.varying:
        if each.source >= len(ranks) or each.axis >= ranks[each.source] or not 0 < each.least <= each.most:
            raise ValueError(f"no extent varies as {each} says")
    for condition in artifact.conditions:
        check_condition(condition, "a condition of a compiled artifact", symbols_of_ranks(ranks))
    return replace(artifact, blobs={name: _piece(section, start, place) for name, place in artifact.blobs.items()})


def _piece(section: bytes, start: int, place: Any) -> bytes:
    begin, end = typed.integers(place, "the place of code")
    if not begin <= end <= len(section) - start:
        raise ValueError("code of a compiled artifact lies outside the plan")
    return section[start + begin : start + end]


def trust(section: bytes) -> None:
    """Remembers, for the life of the process, a section that was built here."""
    with _lock:
        _built_here[hashlib.sha256(section).digest()] = None
        while len(_built_here) > _MAX_REMEMBERED:
            del _built_here[next(iter(_built_here))]


def is_trusted(section: bytes) -> bool:
    """Whether a section was built in this process."""
    return hashlib.sha256(section).digest() in _built_here
