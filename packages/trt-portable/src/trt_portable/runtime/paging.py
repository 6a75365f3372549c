"""Giving memory back that nothing reads for the time being."""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from collections.abc import Callable, Sequence
from typing import Final

import torch

_PAGE_OUT: Final = 21
"""`MADV_PAGEOUT` of Linux 5.4: clean pages of mapped files are dropped, and read again when they are needed."""

_LEAST_BYTES: Final = 1 << 18
"""Below, a map of its own costs more than it gives back."""


def page_out(tensor: torch.Tensor) -> None:
    """Asks the system to take back the memory of a tensor until something reads it.

    What lies in a mapped file, as the weights of loaded plans do, then takes no memory; values stay what they are.
    Other systems, and kernels that do not know the request, leave everything as it is.

    Args:
        tensor: On the CPU, contiguous.
    """
    advise = _advise()
    if advise is None or tensor.device.type != "cpu" or not tensor.is_contiguous():
        return
    begin = tensor.data_ptr()
    first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (begin + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        advise(first, last - first, _PAGE_OUT)


def passing_copy(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """A copy that goes back to the system with its last use, since the C library has no part in it.

    What that library frees, it keeps for what comes next. A large copy between results that stay leaves a hole.

    Args:
        tensor: On the CPU, of any strides.
        strides: The copy's, dense: elements fill its memory.
    """
    if tensor.nbytes < _LEAST_BYTES:
        copy = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype)
    else:
        memory = torch.frombuffer(mmap.mmap(-1, tensor.nbytes), dtype=tensor.dtype)
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
