"""Program files that were cut, changed, or were never any."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest
import torch
from fresh_process import run_python
from program_files import ProgramFile

from trt_core import PlanError
from trt_runtime import TRTModule, load, plan_to_bytes, read_plan
from trt_runtime.program_file import PROGRAM, SectionKind


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hostile.trtp"


def test_the_parts_make_the_file_again(parts: ProgramFile, path: Path) -> None:
    assert len(load(parts.write(path))(torch.ones(2, 3))[0]) == 6


def test_every_truncation_is_found(parts: ProgramFile, path: Path) -> None:
    content = parts.to_bytes()
    for size in [*range(200), *range(200, len(content), 97), len(content) - 1]:
        path.write_bytes(content[:size])
        with pytest.raises(PlanError) as caught:
            load(path)
        assert caught.value.where.startswith(str(path))
        assert caught.value.hint


def test_every_byte_is_covered(parts: ProgramFile, path: Path) -> None:
    content = bytearray(parts.to_bytes())
    for at in [*range(200), *range(200, len(content), 61)]:
        content[at] ^= 0x40
        path.write_bytes(content)
        with pytest.raises(PlanError):
            load(path)
        content[at] ^= 0x40


def test_foreign_bytes_after_the_file(parts: ProgramFile, path: Path) -> None:
    path.write_bytes(parts.to_bytes() + b"\0")
    with pytest.raises(PlanError, match="truncated or corrupt"):
        load(path)


@pytest.mark.parametrize("content", [b"", b"TRT", b"hello, world" * 1000, b"\x80\x04K\x01.", b"TRTPROG\n" + bytes(24)])
def test_foreign_files(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(PlanError) as caught:
        load(path)
    assert caught.value.where.startswith(str(path))


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices")
def test_what_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    (tmp_path / "nothing").symlink_to("/dev/null")
    for name in ("pipe", "zeros", "nothing", "."):
        for read in (load, read_plan):
            with pytest.raises(PlanError, match=r"not a regular file|a folder"):
                read(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing")


def test_a_plan_file_is_no_program(static_engine: TRTModule, path: Path) -> None:
    path.write_bytes(plan_to_bytes(static_engine.header, static_engine.plan))
    with pytest.raises(PlanError, match="plan of one engine"):
        load(path)


def test_archives_of_any_kind_are_left_alone(path: Path) -> None:
    """Whatever an archive holds, and whoever's reader would find it: none is opened without trust."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/models/model.json", '{"expr_str": "__import__(\'os\').abort()"}')
        archive.writestr("model/data/sample_inputs/model.PT", b"cos\nabort\n(tR.")
    with pytest.raises(PlanError, match="can run code when it is read"):
        load(path)


def test_host_code_needs_the_callers_word(parts: ProgramFile, path: Path) -> None:
    parts.others.append((SectionKind.HOST_CODE, b"\x7fELF"))
    parts.write(path)
    with pytest.raises(PlanError, match="carries compiled code for this host"):
        load(path)
    load(path, allow_host_code=True)


@pytest.mark.parametrize(
    ("first", "second"), [(SectionKind.GRAPH, b"{}"), (SectionKind.WEIGHTS, b"more"), (SectionKind.PLAN, b"more")]
)
def test_sections_that_are_one_too_many(parts: ProgramFile, path: Path, first: SectionKind, second: bytes) -> None:
    parts.others.append((first, second))
    with pytest.raises(PlanError):
        load(parts.write(path))


def test_sections_begin_where_they_must(parts: ProgramFile) -> None:
    assert all(section % PROGRAM.alignment == 0 for section in (PROGRAM.alignment, 2 * PROGRAM.alignment))
    assert parts.to_bytes().find(parts.weights) % PROGRAM.alignment == 0


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
@pytest.mark.parametrize(("mode", "copy"), [(0o666, None), (0o600, True)])
def test_a_file_that_is_shortened_while_its_program_runs(
    parts: ProgramFile, path: Path, mode: int, copy: bool | None
) -> None:
    """In a process of its own, which SIGBUS would end."""
    parts.graph["metadata"] = {"padding": "x" * (1 << 20)}
    parts.write(path).chmod(mode)
    script = (
        "import os, pickle, sys, trt_runtime\n"
        "program = trt_runtime.load(sys.argv[1], copy=eval(sys.argv[2]))\n"
        "wanted = pickle.dumps(program)\n"  # reads every byte of weights and plans
        "os.truncate(sys.argv[1], 0)\n"
        "print(pickle.dumps(program) == wanted, len(wanted) > 1 << 20)\n"
    )
    result = run_python(script, str(path), str(copy))
    assert result.stdout == "True True\n", result.stderr
