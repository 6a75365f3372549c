"""Files made of sections: a header, a checked table of sections, and the sections. Nothing in one is executable.

Layout, little endian::

    0    magic             8 bytes
    8    format version    u32
    12   sections          u32
    16   bytes of the file u64
    24   0                 u32
    28   CRC-32            u32, of bytes 0 to 27 and of the table
    32   table             of each section: kind u32, CRC-32 u32, offset u64, bytes u64, 0 u64

Sections begin at the first aligned byte after what lies before them, with zeros between, and the last one ends the
file; so every byte is covered by a checksum or must be zero. Checksums find damage, and say nothing about origin.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import struct
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from typing import BinaryIO, Final

from trt_core.errors import PlanError

MAX_SECTIONS: Final = 1 << 16
"""Most sections of a file."""

_PREFIX: Final = struct.Struct("<8sIIQII")
_COVERED_BYTES: Final = 28
_ENTRY: Final = struct.Struct("<IIQQQ")
_PIECE_BYTES: Final = 16 << 20
_MOST_THREADS: Final = 16
_BESIDE_BYTES: Final = 1 << 20
"""Less is checked sooner than a thread begins."""
_MOST_OPEN: Final = 8
_POLYNOMIAL: Final = 0xEDB88320
_ONE: Final = 1 << 31
"""The polynomial 1, whose coefficients stand in the order of CRC-32: that of x^0 in the highest bit."""

LAYOUT: Final = (_PREFIX.format, _ENTRY.format)
"""What a test holds format versions against."""


@dataclass(frozen=True)
class Section:
    """Where a section lies.

    Attributes:
        kind: What it holds.
        offset: Its first byte in the file.
        size: Its bytes.
        checksum: CRC-32 of its bytes.
    """

    kind: IntEnum
    offset: int
    size: int
    checksum: int = 0

    def of(self, data: memoryview) -> memoryview:
        """Its bytes in the file."""
        return data[self.offset : self.offset + self.size]


@dataclass(frozen=True)
class Late:
    """Content of a section that takes time, or follows from the others: it is asked for once they are written.

    Attributes:
        size: Its bytes.
        parts: The content, in parts that are taken one after the other.
    """

    size: int
    parts: Iterable[memoryview | bytes]


Content = Iterable[memoryview | bytes] | Late
"""Content of a section that is written."""


def kinds_in(data: memoryview) -> tuple[int, ...]:
    """Kinds of the sections of any such file, as its table has them; nothing of it is checked."""
    if data.nbytes < _PREFIX.size:
        return ()
    count = min(_PREFIX.unpack_from(data)[2], (data.nbytes - _PREFIX.size) // _ENTRY.size, MAX_SECTIONS)
    return tuple(_ENTRY.unpack_from(data, _PREFIX.size + index * _ENTRY.size)[0] for index in range(count))


@dataclass(frozen=True)
class Container:
    """A kind of file that is made of sections.

    Attributes:
        magic: Its first 8 bytes.
        version: Version of the format, the one that is written.
        kinds: What sections may hold.
        alignment: Sections begin at multiples of this.
        noun: How messages call such a file: "saved program".
        reader: Who reads it: "trt-runtime".
        writer: What writes it: "trt_runtime.save".
        again: What to do instead of reading an old one: "save the model again".
        older: Further versions that are read, as if they were this one.
    """

    magic: bytes
    version: int
    kinds: type[IntEnum]
    alignment: int
    noun: str
    reader: str
    writer: str
    again: str
    older: tuple[int, ...] = ()

    @property
    def copy_again(self) -> str:
        """The hint for a file that is not what was written."""
        return f"copy the file again from where it was written, or {self.again}"

    def damaged(self, why: str) -> PlanError:
        """The error for a file whose bytes are not what was written."""
        return PlanError(f"the {self.noun} is truncated or corrupt", why=why, hint=self.copy_again)

    def read(self, data: memoryview) -> tuple[Section, ...]:
        """Reads the header and the table. The content of sections is not looked at; see `verify`.

        Args:
            data: The whole file.

        Raises:
            PlanError: The bytes are foreign, of another version, truncated or corrupt.
        """
        size = data.nbytes
        start = bytes(data[: len(self.magic)])
        if start != self.magic[:size]:
            raise PlanError(
                f"this is not a {self.noun}",
                why=f"it starts with {start!r} instead of {self.magic!r}",
                hint=f"give a file written by {self.writer}",
            )
        if size < _PREFIX.size:
            raise self.damaged(f"it has only {size} bytes")
        _, version, count, total, reserved, checksum = _PREFIX.unpack_from(data)
        if version not in (*self.older, self.version):
            known = " and ".join(map(str, (*self.older, self.version)))
            raise PlanError(
                f"the {self.noun} has format version {version}, this {self.reader} reads {known}",
                hint=f"install the version of {self.reader} that wrote it, or {self.again}",
            )
        if total != size:
            raise self.damaged(f"it has {size} bytes, and its header says {total}")
        table_end = _PREFIX.size + count * _ENTRY.size
        if not 1 <= count <= MAX_SECTIONS or table_end > size:
            raise self.damaged(f"it cannot have {count} sections")
        if zlib.crc32(data[_PREFIX.size : table_end], zlib.crc32(data[:_COVERED_BYTES])) != checksum:
            raise self.damaged("the checksum of its header does not match")
        if reserved:
            raise self.damaged("reserved bytes of its header are not zero")
        entries = [_ENTRY.unpack_from(data, _PREFIX.size + index * _ENTRY.size) for index in range(count)]
        return tuple(self._sections(entries, data, table_end))

    def verify(self, data: memoryview, section: Section) -> None:
        """Checks the content of a section.

        Raises:
            PlanError: Its checksum does not match.
        """
        if checksum_of(section.of(data)) != section.checksum:
            raise self.damaged(f"the checksum of its section of kind {section.kind.name.lower()} does not match")

    def write(self, file: BinaryIO, sections: Sequence[tuple[IntEnum, Content]]) -> None:
        """Writes a whole file.

        Args:
            file: Open for writing, at its start, seekable.
            sections: Kind and content, in parts that are taken one after the other.

        Raises:
            OSError: The file cannot be written.
            ValueError: What came late has another size than was said.
        """
        end = _PREFIX.size + len(sections) * _ENTRY.size
        file.write(bytes(end))  # header and table come last, when the checksums are known
        written: list[Section] = []
        late: dict[int, Late] = {}
        with ThreadPoolExecutor(_threads()) as threads:
            for kind, content in sections:
                offset = self._aligned(end)
                file.write(bytes(offset - end))
                if isinstance(content, Late):
                    late[len(written)] = content
                    file.write(bytes(content.size))
                    written.append(Section(kind, offset, content.size))
                else:
                    written.append(_written(file, threads, kind, offset, content))
                end = offset + written[-1].size
            for index, content in late.items():
                kind, offset = written[index].kind, written[index].offset
                file.seek(offset)
                written[index] = _written(file, threads, kind, offset, content.parts)
                if written[index].size != content.size:
                    raise ValueError(f"{written[index].size} bytes came late in the place of {content.size}")
        file.seek(0)
        file.write(self.front(written))

    def arrange(self, sizes: Sequence[tuple[IntEnum, int]]) -> tuple[Section, ...]:
        """Says where sections of these kinds and sizes will lie, for those who write them in memory; see `seal`."""
        end = _PREFIX.size + len(sizes) * _ENTRY.size
        placed = []
        for kind, size in sizes:
            placed.append(Section(kind, self._aligned(end), size))
            end = placed[-1].offset + size
        return tuple(placed)

    def seal(self, memory: memoryview, sections: Sequence[Section]) -> None:
        """Writes header and table in front of sections that lie in memory.

        Args:
            memory: The whole file: the sections where `arrange` placed them, and zeros between them.
            sections: What `arrange` returned.
        """
        checked = [dataclasses.replace(section, checksum=checksum_of(section.of(memory))) for section in sections]
        front = self.front(checked)
        memory[: len(front)] = front

    def front(self, sections: Sequence[Section]) -> bytes:
        """The header and the table of these sections."""
        table = b"".join(_ENTRY.pack(item.kind, item.checksum, item.offset, item.size, 0) for item in sections)
        end = sections[-1].offset + sections[-1].size
        prefix = _PREFIX.pack(self.magic, self.version, len(sections), end, 0, 0)[:_COVERED_BYTES]
        return prefix + struct.pack("<I", zlib.crc32(table, zlib.crc32(prefix))) + table

    def _sections(self, entries: Sequence[tuple[int, ...]], data: memoryview, end: int) -> Iterator[Section]:
        """Sections lie one after the other, at the next aligned byte, with zeros between them."""
        known = {int(kind): kind for kind in self.kinds}
        for index, (kind, checksum, offset, size, reserved) in enumerate(entries):
            if kind not in known:
                raise self.damaged(f"section {index} is of the unknown kind {kind}")
            if offset != self._aligned(end) or not size or reserved or offset + size > data.nbytes:
                raise self.damaged(f"section {index} does not lie where it must")
            if any(data[end:offset]):
                raise self.damaged(f"the bytes before section {index} are not zero")
            yield Section(known[kind], offset, size, checksum)
            end = offset + size
        if end != data.nbytes:
            raise self.damaged(f"{data.nbytes - end} foreign bytes follow the last section")

    def _aligned(self, offset: int) -> int:
        return -(-offset // self.alignment) * self.alignment


def checksum_of(data: memoryview, checksum: int = 0) -> int:
    """CRC-32 of bytes, as `zlib.crc32` computes it; of many by several threads.

    Args:
        data: The bytes.
        checksum: Of what lies before them.
    """
    if data.nbytes <= 2 * _PIECE_BYTES:
        return zlib.crc32(data, checksum)
    pieces = [data[at : at + _PIECE_BYTES] for at in range(0, data.nbytes, _PIECE_BYTES)]
    with ThreadPoolExecutor(_threads()) as threads:
        for piece, found in zip(pieces, threads.map(zlib.crc32, pieces), strict=True):
            checksum = _joined(checksum, found, piece.nbytes)
    return checksum


def _written(
    file: BinaryIO, threads: ThreadPoolExecutor, kind: IntEnum, offset: int, parts: Iterable[memoryview | bytes]
) -> Section:
    """Writes a section where the file stands."""
    checksum = _Checksum(threads)
    size = 0
    for part in parts:
        view = memoryview(part).cast("B")
        for at in range(0, view.nbytes, _PIECE_BYTES):
            piece = view[at : at + _PIECE_BYTES]
            checksum.add(piece)  # while it is written
            file.write(piece)
        size += view.nbytes
    return Section(kind, offset, size, checksum.value)


class _Checksum:
    """CRC-32 of bytes that come in pieces; those of large ones are computed beside what else is done with them.

    Args:
        threads: Compute it.
    """

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self._found = 0
        self._open: deque[tuple[int, int | Future[int]]] = deque()

    def add(self, piece: memoryview) -> None:
        """Adds bytes, which must not change until the checksum is read."""
        is_large = piece.nbytes >= _BESIDE_BYTES
        self._open.append((piece.nbytes, self._threads.submit(zlib.crc32, piece) if is_large else zlib.crc32(piece)))
        if len(self._open) > _MOST_OPEN:  # what is not done yet holds its memory
            self._join()

    @property
    def value(self) -> int:
        """The checksum of all pieces."""
        while self._open:
            self._join()
        return self._found

    def _join(self) -> None:
        num_bytes, found = self._open.popleft()
        self._found = _joined(self._found, found if isinstance(found, int) else found.result(), num_bytes)


def _threads() -> int:
    return min(_MOST_THREADS, os.cpu_count() or 1)


def _joined(before: int, behind: int, num_bytes: int) -> int:
    """The checksum of bytes and others behind them, of which there are so many."""
    return _product(_power(num_bytes), before) ^ behind


def _product(a: int, b: int) -> int:
    """Of two polynomials over GF(2), modulo that of CRC-32."""
    product, bit = 0, _ONE
    while a:
        if a & bit:
            product ^= b
            a ^= bit
        bit >>= 1
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


@functools.lru_cache(maxsize=64)
def _power(num_bytes: int) -> int:
    """What so many bytes behind others multiply their checksum by: x to the number of bits."""
    found, factor, count = _ONE, _ONE >> 8, num_bytes
    while count:
        if count & 1:
            found = _product(found, factor)
        factor = _product(factor, factor)
        count >>= 1
    return found
