"""Opening files that nobody vouches for: regular ones only, each opened once and mapped."""

from __future__ import annotations

import mmap
import os
import stat
from typing import Any

from trt_core.errors import PlanError


def map_file(path: str, what: str, writer: str) -> Any:
    """Maps a file into memory; changes to the memory never reach the file.

    Args:
        path: The file.
        what: What it should be, for messages: "a saved program".
        writer: What writes such files.

    Raises:
        PlanError: It is empty, or not a regular file: a folder, a pipe, a device.
        OSError: It cannot be opened.
    """
    # without O_NONBLOCK, opening a pipe waits for somebody to write
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    if os.path.isdir(path):
        raise PlanError(f"this is a folder, not {what}", where=path)
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise PlanError("this is not a regular file", where=path, hint=f"give a file written by {writer}")
        if not status.st_size:
            raise PlanError(f"this is not {what}", where=path, why="the file is empty", hint="copy the file again")
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
    finally:
        os.close(descriptor)
