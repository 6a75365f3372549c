"""The plan container: what is written is read, and anything else is refused with its reason."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trt_core import PlanError
from trt_runtime import PlanHeader, plan_from_bytes, plan_to_bytes, read_plan, write_plan
from trt_runtime.engine_file import PLAN, plan_from_memory, replacing

shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)


def test_file_round_trip(tmp_path: Path, header: PlanHeader, plan: torch.Tensor) -> None:
    path = tmp_path / "engine.plan"
    write_plan(path, header, plan)
    found, content = read_plan(path)
    assert found == header
    assert torch.equal(content, plan)
    assert content.data_ptr() % 256 == 0


def test_bytes_round_trip(header: PlanHeader, plan: torch.Tensor) -> None:
    found, content = plan_from_bytes(plan_to_bytes(header, plan))
    assert found == header
    assert torch.equal(content, plan)


def test_memory_of_a_file_stays_while_its_plan_does(header: PlanHeader, plan: torch.Tensor) -> None:
    content = bytearray(plan_to_bytes(header, plan))
    _, found = plan_from_memory(content, where="", check=True)
    with pytest.raises(BufferError):
        content.clear()
    assert torch.equal(found, plan)


def test_file_and_bytes_are_the_same(tmp_path: Path, header: PlanHeader, plan: torch.Tensor) -> None:
    write_plan(tmp_path / "engine.plan", header, plan)
    assert (tmp_path / "engine.plan").read_bytes() == plan_to_bytes(header, plan)


def test_replacing_a_file_leaves_what_was_read_alone(tmp_path: Path, header: PlanHeader, plan: torch.Tensor) -> None:
    path = tmp_path / "engine.plan"
    write_plan(path, header, plan)
    _, content = read_plan(path)
    path.unlink()
    path.write_bytes(b"other")
    assert torch.equal(content, plan)


def test_a_plan_of_another_header_is_not_written(tmp_path: Path, header: PlanHeader, plan: torch.Tensor) -> None:
    with pytest.raises(PlanError, match="not the one that its header describes"):
        write_plan(tmp_path / "engine.plan", header, plan.flip(0))
    with pytest.raises(PlanError, match="has 4999 bytes, its header says 5000"):
        write_plan(tmp_path / "engine.plan", header, plan[1:].clone())
    assert not list(tmp_path.iterdir())


def test_nothing_stays_of_a_write_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "engine.plan"
    path.write_bytes(b"before")
    with pytest.raises(KeyboardInterrupt), replacing(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_plan(tmp_path / "nowhere.plan")


def test_files_have_default_permissions(tmp_path: Path, header: PlanHeader, plan: torch.Tensor) -> None:
    write_plan(tmp_path / "engine.plan", header, plan)
    (tmp_path / "other").touch()
    assert (tmp_path / "engine.plan").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_each_mismatch_has_its_message(tmp_path: Path, header: PlanHeader, plan: torch.Tensor) -> None:
    good = plan_to_bytes(header, plan)
    text, payload = PLAN.read(memoryview(good))
    cases = {
        "empty": b"",
        "not a plan file": b"PK\x03\x04" + good,
        "truncated": good[:-1],
        "only 20 bytes": good[:20],
        "format version 9": good[:8] + struct.pack("<I", 9) + good[12:],
        "checksum of its header": good[:40] + b"?" + good[41:],
        "its header says": good + b"more",
        "kind header does not": good[: text.offset] + b"?" + good[text.offset + 1 :],
        "kind plan does not": good[: payload.offset] + b"?" + good[payload.offset + 1 :],
    }
    for message, content in cases.items():
        path = tmp_path / "engine.plan"
        path.write_bytes(content)
        with pytest.raises(PlanError, match=message) as caught:
            read_plan(path)
        assert caught.value.where == str(path)
        assert caught.value.hint


@shared
@given(st.data())
def test_no_flipped_byte_goes_unnoticed(header: PlanHeader, plan: torch.Tensor, data: st.DataObject) -> None:
    content = bytearray(plan_to_bytes(header, plan))
    position = data.draw(st.integers(0, len(content) - 1) | st.integers(0, 1200))
    content[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(PlanError):
        plan_from_bytes(bytes(content))


@shared
@given(st.data())
def test_no_cut_or_growth_goes_unnoticed(header: PlanHeader, plan: torch.Tensor, data: st.DataObject) -> None:
    content = plan_to_bytes(header, plan)
    changed = data.draw(
        st.integers(0, len(content) - 1).map(lambda end: content[:end])
        | st.binary(min_size=1, max_size=300).map(lambda more: content + more)
        | st.binary(max_size=300)
    )
    with pytest.raises(PlanError):
        plan_from_bytes(changed)


def test_engines_for_other_targets_can_be_inspected(
    plan: torch.Tensor, change_header: Callable[..., PlanHeader]
) -> None:
    content = plan_to_bytes(change_header(provider="tensorrt", provider_version="10.16.1.11"), plan)
    with pytest.raises(PlanError, match="built by the provider 'tensorrt'"):
        plan_from_bytes(content)
    found, _ = plan_from_bytes(content, check=False)
    assert found.provider == "tensorrt"


def test_temporary_files_lie_beside_their_target(tmp_path: Path) -> None:
    with replacing(tmp_path / "engine.plan") as file:
        file.write(b"content")
        assert [entry.suffix for entry in tmp_path.iterdir()] == [".plan"]
