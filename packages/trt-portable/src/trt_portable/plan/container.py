"""The plan container: a JSON structure and raw weights behind a checksummed header. No pickle.

Layout, little endian::

    0    magic             8 bytes
    8    format version    u32
    12   header bytes      u32, always 128
    16   total bytes       u64
    24   structure offset  u64   JSON, UTF-8, padded with spaces
    32   structure bytes   u64
    40   weights offset    u64   a safetensors segment: u64 length, JSON table, raw data
    48   weights bytes     u64
    56   checksum          32 bytes
    88   compiled offset   u64   a section of compiled artifacts, after the weights
    96   compiled bytes    u64   0 where there is none

The raw data start at a multiple of 64 bytes and so does every tensor, so weights are used in place.
The checksum is SHA-256 over the header (with a zero checksum) and the SHA-256 of each 16 MiB chunk that
follows, so chunks are hashed on several threads and every byte of the plan is covered.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy
import torch

from trt_portable.errors import PortableError, is_out_of_memory
from trt_portable.installation import RELEASE
from trt_portable.memory import IHostMemory, wrap_address
from trt_portable.plan import tables, typed
from trt_portable.plan.tables import FORMAT_VERSION
from trt_portable.plan.weight_table import WeightTable

MAGIC: Final = b"TRTPORT\n"
# What a reader of this version understands; a plan that uses anything else is refused by name.
KNOWN_FEATURES: Final = frozenset({"loops", "conditionals", "plugins", "stripped"})

_HEADER: Final = struct.Struct("<8sIIQQQQQ32sQQ")
_HEADER_BYTES: Final = 128
_ALIGNMENT: Final = 64
_CHUNK_BYTES: Final = 16 << 20
_MAX_HASH_THREADS: Final = 8
_CHECKSUM_OFFSET: Final = 56
_CHECKSUM_BYTES: Final = 32

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
    """Serializes a plan straight into one buffer of its final size.

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
    text = _padded(json.dumps(document, separators=(",", ":")).encode())
    weights = WeightTable(weights)
    table, offsets, data_bytes = _tensor_table(weights)
    structure_offset = _HEADER_BYTES
    weights_offset = structure_offset + len(text)
    weights_bytes = len(table) + data_bytes
    compiled_offset = weights_offset + weights_bytes
    total = compiled_offset + len(compiled)
    memory = IHostMemory(total)
    memory[compiled_offset:total] = compiled
    memory[structure_offset : structure_offset + len(text)] = text
    memory[weights_offset : weights_offset + len(table)] = table
    view = memory.as_tensor()
    data_offset = weights_offset + len(table)
    for name in weights:
        dtype, shape = weights.spec(name)
        if math.prod(shape):
            begin = data_offset + offsets[name]
            weights.write(name, view[begin : begin + math.prod(shape) * dtype.itemsize].view(dtype))
    _HEADER.pack_into(
        memory,
        0,
        MAGIC,
        FORMAT_VERSION,
        _HEADER_BYTES,
        total,
        structure_offset,
        len(text),
        weights_offset,
        weights_bytes,
        bytes(_CHECKSUM_BYTES),
        compiled_offset,
        len(compiled),
    )
    digest = _checksum(memoryview(memory))
    memory[_CHECKSUM_OFFSET : _CHECKSUM_OFFSET + _CHECKSUM_BYTES] = digest
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
    bounds = _check_header(view, is_verified=is_verified)
    structure = _parse_structure(bytes(view[bounds.structure]))
    data, weights, offsets = _open_weights(view, bounds.weights)
    return Plan(structure, weights, data, offsets, bytes(view[bounds.compiled]), owner)


@dataclass(frozen=True)
class _Bounds:
    structure: slice
    weights: slice
    compiled: slice


