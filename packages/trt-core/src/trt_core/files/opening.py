"""Opening files that nobody vouches for: regular ones only, each opened once, then mapped or read.

A map shows what the file holds when it is looked at. Whoever writes to the file changes what was checked, and whoever
shortens it ends the process with SIGBUS. So only files that nobody else can write to are mapped; others are read.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final

from trt_core.errors import FileError, InputError, PlanError
from trt_core.wording import kind_of

if TYPE_CHECKING:
    from trt_core.files.folder import Folder

# without O_NONBLOCK, opening a pipe waits for somebody to write
_FLAGS: Final[int] = (
    os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
)


_READ_BYTES: Final = 256 << 10
"""Files up to this size are read rather than mapped, which takes no longer beside what loading one takes."""

_MOST_HOLES: Final = 64
"""Bytes of a large file for each one that the disk holds."""
_SMALL: Final = 64 << 20
"""Bytes of a file that may be all holes."""

_OTHERS_CAN_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def why_not_private(found: os.stat_result, *, or_the_systems: bool = False) -> str:
    """Why others than this user can write to a file or folder; nothing where none can.

    Args:
        found: What is known of it.
        or_the_systems: Whether it may be root's as well.
    """
    if sys.platform == "win32":  # a user's profile is private there, and modes say nothing
        return ""
    user = os.geteuid()
    if found.st_uid != user and not (or_the_systems and found.st_uid == 0):
        return f"it belongs to user {found.st_uid}, this process runs as user {user}"
    if found.st_mode & _OTHERS_CAN_WRITE:
        return f"others can write to it (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


@dataclass(frozen=True)
class FileOfFolder(os.PathLike[str]):
    """A file that is opened in an open folder, whatever its path names by then; no link is followed to it.

    Attributes:
        folder: The folder.
        name: The file's name in it, or the way down to it.
    """

    folder: Folder
    name: str

    def __fspath__(self) -> str:
        return os.path.join(self.folder.path, self.name)

    __str__ = __fspath__


Path = str | os.PathLike[str]


def file_name(path: Path) -> str:
    """Returns the name of a file.

    Raises:
        InputError: It is neither a string nor a path, or no file can have it.
    """
    try:
        name = os.fsdecode(path)
        if b"\0" in os.fsencode(name):
            raise ValueError("it has a NUL character")
        return name
    except TypeError as error:
        raise InputError(f"a file is named by a string or a path, not by {kind_of(path)}") from error
    except ValueError as error:
        raise InputError("no file has such a name", where=ascii(os.fspath(path)), why=str(error)) from error


def _open(path: Path) -> int:
    file_name(path)
    return path.folder.open_to_read(path.name) if isinstance(path, FileOfFolder) else os.open(path, _FLAGS)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Opens a file for reading, if it is a regular one; pipes and devices are refused at once.

    Raises:
        FileError: It is a folder, a pipe or a device; or a link, where it is to be one of a folder.
        OSError: It cannot be opened.
    """
    descriptor = _open(path)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileError("this is not a regular file", where=os.fsdecode(path), hint="give a file, no folder or pipe")
    with os.fdopen(descriptor, "rb") as file:
        yield file


