"""Opening files that nobody vouches for: regular ones only, each opened once, then mapped or read."""

from __future__ import annotations

import mmap
import os
import stat
from typing import Final

from trt_core.errors import PlanError

# without O_NONBLOCK, opening a pipe waits for somebody to write
_FLAGS: Final[int] = (
    os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
)


def map_file(path: str, what: str, writer: str) -> mmap.mmap:
    """Maps a file into memory; changes to the memory never reach the file.

    Args:
        path: The file.
        what: What it should be, for messages: "a saved program".
        writer: What writes such files.

    Raises:
        PlanError: It is empty, or not a regular file: a folder, a pipe, a device.
        OSError: It cannot be opened.
    """
    if os.path.isdir(path):
        raise PlanError(f"this is a folder, not {what}", where=path)
    descriptor = os.open(path, _FLAGS)
    try:
        return map_descriptor(descriptor, path, what, writer)
    finally:
        os.close(descriptor)


def map_descriptor(descriptor: int, path: str, what: str, writer: str) -> mmap.mmap:
    """Maps an open file; see `map_file`.

    Raises:
        PlanError: It is empty, or not a regular file.
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise PlanError("this is not a regular file", where=path, hint=f"give a file written by {writer}")
    if not status.st_size:
        raise PlanError(f"this is not {what}", where=path, why="the file is empty", hint="copy the file again")
    return mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)


def read_file(path: str, most_bytes: int) -> bytes:
    """Reads a small file.

    Raises:
        PlanError: It is not a regular file, or too large.
        OSError: It cannot be opened.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        return read_descriptor(descriptor, path, most_bytes)
    finally:
        os.close(descriptor)


def read_descriptor(descriptor: int, path: str, most_bytes: int) -> bytes:
    """Reads an open file; see `read_file`.

    Raises:
        PlanError: It is not a regular file, or too large.
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise PlanError("this is not a regular file", where=path)
    parts = []
    left = most_bytes + 1
    while left and (part := os.read(descriptor, min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    if not left:
        raise PlanError("the file is too large", where=path, why=f"it has more than {most_bytes} bytes")
    return b"".join(parts)
