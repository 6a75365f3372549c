"""Folders by descriptor: what was checked is what is used, whoever renames what its path names meanwhile."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import sys
import time
import weakref
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trt_core.errors import CacheError, FileError
from trt_core.files.opening import FileOfFolder, file_name, map_file, read_file, why_not_private

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_BY_DESCRIPTOR: Final = {os.open, os.stat, os.unlink, os.rename, os.mkdir} <= os.supports_dir_fd
"""Whether files can be named relative to a descriptor: everywhere but on Windows."""

_FLAGS: Final[int] = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
_FOLDER: Final[int] = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_PASS: Final[int] = _FOLDER | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_PATH", os.O_RDONLY)
"""How a folder on the way is opened: on Linux without asking for the right to list it."""

_MOST_LINKS: Final = 40

_NO_LOCKS: Final = frozenset(
    getattr(errno, name) for name in ("ENOLCK", "ENOSYS", "EOPNOTSUPP", "ENOTSUP", "EINVAL") if hasattr(errno, name)
)
"""Errors by which a file system says that it has no locks: NFS without its lock daemon, Lustre mounted without them,
what flock(2) of the BSDs and of macOS says of such files, and fcntl(2) of POSIX, by which Linux locks those of NFS.
"""


class Folder:
    """A folder that stays the same one, wherever it is moved.

    Args:
        path: How messages call it.
        descriptor: Open on it, and closed with this object; None where there are no such descriptors.
    """

    def __init__(self, path: str, descriptor: int | None) -> None:
        self.path = path
        self._descriptor = descriptor
        if descriptor is not None:
            weakref.finalize(self, os.close, descriptor)

    @classmethod
    def open(cls, path: str) -> Folder:
        """Opens a folder that may be anybody's.

        Raises:
            OSError: It cannot be opened.
        """
        return cls(path, os.open(path or ".", os.O_RDONLY | _FOLDER) if _BY_DESCRIPTOR else None)

    def at(self, name: str) -> tuple[str, dict[str, Any]]:
        """How functions of `os` name a file in the folder: a path, and keywords."""
        if self._descriptor is None:
            return os.path.join(self.path, name), {}
        return name, {"dir_fd": self._descriptor}

    def open_file(self, name: str, flags: int, mode: int = 0o600) -> int:
        """Opens a file, which may be no link.

        Raises:
            OSError: It cannot be opened.
        """
        path, where = self.at(name)
        return os.open(path, flags | _FLAGS, mode, **where)

    def file(self, name: str) -> FileOfFolder:
        """A file in the folder, or below it, for what reads files."""
        return FileOfFolder(self, name)

    def open_to_read(self, name: str) -> int:
        """Opens a file in the folder, or below it; neither it nor a folder on the way may be a link.

        Raises:
            FileError: It is a link.
            OSError: It cannot be opened.
        """
        here: Folder = self
        *folders, last = os.path.normpath(name).split(os.sep)
        for part in folders:
            path = os.path.join(here.path, part)
            here = Folder(path, None if self._descriptor is None else here.open_file(part, os.O_RDONLY | _FOLDER))
        try:
            return here.open_file(last, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except OSError as error:
            if error.errno != errno.ELOOP:
                error.filename = os.path.join(self.path, name)
                raise
            raise FileError(
                "this is a symbolic link, which may lead out of its folder",
                where=os.path.join(self.path, name),
                hint="copy the folder with what its links lead to (cp -rL), or download it to a folder without links",
                number=errno.ELOOP,
            ) from error

    def names(self) -> list[str]:
        """Names of what is in the folder."""
        return os.listdir(self.path if self._descriptor is None else self._descriptor)

    def status(self, name: str) -> os.stat_result:
        """What is known of a file; of a link, where it is one.

        Raises:
            OSError: There is none.
        """
        path, where = self.at(name)
        return os.stat(path, follow_symlinks=False, **where)

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""
        path, where = self.at(name)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path, **where)

    def replace(self, name: str, other: str) -> None:
        """Gives a file the place of another one."""
        path, where = self.at(name)
        place, _ = self.at(other)
        at = where.get("dir_fd")
        os.replace(path, place, src_dir_fd=at, dst_dir_fd=at)

    def put_new(self, name: str, other: str) -> None:
        """Gives a file another name, that no file has.

        Raises:
            FileExistsError: One has it.
        """
        path, where = self.at(name)
        place, _ = self.at(other)
        at = where.get("dir_fd")
        try:
            os.link(path, place, src_dir_fd=at, dst_dir_fd=at)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            with contextlib.suppress(FileNotFoundError):
                self.status(other)
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), place) from None
            self.replace(name, other)
        else:
            self.remove(name)

    def touch(self, name: str) -> None:
        """Gives a file the present time."""
        path, where = self.at(name)
        os.utime(path, **where)

    @contextlib.contextmanager
    def locked(self, name: str, seconds: float, mode: int = 0o600) -> Iterator[None]:
        """Keeps other processes and threads that ask for the same lock out, unless the file system has no locks.

        Args:
            name: The lock's file.
            seconds: How long to wait for it.
            mode: Permissions of the file where it is made, less those of the process' mask.

        Raises:
            TimeoutError: Somebody had it for so many seconds.
            FileError: Nobody can say whether it is free, though the file system has locks.
            OSError: The lock's file cannot be opened.
        """
        descriptor = self.open_file(name, os.O_RDWR | os.O_CREAT, mode)
        try:
            end = time.monotonic() + seconds
            while self.is_taken(name, descriptor):
                if time.monotonic() > end:
                    raise TimeoutError
                time.sleep(0.02)
            yield
        finally:
            os.close(descriptor)

    def is_taken(self, name: str, descriptor: int) -> bool:
        """Takes the lock of an open file, unless somebody has it, or the file system has no locks.

        Raises:
            FileError: Nobody can say, though the file system has locks.
        """
        try:
            return not take_lock(descriptor)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            raise FileError(
                "a file cannot be locked",
                where=os.path.join(self.path, name),
                why=os.strerror(error.errno or 0),
                hint="see whether its disk or file server fails; others may be writing there, so nothing was changed",
                number=error.errno or 0,
            ) from error

    def sync(self) -> None:
        """Makes new names last through a power failure, where the file system can."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.fsync(self._descriptor)


