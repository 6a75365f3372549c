"""Replaces files whole: whoever reads sees the old file or the new one, also when the writer is killed halfway."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final

from trt_core.errors import FileError, InputError
from trt_core.files.folder import Folder, take_lock
from trt_core.files.opening import Path as Path
from trt_core.files.opening import file_name as file_name

_LOCKS_OPEN_FILES: Final = sys.platform != "win32"  # there, leftovers of killed processes stay
_MARK: Final = ".saving"
_NO_ROOM: Final = frozenset(
    getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG", "EIO") if hasattr(errno, name)
)


@contextmanager
def replacing(path: Path, folder: Folder | None = None, *, is_new: bool = False) -> Iterator[BinaryIO]:
    """Opens a file for writing that replaces `path` when the block ends well, and leaves no trace when not.

    The new file keeps the permissions of the old one. A symbolic link stays, and the file that it names is replaced.
    What killed processes left of earlier attempts to write the same file is removed.

    Args:
        path: The file.
        folder: The folder that it lies in, where that was opened before; `path` is then its name there.
        is_new: Keep what is there, or has come there when the block ends.

    Yields:
        A binary file in the same folder, whose name ends like `path`.

    Raises:
        InputError: `path` names no file, or something else than one: a folder, a pipe, a device.
        FileExistsError: `is_new`, and there is a file.
        FileError: There is no room for the file, or the disk fails, or a lock cannot be asked for.
        OSError: The file cannot be written for another reason.
    """
    if folder is None:
        place, base = os.path.split(os.path.realpath(file_name(path)))
        if not os.path.isdir(place):
            raise FileNotFoundError(errno.ENOENT, "there is no such folder to write to", place)
        folder = Folder.open(place)
    else:
        base = file_name(path)
    old = _status(folder, base)
    if old is not None and is_new:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(path))
    put = folder.put_new if is_new else folder.replace
    stem, ending = os.path.splitext(base)
    prefix = f".{stem[:100]}-"
    _remove_leftovers(folder, prefix)
    try:
        temporary, descriptor = _create(folder, prefix, ending, 0o666 if old is None else 0o600)
    except OSError as error:
        if not isinstance(error, FileError):
            error.filename = os.fspath(path)  # what the caller knows of
        raise
    try:
        with explaining_no_room("the file", path):
            with os.fdopen(descriptor, "wb") as file:
                if old is not None:
                    _keep_permissions(descriptor, old)
                yield file
                file.flush()
                os.fsync(descriptor)
                if _LOCKS_OPEN_FILES:  # before the lock goes, so that nobody takes it for a leftover
                    put(temporary, base)
            if not _LOCKS_OPEN_FILES:
                put(temporary, base)
            folder.sync()
    except BaseException:
        folder.remove(temporary)
        raise


@contextmanager
def explaining_no_room(what: str, path: Path) -> Iterator[None]:
    """Says of what cannot be written for lack of room, or since the disk fails, where that is and what to do.

    Args:
        what: What is written.
        path: Where it was to be.

    Raises:
        FileError: There is no room, or the disk fails.
    """
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        if not error.errno or error.errno not in _NO_ROOM:
            raise
        raise FileError(
            f"{what} cannot be written",
            where=os.fspath(path),
            why=os.strerror(error.errno),
            hint="free space on the disk, or choose another folder; what was there before is unchanged",
            number=error.errno,
        ) from error


def _status(folder: Folder, name: str) -> os.stat_result | None:
    """What is known of the file that will be replaced; None where there is none."""
    try:
        status = folder.status(name)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        path = os.path.join(folder.path, name)
        raise InputError(f"{path!r} is not a regular file", hint="give the name of a file to write")
    return status


def _create(folder: Folder, prefix: str, ending: str, mode: int) -> tuple[str, int]:
    """A new file that is locked as long as it is open, which tells that its writer lives."""
    while True:
        name = f"{prefix}{os.urandom(8).hex()}{_MARK}{ending}"
        descriptor = folder.open_file(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        if not _LOCKS_OPEN_FILES:
            return name, descriptor
        try:
            if not folder.is_taken(name, descriptor) and os.fstat(descriptor).st_nlink:
                return name, descriptor
        except BaseException:
            os.close(descriptor)
            folder.remove(name)
            raise
        os.close(descriptor)  # somebody took it for a leftover before it was locked, and removes it


def _remove_leftovers(folder: Folder, prefix: str) -> None:
    """Removes unlocked files of earlier writers: their processes are gone."""
    if not _LOCKS_OPEN_FILES:
        return
    with contextlib.suppress(OSError):
        for name in folder.names():
            if name.startswith(prefix) and _MARK in name:
                with contextlib.suppress(OSError):
                    _remove_if_unlocked(folder, name)


def _remove_if_unlocked(folder: Folder, name: str) -> None:
    descriptor = folder.open_file(name, os.O_RDWR | os.O_NONBLOCK)
    try:
        if take_lock(descriptor):
            folder.remove(name)
    finally:
        os.close(descriptor)


def _keep_permissions(descriptor: int, old: os.stat_result) -> None:
    if hasattr(os, "fchown"):
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, old.st_uid, old.st_gid)
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
