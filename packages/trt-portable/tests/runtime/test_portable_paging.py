"""Memory that is given back is read again when something wants it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from trt_portable.runtime import paging
from trt_portable.runtime.paging import page_out, passing_copy, return_freed_memory

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
    page_out(weights)
    advise = paging._advise()
    assert advise is not None
    if not advise(weights.data_ptr() & -(1 << 16), 1 << 16, paging._PAGE_OUT):  # a kernel that knows the request
        assert before - _resident("RssFile") > BYTES // 2
    assert int(weights.sum(dtype=torch.int64)) == total


def test_own_memory_keeps_its_values() -> None:
    weights = torch.randn(1 << 16)
    copy = weights.clone()
    page_out(weights)
    page_out(weights[::2])
    page_out(weights[:3])
    assert torch.equal(weights, copy)


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