class PrivateFolder(Folder):
    """A folder of this user alone: what its files say is trusted as much as the user."""

    @classmethod
    def open(cls, path: str | os.PathLike[str], what: str = "the engine cache directory") -> PrivateFolder:
        """Opens a folder that nobody else writes to; a new one gets mode 0700.

        Links on the way must be this user's or the system's, and no folder on it may be one in which everybody renames
        what others made.

        Args:
            path: The folder.
            what: How messages call it.

        Raises:
            InputError: No folder has such a name.
            CacheError: It cannot be made, is no folder, belongs to somebody else, or others can write to it.
        """
        name = os.path.abspath(os.path.expanduser(file_name(path)))
        try:
            os.makedirs(os.path.dirname(name), exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700)
            descriptor = _walk(name) if _BY_DESCRIPTOR else None
            found = os.stat(name) if descriptor is None else os.fstat(descriptor)
            if not stat.S_ISDIR(found.st_mode):
                raise NotADirectoryError("it is no folder")
            why = why_not_private(found)
        except _NotPrivate as error:
            why = str(error)
        except OSError as error:
            raise CacheError(
                f"{what} cannot be used",
                where=name,
                why=f"{type(error).__name__}: {error.strerror or error}",
                hint="give another one",
            ) from error
        if why:
            raise CacheError(
                f"{what} is not private",
                where=name,
                why=why,
                hint="give a directory of your own, or run chmod 700 on it after checking what it holds",
            )
        return cls(name, descriptor)

    def read(self, name: str, most_bytes: int) -> bytes:
        """Reads a small file that this user has written.

        Raises:
            FileNotFoundError: There is none.
            CacheError: It is no regular file of this user's, or too large.
            OSError: It cannot be read.
        """
        return read_file(self.file(name), most_bytes)

    def map(self, name: str) -> mmap.mmap:
        """Maps a file that this user has written.

        Raises:
            FileNotFoundError: There is none.
            CacheError: It is no regular file of this user's.
            PlanError: It is empty.
            OSError: It cannot be read.
        """
        return map_file(self.file(name), "an entry", "this user")

    def open_to_read(self, name: str) -> int:
        """Opens a file that this user has written.

        Raises:
            CacheError: It is no regular file of this user's.
            OSError: It cannot be opened.
        """
        descriptor = super().open_to_read(name)
        found = os.fstat(descriptor)
        why = why_not_private(found) if stat.S_ISREG(found.st_mode) else "it is not a regular file"
        if why:
            os.close(descriptor)
            raise CacheError("a file is not used", where=os.path.join(self.path, name), why=why)
        return descriptor


