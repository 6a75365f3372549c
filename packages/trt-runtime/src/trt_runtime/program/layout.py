r"""The bytes of a saved program: a header, a table of sections, and the sections. Nothing in the format is executable.

`docs/reference/program_format.md` describes the format for those who write another reader; this module is the reader
and the writer. Every bound is checked before anything is read through it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import BinaryIO, Final

from trt_core.errors import PlanError

MAGIC: Final = b"TRTPROG\n"
FORMAT_VERSION: Final = 5
ALIGNMENT: Final = 4096
"""Sections begin at multiples of this, so that they can be mapped by themselves."""

MAX_SECTIONS: Final = 1 << 16
COPY_AGAIN: Final = "copy the file again from where it was written, or save the model again"

_PREFIX: Final = struct.Struct("<8sIIQII")
_COVERED_BYTES: Final = 28
_ENTRY: Final = struct.Struct("<IIQQQ")
_PIECE_BYTES: Final = 16 << 20


class SectionKind(IntEnum):
    """What a section holds."""

    GRAPH = 1
    """The typed graph, as JSON. Exactly one."""
    WEIGHTS = 2
    """Raw bytes of tensors. At most one."""
    PLAN = 3
    """The provider's plan of one engine."""
    HOST_CODE = 4
    """Compiled code for this host, which only a caller who allows it reads."""


@dataclass(frozen=True)
class Section:
    """Where a section lies.

    Attributes:
        kind: What it holds.
        offset: Its first byte in the file.
        size: Its bytes.
        checksum: CRC-32 of its bytes.
    """

    kind: SectionKind
    offset: int
    size: int
    checksum: int


def damaged(why: str) -> PlanError:
    """The error for a file whose bytes are not what was written."""
    return PlanError("the saved program is truncated or corrupt", why=why, hint=COPY_AGAIN)


def read_sections(data: memoryview) -> tuple[Section, ...]:
    """Reads the header and the table of sections. The content of sections is not looked at; see `verify_section`.

    Raises:
        PlanError: The bytes are foreign, of another version, truncated or corrupt.
    """
    size = data.nbytes
    if bytes(data[: len(MAGIC)]) != MAGIC[:size]:
        raise PlanError(
            "this is not a saved program",
            why=f"it starts with {bytes(data[: len(MAGIC)])!r} instead of {MAGIC!r}",
            hint="give a file written by trt_runtime.save",
        )
    if size < _PREFIX.size:
        raise damaged(f"it has only {size} bytes")
    _, version, count, total, reserved, checksum = _PREFIX.unpack_from(data)
    if version != FORMAT_VERSION:
        raise PlanError(
            f"the saved program has format version {version}, this trt-runtime reads {FORMAT_VERSION}",
            hint="install the version of trt-runtime that wrote it, or save the model again",
        )
    if total != size:
        raise damaged(f"it has {size} bytes, and its header says {total}")
    table_end = _PREFIX.size + count * _ENTRY.size
    if not 1 <= count <= MAX_SECTIONS or table_end > size:
        raise damaged(f"it cannot have {count} sections")
    if zlib.crc32(data[_PREFIX.size : table_end], zlib.crc32(data[:_COVERED_BYTES])) != checksum:
        raise damaged("the checksum of its header does not match")
    if reserved:
        raise damaged("reserved bytes of its header are not zero")
    entries = [_ENTRY.unpack_from(data, _PREFIX.size + index * _ENTRY.size) for index in range(count)]
    return tuple(_read_table(entries, data, table_end))


def _read_table(entries: Sequence[tuple[int, ...]], data: memoryview, end: int) -> Iterable[Section]:
    """Sections lie one after the other, at the next aligned byte, with zeros between them."""
    kinds: list[SectionKind] = []
    for index, (kind, checksum, offset, size, reserved) in enumerate(entries):
        if kind not in SectionKind.__members__.values():
            raise damaged(f"section {index} is of the unknown kind {kind}")
        if offset != aligned(end) or not size or reserved or offset + size > data.nbytes:
            raise damaged(f"section {index} does not lie where it must")
        if any(data[end:offset]):
            raise damaged(f"the bytes before section {index} are not zero")
        kinds.append(SectionKind(kind))
        yield Section(kinds[-1], offset, size, checksum)
        end = offset + size
    if end != data.nbytes:
        raise damaged(f"{data.nbytes - end} foreign bytes follow the last section")
    if kinds.count(SectionKind.GRAPH) != 1 or kinds.count(SectionKind.WEIGHTS) > 1:
        raise damaged("it must have one graph, and at most one section of weights")


def verify_section(data: memoryview, section: Section) -> None:
    """Checks the content of a section.

    Raises:
        PlanError: Its checksum does not match.
    """
    if zlib.crc32(data[section.offset : section.offset + section.size]) != section.checksum:
        raise damaged(f"the checksum of its section of kind {section.kind.name.lower()} does not match")


def write_sections(file: BinaryIO, sections: Sequence[tuple[SectionKind, Iterable[memoryview | bytes]]]) -> None:
    """Writes a whole file.

    Args:
        file: Open for writing, at its start, seekable.
        sections: Kind and content, in parts that are taken one after the other.

    Raises:
        OSError: The file cannot be written.
    """
    end = _PREFIX.size + len(sections) * _ENTRY.size
    file.write(bytes(end))  # header and table come last, when the checksums are known
    table = b""
    for kind, parts in sections:
        offset = aligned(end)
        file.write(bytes(offset - end))
        checksum = size = 0
        for part in parts:
            view = memoryview(part).cast("B")
            for at in range(0, view.nbytes, _PIECE_BYTES):
                piece = view[at : at + _PIECE_BYTES]
                checksum = zlib.crc32(piece, checksum)
                file.write(piece)
            size += view.nbytes
        table += _ENTRY.pack(kind, checksum, offset, size, 0)
        end = offset + size
    front = _PREFIX.pack(MAGIC, FORMAT_VERSION, len(sections), end, 0, 0)[:_COVERED_BYTES]
    checksum = zlib.crc32(table, zlib.crc32(front))
    file.seek(0)
    file.write(front + struct.pack("<I", checksum) + table)


def aligned(offset: int) -> int:
    """The next byte at which a section may begin."""
    return -(-offset // ALIGNMENT) * ALIGNMENT