def require_content(file: BinaryIO) -> None:
    """Refuses a large file that is holes, but for little: it takes no room on a disk, and time and memory to read.

    Args:
        file: Open for reading; where it stands, it stays.

    Raises:
        FileError: It is.
    """
    size = os.fstat(file.fileno()).st_size
    if size > _SMALL and (held := _held_bytes(file.fileno(), size // _MOST_HOLES)) * _MOST_HOLES < size:
        raise FileError(
            f"of {size} bytes of the file {held} are there, and the rest are holes", hint="write the file anew"
        )


def _held_bytes(descriptor: int, most: int) -> int:
    """Bytes of a file that are no holes, counted until they are more than so many; more where nobody knows of holes."""
    if not hasattr(os, "SEEK_DATA"):
        return most + 1
    before = os.lseek(descriptor, 0, os.SEEK_CUR)
    at = held = 0
    try:
        while held <= most:
            at = os.lseek(descriptor, at, os.SEEK_DATA)
            after = os.lseek(descriptor, at, os.SEEK_HOLE)
            held, at = held + after - at, after
    except OSError as error:
        return held if error.errno == errno.ENXIO else most + 1  # nothing but a hole follows, or nothing is known
    finally:
        os.lseek(descriptor, before, os.SEEK_SET)
    return held


def map_file(path: Path, what: str, writer: str, *, copy: bool | None = None) -> mmap.mmap:
    """Holds the content of a file in memory; changes to the memory never reach the file.

    Args:
        path: The file.
        what: What it should be, for messages: "a saved program".
        writer: What writes such files.
        copy: True to read it, so that nothing that becomes of the file matters; False to map it. By default it is
            mapped if it is large, and nobody but this user and root can write to it.

    Raises:
        PlanError: It is empty, shortened meanwhile, larger than memory, or not a regular file: a folder, a pipe, a
            device.
        FileError: It is a link, where it is to be a file of a folder.
        OSError: It cannot be opened.
    """
    where = os.fspath(path)
    if os.path.isdir(where):
        raise PlanError(f"this is a folder, not {what}", where=where)
    descriptor = _open(path)
    try:
        return map_descriptor(descriptor, where, what, writer, copy=copy)
    finally:
        os.close(descriptor)


def map_descriptor(descriptor: int, path: str, what: str, writer: str, *, copy: bool | None = None) -> mmap.mmap:
    """Holds the content of an open file in memory; see `map_file`.

    Raises:
        PlanError: It is empty, shortened meanwhile, larger than memory, or not a regular file.
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise PlanError("this is not a regular file", where=path, hint=f"give a file written by {writer}")
    if not status.st_size:
        raise PlanError(f"this is not {what}", where=path, why="the file is empty", hint="copy the file again")
    try:
        if not is_read(status, copy):
            return mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
        memory = _empty_memory(status.st_size)
    except (OSError, MemoryError, OverflowError) as error:  # a file of holes may be of any size
        raise PlanError(
            f"there is no memory for {what}", where=path, why=f"the file has {status.st_size} bytes: {error}"
        ) from error
    with memoryview(memory) as view, open(descriptor, "rb", buffering=0, closefd=False) as file:
        done = 0
        while done < status.st_size:
            count = file.readinto(view[done:])
            if not count:
                raise PlanError("the file was shortened while it was read", where=path, hint="copy the file again")
            done += count
    return memory


def is_read(status: os.stat_result, copy: bool | None) -> bool:
    """Whether a file is read rather than mapped.

    Args:
        status: What is known of it.
        copy: See `map_file`.
    """
    if copy is not None:
        return copy
    return status.st_size <= _READ_BYTES or bool(why_not_private(status, or_the_systems=True))


def _empty_memory(size: int) -> mmap.mmap:
    """Zeros that begin at a page, as a map of a file does; a process that is forked has its own."""
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without large pages, which would take fewer steps to give them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def read_file(path: Path, most_bytes: int) -> bytes:
    """Reads a small file.

    Raises:
        PlanError: It is not a regular file, or too large.
        FileError: It is a link, where it is to be a file of a folder.
        OSError: It cannot be opened.
    """
    descriptor = _open(path)
    try:
        return read_descriptor(descriptor, os.fspath(path), most_bytes)
    finally:
        os.close(descriptor)


def read_descriptor(descriptor: int, path: str, most_bytes: int) -> bytes:
    """Reads an open file; see `read_file`.

    Raises:
        PlanError: It is not a regular file, or too large.
        OSError: It cannot be read.
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise PlanError("this is not a regular file", where=path)
    parts = []
    left = most_bytes + 1 if status.st_size <= most_bytes else 0
    try:
        while left and (part := os.read(descriptor, min(left, 1 << 20))):
            parts.append(part)
            left -= len(part)
    except OSError as error:
        error.filename = path  # by a descriptor the system knows none
        raise
    if not left:
        raise PlanError("the file is too large", where=path, why=f"it has more than {most_bytes} bytes")
    return b"".join(parts)