def user_folder(name: str, variable: str, *, is_cache: bool) -> Path:
    """Where files of this user lie, as the operating system has it.

    Args:
        name: What they are.
        variable: Environment variable that names another folder.
        is_cache: Whether they can be made again.

    Raises:
        CacheError: Nobody says where this user's files lie.
    """
    chosen = os.environ.get(variable, "")
    if chosen:
        return Path(chosen)
    try:
        if sys.platform == "win32":
            kind, elsewhere = ("LOCALAPPDATA", "Local") if is_cache else ("APPDATA", "Roaming")
            base = os.environ.get(kind) or Path.home() / "AppData" / elsewhere
        elif sys.platform == "darwin" and is_cache:
            base = Path.home() / "Library" / "Caches"
        else:
            kind, elsewhere = ("XDG_CACHE_HOME", ".cache") if is_cache else ("XDG_CONFIG_HOME", ".config")
            base = os.environ.get(kind) or Path.home() / elsewhere
    except RuntimeError as error:  # a number that the system knows no user of, as containers have
        raise CacheError(f"there is no folder for {name}", why=str(error), hint=f"set {variable} to one") from error
    return Path(base) / "trt" / name


class _NotPrivate(Exception):
    """A folder on the way is not safe; the text says why."""


def _walk(path: str) -> int:
    """Opens a folder step by step from the root; nothing on the way is followed unlooked."""
    parts = deque(part for part in path.split(os.sep) if part)
    links = 0
    here = os.open(os.sep, _PASS)
    try:
        while parts:
            part = parts.popleft()
            if part == os.curdir:
                continue
            found = os.stat(part, dir_fd=here, follow_symlinks=False)
            if stat.S_ISLNK(found.st_mode):
                if found.st_uid not in (0, os.geteuid()):
                    raise _NotPrivate(f"{part!r} on the way to it is a link of user {found.st_uid}")
                links += 1
                if links > _MOST_LINKS:
                    raise OSError("too many links")
                target = os.readlink(part, dir_fd=here)
                parts.extendleft(reversed([step for step in target.split(os.sep) if step]))
                if target.startswith(os.sep):
                    here = _instead(here, os.open(os.sep, _PASS))
                continue
            flags = _PASS if parts else os.O_RDONLY | _FOLDER | getattr(os, "O_NOFOLLOW", 0)
            here = _instead(here, os.open(part, flags, dir_fd=here))
            mode = os.fstat(here).st_mode
            if parts and mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                raise _NotPrivate(f"everybody can rename what is in {part!r}, which it lies in")
    except BaseException:
        os.close(here)
        raise
    return here


def take_lock(descriptor: int) -> bool:
    """Takes the lock of an open file or folder, if nobody has it.

    It is held until the file is closed, or its process ends in whatever way.

    Raises:
        OSError: Nobody can say, as on a file system without locks.
    """
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return False
    return True


def _instead(old: int, new: int) -> int:
    os.close(old)
    return new
