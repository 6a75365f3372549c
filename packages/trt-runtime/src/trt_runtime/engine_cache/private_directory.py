"""Directories that only their owner can write to: what is loaded from there is trusted as much as the owner."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Final

from trt_core.errors import CacheError

_VARIABLE: Final = "TRT_ENGINE_CACHE_DIR"
_OTHERS_CAN_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def default_directory() -> Path:
    """Returns the engine cache directory of this user; `TRT_ENGINE_CACHE_DIR` overrides it."""
    chosen = os.environ.get(_VARIABLE, "")
    if chosen:
        return Path(chosen)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "trt" / "engines"


def directory_is_configured() -> bool:
    """Whether `TRT_ENGINE_CACHE_DIR` names a directory."""
    return bool(os.environ.get(_VARIABLE))


def open_private_directory(path: str | os.PathLike[str]) -> Path:
    """Makes sure that a directory exists and is private, and returns its absolute path.

    A new directory gets mode 0700. One that exists must belong to this user, and nobody else may write to it.

    Raises:
        CacheError: It cannot be made, is no directory, belongs to someone else, or others can write to it.
    """
    directory = Path(path).expanduser().absolute()
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.stat()
    except OSError as error:
        raise CacheError(
            "the engine cache directory cannot be used",
            where=str(directory),
            why=f"{type(error).__name__}: {error.strerror or error}",
            hint="give another directory as engine_cache_dir",
        ) from error
    why = _why_not_private(found)
    if why:
        raise CacheError(
            "the engine cache directory is not private",
            where=str(directory),
            why=why,
            hint="give a directory of your own, or run chmod 700 on it after checking what it holds",
        )
    return directory


def _why_not_private(found: os.stat_result) -> str:
    if sys.platform == "win32":  # a user's profile is private there, and modes say nothing
        return ""
    if found.st_uid != os.geteuid():
        return f"it belongs to user {found.st_uid}, this process runs as user {os.geteuid()}"
    if found.st_mode & _OTHERS_CAN_WRITE:
        return f"others can write to it (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""
