"""Files that are replaced whole: permissions, links, leftovers, full disks, killed and concurrent writers."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fresh_process import run_python

from trt_core import FileError, InputError
from trt_core.files.folder import Folder
from trt_core.files.replacing import replacing

posix = pytest.mark.skipif(os.name != "posix", reason="POSIX permissions, links and signals")


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        _write(tmp_path / "missing" / "model.trtp", b"new")
    assert caught.value.filename == str(tmp_path / "missing")


@posix
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_permissions_stay(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "model.trtp"
    path.write_bytes(b"old")
    path.chmod(mode)
    _write(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == mode


@posix
def test_new_files_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        _write(tmp_path / "model.trtp", b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "model.trtp").stat().st_mode) == 0o640


@posix
def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    target = tmp_path / "store" / "model-1.trtp"
    target.write_bytes(b"old")
    link = tmp_path / "model.trtp"
    link.symlink_to("store/model-1.trtp")
    _write(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model.trtp", "store"]


@posix
def test_a_link_to_nothing_gets_its_file(tmp_path: Path) -> None:
    link = tmp_path / "model.trtp"
    link.symlink_to("later.trtp")
    _write(link, b"new")
    assert (tmp_path / "later.trtp").read_bytes() == b"new"


@posix
def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to(os.devnull)
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "device", "folder"):
        with pytest.raises(InputError, match="is not a regular file"):
            _write(tmp_path / name, b"new")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    assert len(list(tmp_path.iterdir())) == 3


@posix
def test_leftovers_of_killed_writers_go(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import sys, time
        from trt_core.files.replacing import replacing
        with replacing(sys.argv[1]) as file:
            file.write(b"half")
            file.flush()
            print("writing", flush=True)
            time.sleep(600)
    """)
    path = tmp_path / "model.trtp"
    path.write_bytes(b"old")
    writer = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None and writer.stdout.readline() == "writing\n"
    assert len(list(tmp_path.iterdir())) == 2
    _write(path, b"new")
    assert len(list(tmp_path.iterdir())) == 2  # the other writer lives, so its file stays
    writer.kill()
    writer.wait()
    assert path.read_bytes() == b"new"
    _write(path, b"newer")
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.trtp"]


@pytest.mark.slow
@posix
def test_a_full_disk_is_told_and_leaves_the_old_file(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import resource, sys
        import torch
        from torch import nn
        import trt_core, trt_runtime
        path = sys.argv[1]
        model = torch.export.export(nn.Linear(256, 256), (torch.ones(1, 256),))
        trt_runtime.save(model, path)
        before = open(path, "rb").read()
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        for format in ("program", "exported_program"):
            try:
                trt_runtime.save(model, path, format=format)
            except trt_core.FileError as error:
                assert error.errno and error.hint and error.where == path, error
                print("told", open(path, "rb").read() == before)
    """)
    path = tmp_path / "model.trtp"
    result = run_python(script, str(path))
    assert result.stdout == "told True\ntold True\n", result.stderr
    assert result.returncode == 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.trtp"]


def test_a_file_that_cannot_be_begun_is_named_as_the_caller_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Folder, name: str, flags: int, mode: int = 0o600) -> int:
        raise OSError(errno.EROFS, "Read-only file system", name)

    monkeypatch.setattr(Folder, "open_file", refuse)
    with pytest.raises(OSError, match="Read-only") as caught, replacing(tmp_path / "model.trtp"):
        pytest.fail("there is no file")
    assert caught.value.filename == str(tmp_path / "model.trtp")


def test_file_errors_are_os_errors() -> None:
    error = FileError("the file cannot be written", number=28, hint="free space")
    assert isinstance(error, OSError)
    assert error.errno == 28
    assert "free space" in str(error)


def test_concurrent_writers_each_write_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "model.trtp"
    contents = [bytes([number]) * 200_000 for number in range(8)]
    threads = [threading.Thread(target=_write, args=(path, content)) for content in contents]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if path.exists():
            assert path.read_bytes() in contents
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.trtp"]


@posix
def test_killed_writers_leave_the_old_file_or_the_new(tmp_path: Path) -> None:
    """A writer stops before every system call that changes the folder or the file, and is killed there."""
    script = textwrap.dedent("""
        import json, os, pathlib, sys
        import trt_core.files.replacing as replacing

        def write(path, fatal):
            calls = 0

            def dying(function):
                def call(*arguments, **keywords):
                    nonlocal calls
                    calls += 1
                    if calls == fatal:
                        os.kill(os.getpid(), 9)
                    return function(*arguments, **keywords)
                return call

            for name in ("open", "fsync", "replace", "fchmod", "close"):
                setattr(os, name, dying(getattr(os, name)))
            with replacing.replacing(path) as file:
                for _ in range(3):
                    dying(file.write)(b"new" * 10_000)

        path, ends = pathlib.Path(sys.argv[1]), []
        for fatal in range(1, 40):
            path.write_bytes(b"old")
            writer = os.fork()
            if not writer:
                write(path, fatal)
                os._exit(0)
            status = os.waitpid(writer, 0)[1]
            content = path.read_bytes()
            ends.append((status, content[:3].decode(), content in (b"old", b"new" * 30_000)))
            if not status:
                break
        print(json.dumps(ends))
    """)
    path = tmp_path / "model.trtp"
    result = run_python(script, str(path))
    assert result.returncode == 0, result.stderr
    ends = json.loads(result.stdout)
    assert [status for status, _, _ in ends] == [signal.SIGKILL] * (len(ends) - 1) + [0], "it never came to its end"
    assert {found for _, found, _ in ends} == {"old", "new"}
    assert all(is_whole for _, _, is_whole in ends)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.trtp"]
    assert len(ends) > 8


def test_names_that_are_as_long_as_names_can_be(tmp_path: Path) -> None:
    path = tmp_path / ("m" * 240 + ".trtp")
    _write(path, b"new")
    assert path.read_bytes() == b"new"
    assert time.time() - path.stat().st_mtime < 3600


@pytest.mark.parametrize("has_links", [True, False])
@pytest.mark.parametrize("comes_before", [True, False])
def test_a_new_file_takes_nobodys_place(
    comes_before: bool, has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_links:

        def refuse(*_: Any, **__: Any) -> None:
            raise OSError(errno.EPERM, "no hard links here")

        monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "report.json"
    with replacing(path, is_new=True) as file:
        file.write(b"mine")
    assert path.read_bytes() == b"mine" and os.listdir(tmp_path) == [path.name]
    path.unlink()
    with pytest.raises(FileExistsError), contextlib.ExitStack() as writing:
        if comes_before:
            path.write_bytes(b"theirs")
        file = writing.enter_context(replacing(path, is_new=True))
        file.write(b"mine")
        path.write_bytes(b"theirs")
    assert path.read_bytes() == b"theirs" and os.listdir(tmp_path) == [path.name]
