"""Files made of sections: what is written is read, in a file and in memory, and nothing else is."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trt_core import PlanError
from trt_core.files import container
from trt_core.files.container import Container, Late, checksum_of


class Kind(IntEnum):
    """What the sections of these tests hold."""

    TEXT = 1
    DATA = 7


FILE: Final = Container(b"TESTING\n", 3, Kind, 64, "test file", "trt-core", "this test", "run the test again")

contents = st.lists(st.tuples(st.sampled_from(Kind), st.binary(min_size=1, max_size=200)), min_size=1, max_size=5)


def _written(sections: list[tuple[Kind, bytes]]) -> bytes:
    file = io.BytesIO()
    FILE.write(file, [(kind, [content[:50], content[50:]]) for kind, content in sections])
    return file.getvalue()


@given(contents)
def test_what_is_written_is_read(sections: list[tuple[Kind, bytes]]) -> None:
    data = memoryview(_written(sections))
    found = FILE.read(data)
    for section in found:
        FILE.verify(data, section)
        assert section.offset % FILE.alignment == 0
    assert [(section.kind, bytes(section.of(data))) for section in found] == sections


@given(contents)
def test_checksums_of_pieces_are_those_of_the_whole(sections: list[tuple[Kind, bytes]]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(container, "_PIECE_BYTES", 16)
        patched.setattr(container, "_BESIDE_BYTES", 16)
        patched.setattr(container, "_MOST_OPEN", 1)
        found = _written(sections)
    assert found == _written(sections)


@given(contents, st.data())
def test_what_comes_late_lies_where_it_would_have_come_in_turn(
    sections: list[tuple[Kind, bytes]], data: st.DataObject
) -> None:
    asked = []

    def parts(index: int, content: bytes) -> Iterator[bytes]:
        asked.append(index)
        yield from (content[:50], content[50:])

    late = data.draw(st.lists(st.booleans(), min_size=len(sections), max_size=len(sections)))
    contents = [
        (kind, Late(len(content), parts(index, content)) if late[index] else parts(index, content))
        for index, (kind, content) in enumerate(sections)
    ]
    file = io.BytesIO()
    FILE.write(file, contents)
    assert file.getvalue() == _written(sections)
    assert asked == sorted(range(len(sections)), key=lambda index: late[index])


def test_what_comes_late_has_the_size_that_was_said() -> None:
    with pytest.raises(ValueError, match="3 bytes came late in the place of 4"):
        FILE.write(io.BytesIO(), [(Kind.TEXT, Late(4, [b"abc"])), (Kind.DATA, [b"d"])])


@given(contents)
def test_a_file_made_in_memory_is_the_one_that_is_written(sections: list[tuple[Kind, bytes]]) -> None:
    placed = FILE.arrange([(kind, len(content)) for kind, content in sections])
    memory = bytearray(placed[-1].offset + placed[-1].size)
    for section, (_, content) in zip(placed, sections, strict=True):
        memory[section.offset : section.offset + section.size] = content
    FILE.seal(memoryview(memory), placed)
    assert bytes(memory) == _written(sections)


@given(contents, st.data())
def test_no_flipped_byte_goes_unnoticed(sections: list[tuple[Kind, bytes]], data: st.DataObject) -> None:
    content = bytearray(_written(sections))
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(PlanError):
        for section in FILE.read(memoryview(content)):
            FILE.verify(memoryview(content), section)


@given(contents, st.binary(min_size=1, max_size=100), st.integers(0, 100))
def test_no_cut_or_growth_goes_unnoticed(sections: list[tuple[Kind, bytes]], more: bytes, less: int) -> None:
    content = _written(sections)
    for changed in (content + more, content[: -less - 1]):
        with pytest.raises(PlanError):
            FILE.read(memoryview(changed))


@given(st.binary(max_size=300), st.integers(1, 70), st.integers(0, (1 << 32) - 1))
def test_threads_find_the_checksum_that_one_finds(data: bytes, piece: int, before: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(container, "_PIECE_BYTES", piece)
        assert checksum_of(memoryview(data), before) == zlib.crc32(data, before)
