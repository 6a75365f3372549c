"""The plan: sections of a container, a JSON structure, raw weights, and what was compiled. No pickle.

The weights are a safetensors segment: u64 length, JSON table, raw data. The raw data start at a multiple of 64 bytes,
and so does every tensor: weights are used in place. `trt_core.files.container` has the header, the table of sections
and the checksums over every byte.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy
import torch

from trt_core.errors import PlanError as FilePlanError
from trt_core.files import typed
from trt_core.files.container import Container, Section
from trt_core.files.strict_json import parse_json
from trt_portable.api_version import RELEASE
from trt_portable.errors import PortableError, is_out_of_memory
from trt_portable.memory import IHostMemory, filled_in_file, zeros
from trt_portable.plan import tables
from trt_portable.plan.tables import FORMAT_VERSION
from trt_portable.plan.weight_table import LARGE_BYTES, WeightTable

MAGIC: Final = b"TRTPORT\n"
# What a reader of this version understands; a plan that uses anything else is refused by name.
KNOWN_FEATURES: Final = frozenset({"loops", "conditionals", "plugins", "stripped"})

_ALIGNMENT: Final = 64
_MOST_JSON_BYTES: Final = 1 << 30
"""Longest text of a plan, whose values are bounded besides."""


class SectionKind(IntEnum):
    """What a section of a plan holds; the last one may be missing."""

    STRUCTURE = 1
    WEIGHTS = 2
    COMPILED = 3


PLAN: Final = Container(
    magic=MAGIC,
    version=FORMAT_VERSION,
    kinds=SectionKind,
    alignment=_ALIGNMENT,
    noun="plan",
    reader="trt-portable",
    writer="IBuilder.build_serialized_network",
    again="build the engine again",
)
"""The file of one engine."""

_SAFETENSORS_NAMES: Final[dict[torch.dtype, str]] = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int8: "I8",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e8m0fnu: "F8_E8M0",
}
_TORCH_TYPES: Final = {name: dtype for dtype, name in _SAFETENSORS_NAMES.items()}


class PlanError(PortableError):
    """Bytes are not a plan that this version can run; the message says what does not match."""


@dataclass(frozen=True)
class Plan:
    """A plan that was read and verified.

    Attributes:
        structure: What the JSON part says.
        weights: Host tensors by name: views of the plan's own bytes.
        data: The region of raw weights, uint8, which holds every tensor of `weights`.
        offsets: First byte of each tensor inside `data`.
        compiled: The section of compiled artifacts; nothing has looked into it.
        owner: The buffer that the views look into; must live as long as they do.
    """

    structure: dict[str, Any]
    weights: dict[str, torch.Tensor]
    data: torch.Tensor
    offsets: dict[str, int]
    compiled: bytes
    owner: object


@contextlib.contextmanager
def reading(section: str, plan: Plan) -> Iterator[None]:
    """Makes an error of ours of whatever a section that makes no sense leads to.

    Args:
        section: What messages call it.
        plan: The plan that holds it.

    Raises:
        PlanError: Names the section, the format, and who wrote the plan.
    """
    try:
        yield
    except PlanError:
        raise
    except Exception as error:  # tables are read by type; this is for what only their combination shows
        if is_out_of_memory(error):
            raise
        why = str(error) if isinstance(error, (PortableError, TypeError, ValueError)) else repr(error)
        writer = f"trt-portable {str(plan.structure.get('provider_version'))[:40]}"
        versions = f"format {FORMAT_VERSION}, written by {writer}, read by {RELEASE}"
        raise PlanError(f"{section} of the plan cannot be read: {why} ({versions})") from error


def write_plan(
    structure: Mapping[str, Any],
    weights: Mapping[str, torch.Tensor],
    features: Iterable[str] = (),
    compiled: bytes = b"",
) -> IHostMemory:
    """Serializes a plan straight to where it stays: memory of its final size, or a file where it is large.

    Args:
        structure: JSON-compatible description of the engine.
        weights: Tensors by name, on any device; copied once, or computed where they will lie.
        features: Names out of `KNOWN_FEATURES` that a reader must understand.
        compiled: Section of compiled artifacts.
    """
    document = {
        "provider": "trt_portable",
        "provider_version": RELEASE,
        "torch_version": str(torch.__version__),
        "features": sorted(features),
        **structure,
    }
    text = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    weights = WeightTable(weights)
    table, offsets, data_bytes = _tensor_table(weights)
    sizes = [(SectionKind.STRUCTURE, len(text)), (SectionKind.WEIGHTS, len(table) + data_bytes)]
    if compiled:
        sizes.append((SectionKind.COMPILED, len(compiled)))
    sections = PLAN.arrange(sizes)
    num_bytes = sections[-1].offset + sections[-1].size

    def fill(memory: IHostMemory) -> None:
        content = memoryview(memory)
        for section, data in zip(sections, (text, table, compiled), strict=False):
            content[section.offset : section.offset + len(data)] = data
        view = memory.as_tensor()
        data_offset = sections[1].offset + len(table)
        targets = {}
        for name in weights:
            dtype, shape = weights.spec(name)
            if math.prod(shape):
                begin = data_offset + offsets[name]
                targets[name] = view[begin : begin + math.prod(shape) * dtype.itemsize].view(dtype)
        weights.write_all(targets)
        PLAN.seal(content, sections)

    in_file = filled_in_file(num_bytes, fill) if num_bytes >= LARGE_BYTES else None
    if in_file is not None:
        return in_file
    memory = zeros(num_bytes)
    fill(memory)
    return memory


def read_plan(buffer: Any, *, is_verified: bool = False) -> Plan:
    """Verifies a plan and opens its parts in place.

    Memory that cannot change under the engine (``bytes``, other read-only buffers, `IHostMemory`) is
    used without a copy; any other buffer is copied once, because its owner may write to it later.

    Args:
        buffer: A bytes-like object.
        is_verified: The caller has found the bytes undamaged by a checksum of its own; this one is not computed.

    Raises:
        PlanError: The bytes are truncated, corrupted, foreign, or need a newer version.
        TypeError: Not a bytes-like object.
    """
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise PlanError("the serialized engine must be one contiguous block of bytes")
    view = view.cast("B")
    owner: object = buffer
    if not (view.readonly or isinstance(buffer, IHostMemory)):
        owner = bytes(view)
        view = memoryview(owner)
    structure, weights, *compiled = _sections(view, is_verified=is_verified)
    document = _parse_structure(bytes(structure.of(view)))
    data, tensors, offsets = _open_weights(weights.of(view))
    return Plan(document, tensors, data, offsets, b"".join(bytes(section.of(view)) for section in compiled), owner)


def _sections(view: memoryview, *, is_verified: bool) -> tuple[Section, ...]:
    """The sections of a plan, checked unless that was done before."""
    start = bytes(view[: len(MAGIC)])
    if start != MAGIC:
        raise PlanError(
            f"not a trt-portable plan: it starts with {start!r} instead of {MAGIC!r}; a plan built by "
            "TensorRT itself needs the tensorrt provider"
        )
    try:
        sections = PLAN.read(view)
        kinds = [section.kind for section in sections]
        if kinds != list(SectionKind)[: max(len(kinds), 2)]:
            raise PLAN.damaged("it must have a structure and weights")
        for section in () if is_verified else sections:
            PLAN.verify(view, section)
    except FilePlanError as error:
        raise PlanError("; ".join(filter(None, (error.what, error.why, error.hint)))) from error
    return sections


def _parse_structure(text: bytes) -> dict[str, Any]:
    try:
        structure = parse_json(text, max_bytes=_MOST_JSON_BYTES)
    except ValueError as error:
        raise PlanError(f"the structure is not JSON: {error}") from error
    if not isinstance(structure, dict) or structure.get("provider") != "trt_portable":
        raise PlanError("the structure does not describe a trt-portable engine")
    features = structure.get("features")
    if not isinstance(features, list) or not all(isinstance(feature, str) for feature in features):
        raise PlanError("the structure does not say which features it uses")
    unknown = sorted(set(features) - KNOWN_FEATURES)
    if unknown:
        raise PlanError(
            f"the plan (written by trt-portable {structure.get('provider_version')}) uses features that "
            f"this version, {RELEASE}, does not know: {', '.join(unknown)}"
        )
    return structure


def _tensor_table(weights: WeightTable) -> tuple[bytes, dict[str, int], int]:
    """The safetensors table of contents, each tensor's first byte, and the size of the data."""
    entries: dict[str, Any] = {}
    offsets: dict[str, int] = {}
    end = 0
    for name in weights:
        dtype, shape = weights.spec(name)
        begin = -(-end // _ALIGNMENT) * _ALIGNMENT
        if begin > end:  # safetensors allows no holes, so padding is a tensor of its own
            entries[f"__pad__{len(entries)}"] = {
                "dtype": "U8",
                "shape": [begin - end],
                "data_offsets": [end, begin],
            }
        end = begin + math.prod(shape) * dtype.itemsize
        offsets[name] = begin
        entries[name] = {
            "dtype": _SAFETENSORS_NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [begin, end],
        }
    table = json.dumps(entries, separators=(",", ":")).encode()
    table = table + b" " * (-(len(table) + 8) % _ALIGNMENT)
    return struct.pack("<Q", len(table)) + table, offsets, end


def _open_weights(view: memoryview) -> tuple[torch.Tensor, dict[str, torch.Tensor], dict[str, int]]:
    try:
        (table_bytes,) = struct.unpack_from("<Q", view)
        data_at = 8 + table_bytes
        if data_at > view.nbytes:
            raise PlanError("corrupted: the table of weights is longer than the weights")
        entries = parse_json(bytes(view[8:data_at]), max_bytes=_MOST_JSON_BYTES)
        data = _bytes_tensor(view[data_at:])
        weights, offsets = {}, {}
        for name, entry in typed.mapping(entries, "the table of weights").items():
            entry = typed.fields(entry, f"the entry of weights {name!r:.60}", tables.WEIGHTS)
            if name.startswith("__pad__"):
                continue
            begin, end = entry["data_offsets"]
            if not 0 <= begin <= end <= data.numel():
                raise PlanError(f"corrupted: weights {name!r} lie outside the plan")
            tensor = data[begin:end].view(_TORCH_TYPES[entry["dtype"]])
            weights[name] = tensor.view(entry["shape"])
            offsets[name] = begin
    except PlanError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, struct.error) as error:
        raise PlanError(f"corrupted table of weights: {error}") from error
    return data, weights, offsets


def _bytes_tensor(view: memoryview) -> torch.Tensor:
    """A buffer as a uint8 tensor that keeps it; by address, since PyTorch's own adapter objects to read-only memory."""
    if not view.nbytes:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    address = _address_of(view)
    if address % 16:  # vector instructions of some kernels want aligned operands
        return torch.tensor(bytearray(view), dtype=torch.uint8, device="cpu")
    memory = (ctypes.c_uint8 * view.nbytes).from_address(address)
    memory.owner = view  # type: ignore[attr-defined]  # no map is closed under it
    return torch.frombuffer(memoryview(memory), dtype=torch.uint8)


def _address_of(view: memoryview) -> int:
    address: int = numpy.frombuffer(view, dtype=numpy.uint8).__array_interface__["data"][0]
    return address
