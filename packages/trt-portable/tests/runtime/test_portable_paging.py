"""Memory that is given back is read again when something wants it."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest
import torch

from trt_portable.execution import paging
from trt_portable.execution.paging import page_out, passing_copy, release_pages_of, return_freed_memory

BYTES = 64 << 20


def _resident(what: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {what}")


@pytest.mark.skipif(sys.platform != "linux", reason="a request to Linux")
def test_pages_of_a_mapped_file_go_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * (BYTES // 256))
    weights = torch.from_file(str(path), shared=False, size=BYTES, dtype=torch.uint8)[100:-100]
    total = int(weights.sum(dtype=torch.int64))
    before = _resident("RssFile")
    keeper = Keeper()
    release_pages_of(weights, keeper)
    page_out(weights)
    advise = paging._advise()
    assert advise is not None
    if not advise(weights.data_ptr() & -(1 << 16), 1 << 16, paging._PAGE_OUT):  # a kernel that knows the request
        assert before - _resident("RssFile") > BYTES // 2
    assert int(weights.sum(dtype=torch.int64)) == total


class Keeper:
    """Whoever keeps memory."""


def test_other_memory_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "_advise", lambda: lambda *_: pytest.fail("the system would write it to a disk"))
    keeper = Keeper()
    weights = torch.randn(1 << 16)
    shared = torch.ones(1 << 16).share_memory_()
    anonymous = torch.frombuffer(mmap.mmap(-1, 1 << 20), dtype=torch.float32)
    for memory in (weights, shared, anonymous, torch.empty(0)):
        release_pages_of(memory, keeper)
    for memory in (weights, weights[::2], weights[:3], shared, anonymous):
        page_out(memory)
    path = tmp_path / "weights"
    path.write_bytes(bytes(1 << 20))
    mapped = torch.from_file(str(path), shared=False, size=1 << 20, dtype=torch.uint8)
    page_out(mapped)  # nobody said that it may go
    release_pages_of(mapped, keeper)
    del keeper
    page_out(mapped)


@pytest.mark.skipif(paging._trim() is None, reason="a request to glibc")
def test_freed_memory_with_holes_goes_back() -> None:
    pieces = [torch.ones(1 << 12) for _ in range(4096)]  # each too small for a mapping of its own
    kept = pieces[::64]
    before = _resident("RssAnon")
    del pieces
    return_freed_memory()
    assert before - _resident("RssAnon") > (1 << 14) * 4096 // 2
    assert all(bool((piece == 1).all()) for piece in kept)


@pytest.mark.parametrize("elements", [24, 3 << 20])
def test_a_passing_copy_has_the_strides_that_were_asked_for(elements: int) -> None:
    x = torch.arange(elements, dtype=torch.float32).view(2, 3, 2, -1)
    strides = x.contiguous(memory_format=torch.channels_last).stride()
    copy = passing_copy(x, strides)
    assert copy.stride() == strides
    assert torch.equal(copy, x)


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux says of memory")
def test_a_passing_copy_goes_back_between_results_that_stay() -> None:
    x = torch.ones(1 << 20)
    kept = []
    before = _resident("RssAnon")
    for _ in range(32):
        copy = passing_copy(x, (1,))
        kept.append(copy[: 1 << 14].clone())
        del copy
    assert _resident("RssAnon") - before < 16 << 20  # 2 MiB stay, and 128 passed
    assert len(kept) == 32


@pytest.mark.skipif(sys.platform != "linux", reason="a list of Linux")
def test_maps_are_listed_when_memory_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each keeper, and not when an engine is loaded: the list takes milliseconds to read."""
    asked: list[range] = []
    monkeypatch.setattr(paging, "_is_file", lambda memory: bool(asked.append(memory)))
    monkeypatch.setattr(paging, "_advise", lambda: lambda *_: pytest.fail("it is no file"))
    keeper, weights = Keeper(), torch.randn(1 << 16)
    release_pages_of(weights, keeper)
    assert not asked
    for _ in range(2):
        page_out(weights)
    assert len(asked) == 1
    release_pages_of(torch.randn(1 << 16), keeper)
    page_out(weights)
    assert len(asked) == 1
    key = id(keeper)
    del keeper
    assert key not in paging._plans and key not in paging._files
