"""Addresses as tensors."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest
import torch
from side_by_side import in_threads

from trt_portable.memory import is_aligned, memory_of, wrap_address

CPU = torch.device("cpu")
DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.float8_e4m3fn,
    torch.float8_e8m0fnu,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (1, 2, 1, 2, 1, 2, 1, 2)])
def test_shows_the_bytes_at_the_address(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    source = torch.randint(0, 2, shape).to(dtype)
    view = wrap_address(source.data_ptr(), shape, dtype, CPU)
    assert view.dtype is dtype
    assert tuple(view.shape) == shape
    assert view.data_ptr() == source.data_ptr()
    assert view.is_contiguous()
    assert torch.equal(
        view.view(torch.uint8) if shape else view.float(), source.view(torch.uint8) if shape else source.float()
    )


def test_writes_reach_the_owner_and_outlive_the_wrapper() -> None:
    source = torch.zeros(4)
    wrap_address(source.data_ptr(), (2, 2), torch.float32, CPU)[1, 0] = 7.0
    assert source.tolist() == [0.0, 0.0, 7.0, 0.0]


def test_an_unaligned_address_is_fine_on_the_host() -> None:
    memory = (ctypes.c_uint8 * 64)()
    address = ctypes.addressof(memory) + 1
    view = wrap_address(address, (4,), torch.int8, CPU)
    view.fill_(5)
    assert bytes(memory)[1:5] == b"\x05" * 4
    assert is_aligned(address, CPU)
    assert not is_aligned(128, torch.device("cuda", 0))


def test_an_empty_tensor_needs_no_memory() -> None:
    assert wrap_address(0, (0, 3), torch.float32, CPU).shape == (0, 3)


def test_refuses_null_and_ranks_above_eight() -> None:
    with pytest.raises(ValueError, match="null address"):
        wrap_address(0, (1,), torch.float32, CPU)
    with pytest.raises(ValueError, match="at most 8"):
        wrap_address(64, (1,) * 9, torch.float32, CPU)


def test_a_tensor_may_outlive_what_made_it() -> None:
    """Freed memory has other values here, so that reading it when the tensor dies ends the process."""
    script = """
import gc, importlib.util, os, sys, torch
spec = importlib.util.find_spec("trt_portable.memory")
memory = sys.modules["trt_portable.memory"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(memory)
x = torch.zeros(4)
sys.kept = memory.wrap_address(x.data_ptr(), (4,), torch.float32, torch.device("cpu"))
del spec
if hasattr(os, 'fork') and os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
del memory, sys.modules['trt_portable.memory']; gc.collect()
del sys.kept
"""
    environment = {**os.environ, "PYTHONMALLOC": "debug"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-1000:]


def test_memory_cannot_be_closed_under_a_tensor() -> None:
    memory = memory_of(b"plan")
    tensor = memory.as_tensor()[1:]
    with pytest.raises(BufferError):
        memory.close()
    assert bytes(tensor.tolist()) == b"lan"
    del tensor
    memory.close()


def test_threads_do_not_mix_their_descriptors() -> None:
    sources = [torch.full((index + 1,), float(index)) for index in range(8)]
    wrong: list[int] = []

    def work(index: int) -> None:
        source = sources[index]
        for _ in range(500):
            view = wrap_address(source.data_ptr(), (index + 1,), torch.float32, CPU)
            if view.shape[0] != index + 1 or view[0] != index:
                wrong.append(index)

    in_threads(work, range(8))
    assert not wrong
