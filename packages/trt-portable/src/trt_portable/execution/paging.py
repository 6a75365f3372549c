"""Giving memory back that nothing reads for the time being."""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import torch

_PAGE_OUT: Final = 21
"""`MADV_PAGEOUT` of Linux 5.4: clean pages of mapped files are dropped, and read again when they are needed."""

_NO_FILES: Final = ("/dev/", "/memfd:", "/SYSV")
"""How paths of maps begin whose memory processes share without a file."""
_plans: Final[dict[int, range]] = {}
"""Memory that may be a mapped file's, by who keeps it."""
_files: Final[dict[int, bool]] = {}
"""Whether it is, by the same, where somebody has asked: the list of all maps takes milliseconds to read."""

_LEAST_BYTES: Final = 1 << 18
"""Below, a map of its own costs more than it gives back."""


def page_out(tensor: torch.Tensor) -> None:
    """Asks the system to take back the memory of a tensor until something reads it.

    What lies in a mapped file then takes no memory; values stay what they are. Only what `release_pages_of` was told of
    goes: other memory the system would write to a disk for swapping. Other systems than Linux, and kernels that do not
    know the request, leave everything as it is.

    Args:
        tensor: On the CPU, contiguous.
    """
    advise = _advise()
    if advise is None or tensor.device.type != "cpu" or not tensor.is_contiguous():
        return
    begin = tensor.data_ptr()
    end = begin + tensor.nbytes
    first, last = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if last <= first:
        return
    for keeper, known in list(_plans.items()):
        if begin in known and end - 1 in known:
            if keeper not in _files:
                _files[keeper] = _is_file(known)
            if _files[keeper]:
                advise(first, last - first, _PAGE_OUT)
            return


def release_pages_of(memory: torch.Tensor, keeper: object) -> None:
    """Lets `page_out` act on memory, if it turns out to be that of a mapped file.

    Args:
        memory: On the CPU, contiguous.
        keeper: Keeps it alive; when it dies, the address may soon be that of something else.
    """
    found = range(memory.data_ptr(), memory.data_ptr() + memory.nbytes)
    if found and _advise() is not None:
        _forget(id(keeper))
        _plans[id(keeper)] = found
        weakref.finalize(keeper, _forget, id(keeper))


def _forget(keeper: int) -> None:
    _plans.pop(keeper, None)
    _files.pop(keeper, None)


def _is_file(memory: range) -> bool:
    """Whether one map of a file on a disk holds all of some memory."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    for line in maps.splitlines():  # in the order of addresses: from-to, access, offset, device, inode, path
        begin, _, rest = line.partition("-")
        if int(begin, 16) > memory.start:
            break
        end, _, _, _, inode, *path = rest.split(maxsplit=5)
        if memory.stop <= int(end, 16):
            return inode != "0" and not "".join(path).startswith(_NO_FILES)
    return False


def passing_copy(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """A copy that goes back to the system with its last use, since the C library has no part in it.

    What that library frees, it keeps for what comes next. A large copy between results that stay leaves a hole.

    Args:
        tensor: On the CPU, of any strides.
        strides: The copy's, dense: elements fill its memory.
    """
    if tensor.nbytes < _LEAST_BYTES:
        copy = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device="cpu")
    else:
        memory = torch.frombuffer(memoryview(mmap.mmap(-1, tensor.nbytes)), dtype=tensor.dtype)
        copy = memory.as_strided(tensor.shape, strides)
    return copy.copy_(tensor)


def return_freed_memory() -> None:
    """Gives memory back to the system that was freed, but that the C library keeps for what comes next.

    Pieces of many sizes that come and go, as packed weights and results do while layers are timed, leave it with
    holes. Where the library is not glibc, nothing happens.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    if sys.platform != "linux":
        return None
    function = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_size_t,)
    trim: Callable[[int], int] = function
    return trim


@functools.cache
def _advise() -> Callable[[int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    advise: Callable[[int, int, int], int] = function
    return advise
