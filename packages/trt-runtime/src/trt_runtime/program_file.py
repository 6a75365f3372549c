"""The sections of a saved program's file.

`docs/reference/program_format.md` describes the format for those who write another reader.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from trt_core.files.container import Container, Section


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
    SIGNATURE = 5
    """Who has signed all other sections; see `trt_runtime.signatures`. At most one, and the last."""
    PROGRAM = 6
    """Another program, whole and without a signature: the encoder beside a step that generates text, or what a mutable
    module has compiled."""


PROGRAM: Final = Container(
    magic=b"TRTPROG\n",
    version=11,
    # what they hold means the same; 7 has more functions of sizes, 8 signatures, 9 branches and loops,
    # 10 programs inside, 11 strides of inputs
    older=(6, 7, 8, 9, 10),
    kinds=SectionKind,
    alignment=4096,  # so that sections can be mapped by themselves
    noun="saved program",
    reader="trt-runtime",
    writer="trt_runtime.save",
    again="save the model again",
)
"""The file of a saved program."""


def read_sections(data: memoryview) -> tuple[Section, ...]:
    """Reads the table of a program's file; the content of sections is not looked at.

    Raises:
        PlanError: The bytes are foreign, of another version, truncated or corrupt.
    """
    sections = PROGRAM.read(data)
    kinds = [section.kind for section in sections]
    if kinds.count(SectionKind.GRAPH) != 1 or kinds.count(SectionKind.WEIGHTS) > 1:
        raise PROGRAM.damaged("it must have one graph, and at most one section of weights")
    if SectionKind.SIGNATURE in kinds[:-1]:
        raise PROGRAM.damaged("only its last section may be a signature")
    return sections


def programs_inside(data: memoryview, sections: Iterable[Section]) -> list[memoryview]:
    """Returns the programs inside of a program's file.

    Raises:
        PlanError: One has a signature, or others inside.
    """
    found = [section.of(data) for section in sections if section.kind is SectionKind.PROGRAM]
    for part in found:
        if {SectionKind.PROGRAM, SectionKind.SIGNATURE} & {section.kind for section in read_sections(part)}:
            raise PROGRAM.damaged("a program inside of another one has a signature, or a program inside")
    return found


def graph_in(data: memoryview, sections: Iterable[Section]) -> bytes:
    """Returns the typed graph of a program's file, as JSON."""
    (graph,) = (section for section in sections if section.kind is SectionKind.GRAPH)
    return bytes(graph.of(data))
