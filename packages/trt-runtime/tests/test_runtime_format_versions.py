"""No table of a file changes without another version of its format."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from program_files import ProgramFile

from trt_core import PlanError, refit_table
from trt_core.files import records
from trt_core.files.container import LAYOUT
from trt_core.sizes.conditions import Relation
from trt_core.sizes.functions import FUNCTIONS, RELATIONS
from trt_portable.plan import plan_file as portable
from trt_runtime import TRTModule, load, program_file, save
from trt_runtime.bindings import Binding
from trt_runtime.engine_file import PLAN
from trt_runtime.engine_file import SectionKind as PlanSections
from trt_runtime.header import FORMAT_VERSION as HEADER_VERSION
from trt_runtime.header import OPTIONAL, PlanHeader
from trt_runtime.program import graph as program_graph
from trt_runtime.program import literals, saving
from trt_runtime.program.held_weights import HeldWeights

HEADERS: Final = {2: "cc7dcdc03a9e1276"}
CONTAINERS: Final = {1: "bf726b56f5e29852", 2: "3eba59b5caf9f37b"}
PROGRAMS: Final = {
    2: "a48f515fdc885450",
    3: "dbb74764d6fbe80e",
    4: "ab37bdc9bcdbf710",
    5: "22f9fbd4039dacb3",
    6: "348718f15c7dd1bf",
    7: "5d520dd63f1d4e42",
    8: "e75f7a82da2bddd4",
    9: "338775cfdc889678",
    10: "cbd0c557beaec596",
    11: "28da7cc0b4681568",
}
"""Digest of the tables by version of the format. A version keeps its digest for ever."""

_NOT_IN_FILES: Final = (program_graph.ForeignTree, program_graph.CapturedProgram)
RECORDS: Final = (
    HeldWeights,
    Relation,
    *(
        kind
        for kind in vars(program_graph).values()
        if isinstance(kind, type) and kind.__module__ == program_graph.__name__ and kind not in _NOT_IN_FILES
    ),
)
"""Dataclasses that the graph of a program holds; a field of each is a field there."""


def _key(field: dataclasses.Field[Any]) -> str:
    key: str = field.metadata.get("key", field.name)
    return key


def _digest(layout: Any) -> str:
    return hashlib.sha256(json.dumps(layout, sort_keys=True).encode()).hexdigest()[:16]


def _hold(recorded: dict[int, str], version: int, found: str, where: str) -> None:
    assert recorded.get(version) == found, (
        f"a table of the format has changed: raise the version in {where} and record the digest {found} under it here"
    )
    assert len(set(recorded.values())) == len(recorded)


def test_plan_headers() -> None:
    binding = records.write(Binding("x", torch.float32, (1,)))
    tables = [
        sorted(item.name for item in dataclasses.fields(PlanHeader) if item.name not in OPTIONAL),
        sorted(binding),
        sorted(refit_table.FIELDS),
    ]
    _hold(HEADERS, HEADER_VERSION, _digest(tables), "trt_runtime.header")


def test_plan_files() -> None:
    kinds = [kind.name for kind in PlanSections]
    _hold(CONTAINERS, PLAN.version, _digest([*LAYOUT, kinds, PLAN.alignment]), "trt_runtime.engine_file")


def test_programs() -> None:
    kinds = [kind.name for kind in program_file.SectionKind]
    structures = [*LAYOUT, kinds, program_file.PROGRAM.alignment]
    graph = {
        kind.__name__: [getattr(kind, "TAG", None), [_key(field) for field in dataclasses.fields(kind)]]
        for kind in RECORDS
    }
    whole = sorted(name for name, function in FUNCTIONS.items() if function.is_whole)
    names = [sorted(literals._READERS), sorted(FUNCTIONS), whole, sorted(RELATIONS)]
    _hold(PROGRAMS, program_file.PROGRAM.version, _digest([structures, graph, names]), "trt_runtime.program_file")


def test_programs_of_format_6_are_read(
    dynamic_engine: TRTModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "older.trtp"
    with monkeypatch.context() as patch:
        patch.setattr(saving, "FILE", dataclasses.replace(program_file.PROGRAM, version=6))
        save(dynamic_engine, path)
    assert path.read_bytes()[len(program_file.PROGRAM.magic)] == 6
    assert torch.equal(load(path)(torch.ones(5, 3)), torch.full((5, 3), 2.0))


def test_a_program_with_an_older_plan_says_where_and_which(static_engine: TRTModule, tmp_path: Path) -> None:
    path = tmp_path / "older.trtp"
    save(static_engine, path)
    parts = ProgramFile.read(path.read_bytes())
    plan = bytearray(parts.plans[0])
    struct.pack_into("<I", plan, len(portable.MAGIC), portable.FORMAT_VERSION - 1)
    parts.plans[0] = bytes(plan)
    path.write_bytes(parts.to_bytes())
    with pytest.raises(
        PlanError,
        match=rf"the plan has format version {portable.FORMAT_VERSION - 1}, .* reads {portable.FORMAT_VERSION}",
    ) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_a_plan_that_lacks_a_field_says_which(static_engine: TRTModule, tmp_path: Path) -> None:
    path = tmp_path / "forged.trtp"
    save(static_engine, path)
    parts = ProgramFile.read(path.read_bytes())
    plan = portable.read_plan(parts.plans[0])
    structure = json.loads(json.dumps(plan.structure))
    binding = structure["engine"]["io"][0]
    binding["former"] = binding.pop("format")  # as long as before, so that the plan is
    parts.plans[0] = bytes(portable.write_plan(structure, plan.weights))
    parts.graph["engines"][0]["header"]["payload_bytes"] = len(parts.plans[0])
    path.write_bytes(parts.to_bytes())
    with pytest.raises(PlanError, match=r"the engine's part of the plan .* lacks the field 'format'") as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_a_program_with_an_older_header_says_where_and_which(static_engine: TRTModule, tmp_path: Path) -> None:
    path = tmp_path / "older.trtp"
    save(static_engine, path)
    parts = ProgramFile.read(path.read_bytes())
    header = parts.graph["engines"][0]["header"]
    header["format_version"] = HEADER_VERSION - 1
    del header["refit"]
    path.write_bytes(parts.to_bytes())
    with pytest.raises(PlanError, match=f"format version {HEADER_VERSION - 1}") as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert "engines 0" in str(caught.value)
