r"""The plan container: one engine as one file.

Layout, little endian::

    0    magic            8 bytes, b"TRTPLAN\n"
    8    format version   u32
    12   header bytes     u32
    16   payload offset   u64, a multiple of 256
    24   payload bytes    u64
    32   checksum         32 bytes: SHA-256 of bytes 0 to 31 and of the header
    64   header           JSON, UTF-8, then zeros up to the payload
         payload          the provider's plan, whose SHA-256 is in the header

The payload is used where it lies: files are mapped into memory, not read. Nothing in the format is executable.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any, Final

import torch

from trt_core.errors import PlanError
from trt_runtime.compatibility import check_compatible
from trt_runtime.digest import is_vouched, plan_bytes, plan_digest
from trt_runtime.header import PlanHeader
from trt_runtime.mapped_file import map_file
from trt_runtime.replacing import Path as Path
from trt_runtime.replacing import file_name
from trt_runtime.replacing import replacing as replacing

MAGIC: Final = b"TRTPLAN\n"
CONTAINER_VERSION: Final = 1
_PREFIX: Final = struct.Struct("<8sIIQQ32s")
_COVERED_BYTES: Final = 32
_ALIGNMENT: Final = 256
_COPY_AGAIN: Final = "copy the file again from where it was written, or compile the model again"


def write_plan(path: Path, header: PlanHeader, plan: torch.Tensor) -> None:
    """Writes an engine to a file; the file appears complete or not at all.

    Args:
        path: The file; an existing one is replaced.
        header: Header of the engine.
        plan: (bytes,), uint8: the serialized engine.

    Raises:
        PlanError: The plan is not the one that the header describes.
        OSError: The file cannot be written.
    """
    front = _front(header, plan)
    with replacing(path) as file:
        file.write(front)
        file.write(plan_bytes(plan))


def plan_to_bytes(header: PlanHeader, plan: torch.Tensor) -> bytes:
    """Returns the container as bytes; see `write_plan`.

    Raises:
        PlanError: The plan is not the one that the header describes.
    """
    return b"".join((_front(header, plan), plan_bytes(plan)))


def read_plan(path: Path, *, check: bool = True) -> tuple[PlanHeader, torch.Tensor]:
    """Reads an engine from a file.

    Args:
        path: A file that `write_plan` wrote.
        check: Also check that this process can run the engine. Without it, engines for other targets can be
            inspected.

    Returns:
        The header, and the plan: (bytes,), uint8, mapped from the file without a copy. The file must not be
        changed in place while the tensor lives; `write_plan` replaces files, which is safe.

    Raises:
        InputError: `path` names no file.
        PlanError: The file is truncated, corrupt, foreign, or for another target; the message says which.
        OSError: The file cannot be read.
    """
    name = file_name(path)
    return plan_from_memory(map_file(name, "a plan file", "trt_runtime.write_plan"), where=name, check=check)


def plan_from_bytes(data: bytes, *, check: bool = True) -> tuple[PlanHeader, torch.Tensor]:
    """Reads an engine from bytes; see `read_plan`. The bytes are copied once."""
    return plan_from_memory(bytearray(data), where="", check=check)


def _front(header: PlanHeader, plan: torch.Tensor) -> bytes:
    """Everything before the payload."""
    check_payload(header, plan)
    text = header.text.encode()
    offset = -(-(_PREFIX.size + len(text)) // _ALIGNMENT) * _ALIGNMENT
    covered = _PREFIX.pack(MAGIC, CONTAINER_VERSION, len(text), offset, header.payload_bytes, bytes(32))[
        :_COVERED_BYTES
    ]
    checksum = hashlib.sha256(covered + text).digest()
    return (covered + checksum + text).ljust(offset, b"\0")


def check_payload(header: PlanHeader, plan: torch.Tensor, where: str = "") -> None:
    """Checks that a plan is the one that a header describes.

    The content of a plan that was vouched for is not read again.

    Raises:
        PlanError: Size or content differ.
    """
    if plan.numel() != header.payload_bytes:
        raise PlanError(
            f"the plan of {header.title} has {plan.numel()} bytes, its header says {header.payload_bytes}",
            where=where,
            hint=_COPY_AGAIN,
        )
    if not is_vouched(plan) and plan_digest(plan) != header.payload_sha256:
        raise PlanError(
            f"the plan of {header.title} is not the one that its header describes",
            where=where,
            why="the SHA-256 of the plan differs from the header's",
            hint=_COPY_AGAIN,
        )


def plan_from_memory(content: Any, *, where: str, check: bool) -> tuple[PlanHeader, torch.Tensor]:
    """Reads an engine from memory that nobody else writes to, and uses it where it is; see `read_plan`.

    Args:
        content: A private map of a file, or a bytearray.
        where: The file's name for messages.
        check: See `read_plan`.

    Raises:
        PlanError: See `read_plan`.
    """

    def refuse(what: str, why: str = "", hint: str = _COPY_AGAIN) -> PlanError:
        return PlanError(what, where=where, why=why, hint=hint)

    data = memoryview(content)
    start = bytes(data[: len(MAGIC)])
    if start != MAGIC[: len(start)]:
        raise refuse(
            "this is not a plan file",
            why=f"it starts with {start!r} instead of {MAGIC!r}",
            hint="give a file written by trt_runtime.write_plan; saved programs (.pt2) are read by trt_runtime.load",
        )
    if data.nbytes < _PREFIX.size:
        raise refuse("the plan file is truncated", why=f"it has only {data.nbytes} bytes")
    _, version, text_bytes, offset, payload_bytes, checksum = _PREFIX.unpack_from(data)
    if version != CONTAINER_VERSION:
        raise refuse(
            f"the plan file has format version {version}, this trt-runtime reads {CONTAINER_VERSION}",
            hint="install the version of trt-runtime that wrote it, or compile the model again",
        )
    total = offset + payload_bytes
    if data.nbytes < total:
        raise refuse("the plan file is truncated", why=f"it has {data.nbytes} bytes of {total}")
    text_end = _PREFIX.size + text_bytes
    digest = hashlib.sha256(data[:_COVERED_BYTES])
    digest.update(data[_PREFIX.size : text_end])
    if digest.digest() != checksum or text_end > offset or any(data[text_end:offset]):
        raise refuse("the plan file is corrupt", why="the checksum of its header does not match")
    if data.nbytes > total:
        raise refuse("the plan file is corrupt", why=f"{data.nbytes - total} foreign bytes follow the plan")
    header = _header(bytes(data[_PREFIX.size : text_end]), where)
    if not payload_bytes:
        raise refuse("the plan file has no plan")
    plan = torch.frombuffer(content, dtype=torch.uint8, offset=offset, count=payload_bytes)
    check_payload(header, plan, where)
    if check:
        check_compatible(header, where=where)
    return header, plan


def _header(text: Any, where: str) -> PlanHeader:
    try:
        return PlanHeader.from_text(text)
    except PlanError as error:
        raise PlanError(error.what, where=where, why=error.why, hint=error.hint) from error
