"""Folders that are made beside the place where they will appear whole; what killed makers left of them is found."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from trt_core.files.folder import Folder, take_lock

_LOCK_SECONDS: Final = 10.0  # others look at it for a moment


def leftovers(place: Path, name: str, lock: str) -> Iterator[Path]:
    """Folders that makers left which were killed: nobody holds their lock.

    Args:
        place: Where they lie.
        name: What they were made for.
        lock: The file in them that is locked.
    """
    for path in sorted(place.iterdir()):
        if path.name.startswith((f".{name}.saving-", f".{name}.new-")) and not is_being_made(path, lock):
            yield path


def locked_folder(
    place: Path, name: str, lock: str, held: contextlib.ExitStack, give_up: Callable[[Path], object]
) -> Path:
    """Makes a folder that is locked as long as a stack is not left, and is given up then.

    Before it is locked it is called new, and others may take it for one that was left: they rename it first, as its
    maker does once it is locked, so one of them succeeds.

    Args:
        place: Where it is made.
        name: What it is made for.
        lock: The file in it that is locked.
        held: Keeps the lock.
        give_up: Told of the folder once the lock is gone; it may have been given another name.

    Raises:
        OSError: There is no making a folder there.
    """
    while True:
        number = secrets.token_hex(8)
        made, staged = (place / f".{name}.{state}-{number}" for state in ("new", "saving"))
        made.mkdir()
        with contextlib.ExitStack() as stack:
            try:
                # others may read what they run
                stack.enter_context(Folder.open(str(made)).locked(lock, _LOCK_SECONDS, 0o666))
                made.rename(staged)
            except FileNotFoundError:
                continue
            except BaseException:
                shutil.rmtree(made, ignore_errors=True)
                raise
            held.callback(give_up, staged)
            held.enter_context(stack.pop_all())
            return staged


def is_being_made(folder: Path, lock: str) -> bool:
    """Whether somebody holds the lock of a folder: that of a file in it, as network file systems lock no folders."""
    try:
        descriptor = Folder.open(str(folder)).open_file(lock, os.O_RDWR | os.O_CREAT)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):  # nobody's folder, or no folder
        return False
    except OSError:  # nobody can say
        return True
    try:
        return not take_lock(descriptor)
    except OSError:
        return True
    finally:
        os.close(descriptor)


def take_away(folder: Path) -> None:
    """Removes a folder under another name, so that one alone does of all who rename it.

    Raises:
        OSError: Somebody else was faster.
    """
    away = folder.with_name(f"{folder.name}-{secrets.token_hex(4)}")
    folder.rename(away)
    shutil.rmtree(away, ignore_errors=True)
