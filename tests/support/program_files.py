"""Saved programs taken apart and put together again with right checksums, as somebody hostile would."""

from __future__ import annotations

import copy
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trt_runtime.program_file import PROGRAM, SectionKind, read_sections


@dataclass
class ProgramFile:
    """A saved program taken apart, to be put together again with right checksums, as somebody hostile would.

    Attributes:
        graph: The graph section, parsed.
        weights: The section of weights; empty where there is none.
        plans: The sections of plans.
        others: Further sections.
    """

    graph: dict[str, Any]
    weights: bytes
    plans: list[bytes]
    others: list[tuple[SectionKind, bytes]]

    @classmethod
    def read(cls, content: bytes) -> ProgramFile:
        """Takes a file apart."""
        data = memoryview(content)
        found: dict[SectionKind, list[bytes]] = {kind: [] for kind in SectionKind}
        for section in read_sections(data):
            found[SectionKind(section.kind)].append(bytes(section.of(data)))
        (graph,) = found[SectionKind.GRAPH]
        return cls(json.loads(graph), b"".join(found[SectionKind.WEIGHTS]), found[SectionKind.PLAN], [])

    def copy(self) -> ProgramFile:
        """The same parts, to be changed by themselves."""
        return copy.deepcopy(self)

    def to_bytes(self) -> bytes:
        """Puts the file together."""
        return self.with_graph(json.dumps(self.graph).encode())

    def with_graph(self, graph: bytes) -> bytes:
        """Puts the file together with another graph section."""
        sections: list[tuple[SectionKind, list[bytes]]] = [(SectionKind.GRAPH, [graph])]
        if self.weights:
            sections.append((SectionKind.WEIGHTS, [self.weights]))
        sections += [(SectionKind.PLAN, [plan]) for plan in self.plans]
        sections += [(kind, [content]) for kind, content in self.others]
        file = io.BytesIO()
        PROGRAM.write(file, sections)
        return file.getvalue()

    def write(self, path: Path) -> Path:
        """Writes the file."""
        path.write_bytes(self.to_bytes())
        return path
