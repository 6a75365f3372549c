"""Folders by descriptor: what was checked is what is used."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from trt_core import CacheError, FileError, InputError, PlanError
from trt_core.files.folder import Folder, PrivateFolder, take_lock, user_folder
from trt_core.files.replacing import replacing

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="modes and descriptors say nothing there")
needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")


def _write(path: Path, text: str = "content") -> None:
    path.write_text(text)
    path.chmod(0o600)


def test_a_folder_that_is_swapped_after_the_check_is_not_the_one_that_is_read(tmp_path: Path) -> None:
    folder = PrivateFolder.open(tmp_path / "cache")
    _write(tmp_path / "cache" / "entry", "ours")
    (tmp_path / "cache").rename(tmp_path / "moved")
    (tmp_path / "cache").mkdir()
    _write(tmp_path / "cache" / "entry", "theirs")
    assert folder.read("entry", 100) == b"ours"
    assert bytes(folder.map("entry")) == b"ours"
    folder.replace("entry", "other")
    assert folder.names() == ["other"] and os.listdir(tmp_path / "moved") == ["other"]


@pytest.mark.parametrize("name", ["a\0b", "\ud800", 3, None])
def test_names_that_no_folder_has_are_refused(name: Any) -> None:
    with pytest.raises(InputError, match=r"no file has such a name|a string or a path"):
        PrivateFolder.open(name)


@pytest.mark.parametrize("is_cache", [False, True])
def test_a_user_without_a_home_is_told_what_to_set(is_cache: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs as a number; it left as Python's RuntimeError."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for variable in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(CacheError, match="set TRT_X_DIR to one"):
        user_folder("x", "TRT_X_DIR", is_cache=is_cache)


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    folder = PrivateFolder.open(tmp_path / "cache")
    _write(tmp_path / "elsewhere")
    (tmp_path / "cache" / "entry").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        folder.read("entry", 100)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_write_to_is_not_read(tmp_path: Path, mode: int) -> None:
    folder = PrivateFolder.open(tmp_path / "cache")
    _write(tmp_path / "cache" / "entry")
    (tmp_path / "cache" / "entry").chmod(mode)
    with pytest.raises(CacheError, match="others can write to it"):
        folder.read("entry", 100)


@needs_root
def test_a_file_of_another_user_is_not_read(tmp_path: Path) -> None:
    folder = PrivateFolder.open(tmp_path / "cache")
    _write(tmp_path / "cache" / "entry")
    os.chown(tmp_path / "cache" / "entry", 12345, 12345)
    with pytest.raises(CacheError, match="belongs to user 12345"):
        folder.map("entry")


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    folder = PrivateFolder.open(tmp_path / "cache")
    os.mkfifo(tmp_path / "cache" / "entry", 0o600)
    with pytest.raises(CacheError, match="not a regular file"):
        folder.read("entry", 100)


def test_a_file_that_is_too_large_is_not_read_whole(tmp_path: Path) -> None:
    folder = PrivateFolder.open(tmp_path / "cache")
    _write(tmp_path / "cache" / "entry", "x" * 101)
    with pytest.raises(PlanError, match="more than 100 bytes"):
        folder.read("entry", 100)


def test_links_of_ones_own_lead_to_a_folder(tmp_path: Path) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "real" / "deep").chmod(0o700)
    (tmp_path / "link").symlink_to("real/../real")
    (tmp_path / "whole").symlink_to(tmp_path / "link" / "deep")
    _write(tmp_path / "real" / "deep" / "entry")
    assert PrivateFolder.open(tmp_path / "whole").read("entry", 100) == b"content"


@needs_root
def test_a_link_of_another_user_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    os.chown(tmp_path / "link", 12345, 12345, follow_symlinks=False)
    with pytest.raises(CacheError, match="link of user 12345"):
        PrivateFolder.open(tmp_path / "link")


def test_a_folder_in_one_where_everybody_renames_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(CacheError, match="everybody can rename"):
        PrivateFolder.open(tmp_path / "open" / "cache")
    (tmp_path / "open").chmod(0o1777)
    assert stat.S_IMODE(os.stat(PrivateFolder.open(tmp_path / "open" / "cache").path).st_mode) == 0o700


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(20):
        Folder.open(str(tmp_path)).names()
        PrivateFolder.open(tmp_path / "cache")
        with pytest.raises(CacheError):
            PrivateFolder.open("/dev/null")
    assert not before or len(os.listdir("/proc/self/fd")) <= before


def test_a_lock_keeps_others_out(tmp_path: Path) -> None:
    folder = Folder.open(str(tmp_path))
    with folder.locked("lock", 1), pytest.raises(TimeoutError), Folder.open(str(tmp_path)).locked("lock", 0.05):
        pass
    with folder.locked("lock", 0.05):
        pass


NO_LOCKS = [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL]


@pytest.mark.parametrize("code", [*NO_LOCKS, errno.EIO, errno.ESTALE, errno.EBADF, errno.EPERM])
def test_a_lock_that_cannot_be_asked_for_is_neither_free_nor_taken(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who removes what nobody has locked must not take it for free; writers do without where there are no locks."""
    fcntl = pytest.importorskip("fcntl")

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    (tmp_path / "model").write_bytes(b"old")
    with (tmp_path / "lock").open("wb") as file:
        assert take_lock(file.fileno())
        monkeypatch.setattr(fcntl, "flock", refuse)
        with pytest.raises(OSError, match=os.strerror(code)):
            take_lock(file.fileno())
    is_free = contextlib.nullcontext() if code in NO_LOCKS else pytest.raises(FileError, match=os.strerror(code))
    with is_free as told, Folder.open(str(tmp_path)).locked("lock", 0):
        pass
    assert told is None or (told.value.where, told.value.errno) == (str(tmp_path / "lock"), code)
    with is_free as told, replacing(tmp_path / "model") as written:
        written.write(b"new")
    assert told is None or (told.value.where.startswith(str(tmp_path / ".model-")) and told.value.hint)
    assert (tmp_path / "model").read_bytes() == (b"new" if told is None else b"old")
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "model"}


@pytest.mark.parametrize("code", [errno.EWOULDBLOCK, errno.EACCES])
def test_a_lock_that_somebody_has_is_waited_for(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(TimeoutError), Folder.open(str(tmp_path)).locked("lock", 0):
        pass
