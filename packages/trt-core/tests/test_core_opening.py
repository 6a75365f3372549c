"""Files that nobody vouches for: what is mapped, what is read, and what is neither."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from trt_core import FileError, PlanError
from trt_core.files.opening import map_file, opened, require_content

posix = pytest.mark.skipif(sys.platform == "win32", reason="modes and pipes of POSIX")
LARGE = b"0123456789abcdef" * (1 << 16)


def _is_mapped(path: Path, copy: bool | None = None) -> bool:
    """Whether what a later writer does to the file shows in what was opened."""
    content = map_file(str(path), "a file", "a test", copy=copy)
    before = path.read_bytes()
    assert bytes(content) == before
    with path.open("r+b") as file:
        file.write(b"X")
    shows = content[:1] == b"X"
    path.write_bytes(before)
    return shows


@posix
@pytest.mark.parametrize(
    ("size", "mode", "is_mapped"),
    [(len(LARGE), 0o644, True), (1000, 0o644, False), (len(LARGE), 0o664, False), (len(LARGE), 0o602, False)],
)
def test_large_files_are_mapped_that_nobody_else_writes_to(
    tmp_path: Path, size: int, mode: int, is_mapped: bool
) -> None:
    path = tmp_path / "file"
    path.write_bytes(LARGE[:size])
    path.chmod(mode)
    assert _is_mapped(path) is is_mapped
    assert _is_mapped(path, copy=False)
    assert not _is_mapped(path, copy=True)


@posix
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
def test_files_of_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(LARGE)
    os.chown(path, 12345, 12345)
    assert not _is_mapped(path)


@posix
def test_what_was_read_belongs_to_whoever_read_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(LARGE)
    content = map_file(str(path), "a file", "a test", copy=True)
    os.truncate(path, 0)
    assert bytes(content) == LARGE
    content[:1] = b"X"
    child = os.fork()
    if not child:
        content[1:2] = b"Y"
        os._exit(content[:2] != b"XY")
    assert os.waitpid(child, 0)[1] == 0
    assert content[:2] == b"X1"


@posix
def test_a_file_that_is_shortened_meanwhile_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(LARGE)
    real = os.fstat

    def shorten(descriptor: int) -> os.stat_result:
        found = real(descriptor)
        os.truncate(path, 100)
        return found

    monkeypatch.setattr(os, "fstat", shorten)
    with pytest.raises(PlanError, match="shortened while it was read"):
        map_file(str(path), "a file", "a test", copy=True)


@posix
def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to("/dev/zero")
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    for name in ("pipe", "folder", "device"):
        with pytest.raises(FileError, match="not a regular file"), opened(tmp_path / name):
            pass
    assert before == (len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0)
    (tmp_path / "file").write_bytes(b"content")
    with opened(tmp_path / "file") as file:
        assert file.read() == b"content"


@posix
@pytest.mark.parametrize("held", [0, 1, 1 << 20])
def test_a_terabyte_of_holes_is_refused(tmp_path: Path, held: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(LARGE[:held] * (held > 0))
    os.truncate(path, 1 << 40)
    with opened(path) as file:
        file.seek(5)
        with pytest.raises(FileError, match="are holes"):
            require_content(file)
        assert file.tell() == 5


@posix
@pytest.mark.parametrize("size", [0, 1 << 20, 65 << 20])
def test_files_that_are_small_or_hold_what_they_say_are_taken(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(LARGE * 2)
    os.truncate(path, size)
    with opened(path) as file:
        require_content(file)
        assert len(file.read(10)) == min(size, 10)
