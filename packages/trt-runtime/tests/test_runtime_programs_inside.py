"""Programs inside of a program's file: found again, and trusted no more than the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from program_files import ProgramFile

from trt_core import PlanError
from trt_runtime import TextGenerator, TRTModule, load
from trt_runtime.command_line.inspection import inspect_file
from trt_runtime.generation import GenerationLimits, SourceLimits
from trt_runtime.program.loading import load_with
from trt_runtime.program.saving import save_with
from trt_runtime.program_file import SectionKind, read_sections


@pytest.fixture
def both(dynamic_engine: TRTModule, static_engine: TRTModule, tmp_path: Path) -> Path:
    save_with(dynamic_engine, [static_engine], tmp_path / "both.trtp", {"said": "two"})
    return tmp_path / "both.trtp"


def inner_of(path: Path) -> tuple[ProgramFile, bytes]:
    """Returns a file without what is inside, and that."""
    data = path.read_bytes()
    (inner,) = (item for item in read_sections(memoryview(data)) if item.kind is SectionKind.PROGRAM)
    return ProgramFile.read(data), bytes(inner.of(memoryview(data)))


def test_both_are_found(both: Path, dynamic_engine: TRTModule, static_engine: TRTModule) -> None:
    outer, inner = load_with(both)
    assert outer.meta == {"said": "two"}
    for made, engine in ((outer, dynamic_engine), (inner, static_engine)):
        given = torch.ones([low for low, _, _ in engine.header.ranges[0]])
        assert torch.equal(made(given), engine(given))
    assert type(load(both)) is type(outer)  # alone
    assert len(load_with(both, isolated=False, copy=True)) == 2


def test_files_without_any_are_loaded_alone(static_engine: TRTModule, tmp_path: Path) -> None:
    save_with(static_engine, [], tmp_path / "one.trtp", {})
    assert len(load_with(tmp_path / "one.trtp")) == 1


@pytest.mark.parametrize("what", ["cut", "byte", "inside", "signature", "foreign"])
def test_what_is_damaged_or_hostile_is_refused(both: Path, what: str) -> None:
    outer, inner = inner_of(both)
    if what == "cut":
        inner = inner[:-1]
    elif what == "byte":
        inner = inner[:-1] + bytes([inner[-1] ^ 1])
    elif what == "foreign":
        inner = b"PK\x03\x04" + inner[4:]
    else:
        parts = ProgramFile.read(inner)
        kind = SectionKind.PROGRAM if what == "inside" else SectionKind.SIGNATURE
        parts.others = [(kind, inner if what == "inside" else bytes(104))]
        inner = parts.to_bytes()
    outer.others = [(SectionKind.PROGRAM, inner)]
    outer.write(both)
    with pytest.raises(PlanError) as caught:
        load_with(both)
    assert str(both) in str(caught.value)
    with pytest.raises(PlanError):
        inspect_file(both)


def test_what_is_inside_is_covered_by_the_outer_checksum(both: Path) -> None:
    data = bytearray(both.read_bytes())
    data[-1] ^= 1
    both.write_bytes(data)
    for read in (load, load_with):
        with pytest.raises(PlanError, match="checksum"):
            read(both)


def test_generators_have_as_many_encoders_as_they_say(dynamic_engine: TRTModule, tmp_path: Path) -> None:
    source = SourceLimits(("input_ids", "attention_mask"), 9, 2)
    for inside, found in (([], source), ([dynamic_engine], None)):
        path = tmp_path / "model.trtp"
        save_with(dynamic_engine, inside, path, {"generation": GenerationLimits(1, 2, 1, source=found).to_text()})
        with pytest.raises(PlanError, match="another number of encoders"):
            TextGenerator.load(path)