def _check_header(view: memoryview, *, is_verified: bool) -> _Bounds:
    size = view.nbytes
    if size < len(MAGIC) or bytes(view[: len(MAGIC)]) != MAGIC:
        found = bytes(view[: len(MAGIC)])
        raise PlanError(
            f"not a trt-portable plan: it starts with {found!r} instead of {MAGIC!r}; a plan built by "
            "TensorRT itself needs the tensorrt provider"
        )
    if size < _HEADER_BYTES:
        raise PlanError(f"truncated: {size} bytes, but the header alone has {_HEADER_BYTES}")
    fields = _HEADER.unpack_from(view, 0)
    _, version, header_bytes, total, structure_at, structure_bytes = fields[:6]
    weights_at, weights_bytes, checksum, compiled_at, compiled_bytes = fields[6:]
    if version != FORMAT_VERSION:
        raise PlanError(
            f"the plan has format {version}, and this version, trt-portable {RELEASE}, reads format {FORMAT_VERSION}; "
            "build the engine again, or install the trt-portable that wrote it"
        )
    if header_bytes != _HEADER_BYTES:
        raise PlanError(f"corrupted header: it has {header_bytes} bytes")
    if total != size:
        kind = "truncated" if size < total else "followed by foreign bytes"
        raise PlanError(f"{kind}: the header announces {total} bytes, the buffer has {size}")
    if not is_verified and _checksum(view) != checksum:
        raise PlanError("corrupted: the checksum does not match the content")
    structure = slice(structure_at, structure_at + structure_bytes)
    weights = slice(weights_at, weights_at + weights_bytes)
    if not (_HEADER_BYTES <= structure.start <= structure.stop <= weights.start):
        raise PlanError("corrupted header: the structure lies outside the plan")
    compiled = slice(compiled_at, compiled_at + compiled_bytes)
    if not weights.start <= weights.stop == compiled.start <= compiled.stop == total:
        raise PlanError("corrupted header: the weights and what was compiled do not end with the plan")
    return _Bounds(structure, weights, compiled)


def _parse_structure(text: bytes) -> dict[str, Any]:
    try:
        structure = typed.parsed(text)
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


def _open_weights(view: memoryview, bounds: slice) -> tuple[torch.Tensor, dict[str, torch.Tensor], dict[str, int]]:
    try:
        (table_bytes,) = struct.unpack_from("<Q", view, bounds.start)
        data_at = bounds.start + 8 + table_bytes
        if data_at > bounds.stop:
            raise PlanError("corrupted: the table of weights is longer than the weights")
        entries = typed.parsed(bytes(view[bounds.start + 8 : data_at]))
        data = _bytes_tensor(view[data_at : bounds.stop])
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
    """A buffer as a uint8 tensor; by address, since PyTorch's own adapter objects to read-only memory."""
    if not view.nbytes:
        return torch.empty(0, dtype=torch.uint8)
    address = _address_of(view)
    if address % 16:  # vector instructions of some kernels want aligned operands
        return torch.tensor(bytearray(view), dtype=torch.uint8)
    return wrap_address(address, (view.nbytes,), torch.uint8, torch.device("cpu"))


def _address_of(view: memoryview) -> int:
    address: int = numpy.frombuffer(view, dtype=numpy.uint8).__array_interface__["data"][0]
    return address


def _padded(text: bytes) -> bytes:
    return text + b" " * (-len(text) % _ALIGNMENT)


def _checksum(view: memoryview) -> bytes:
    header = bytearray(view[:_HEADER_BYTES])
    header[_CHECKSUM_OFFSET : _CHECKSUM_OFFSET + _CHECKSUM_BYTES] = bytes(_CHECKSUM_BYTES)
    digest = hashlib.sha256(header)
    starts = range(_HEADER_BYTES, view.nbytes, _CHUNK_BYTES)

    def chunk_digest(start: int) -> bytes:
        return hashlib.sha256(view[start : start + _CHUNK_BYTES]).digest()

    if len(starts) > 1:
        from concurrent.futures import ThreadPoolExecutor  # most processes that run engines never need it

        with ThreadPoolExecutor(min(_MAX_HASH_THREADS, os.cpu_count() or 1)) as threads:
            digests = list(threads.map(chunk_digest, starts))
    else:
        digests = [chunk_digest(start) for start in starts]
    for part in digests:
        digest.update(part)
    return digest.digest()
