"""Memory that is given back is read again when something wants it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from trt_portable.runtime import paging
from trt_portable.runtime.paging import page_out

BYTES = 64 << 20


def _resident() -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("RssFile:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssFile")


@pytest.mark.skipif(sys.platform != "linux", reason="a request to Linux")
def test_pages_of_a_mapped_file_go_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * (BYTES // 256))
    weights = torch.from_file(str(path), shared=False, size=BYTES, dtype=torch.uint8)[100:-100]
    total = int(weights.sum(dtype=torch.int64))
    before = _resident()
    page_out(weights)
    advise = paging._advise()
    assert advise is not None
    if not advise(weights.data_ptr() & -(1 << 16), 1 << 16, paging._PAGE_OUT):  # a kernel that knows the request
        assert before - _resident() > BYTES // 2
    assert int(weights.sum(dtype=torch.int64)) == total


def test_own_memory_keeps_its_values() -> None:
    weights = torch.randn(1 << 16)
    copy = weights.clone()
    page_out(weights)
    page_out(weights[::2])
    page_out(weights[:3])
    assert torch.equal(weights, copy)
