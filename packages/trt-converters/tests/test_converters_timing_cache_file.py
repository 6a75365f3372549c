"""Tactic timings on disk: kept, merged, never in the way."""

from __future__ import annotations

import errno
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
from side_by_side import in_threads

import trt_portable
from trt_converters import build
from trt_converters.build import TimingCacheFile
from trt_core import InputError, provider_module, trt
from trt_core.log import provider_logger


def _config() -> Any:
    return trt.Builder(provider_logger()).create_builder_config()


def _blob(*numbers: int) -> bytes:
    """A timing cache with an entry per number, as the portable provider writes it."""
    cache = _config().create_timing_cache(b"")
    module = type(cache).__module__
    timing = __import__(module, fromlist=["TimingCacheKey", "TimingCacheValue"])
    for number in numbers:
        cache._record(timing.TimingCacheKey.of(str(number)), timing.TimingCacheValue(number, 1.0))
    return bytes(memoryview(cache.serialize()))


def _count(path: Path) -> int:
    return len(_config().create_timing_cache(path.read_bytes()).queryKeys())


@pytest.fixture(autouse=True)
def _portable_only() -> None:
    if provider_module().__name__ != "trt_portable":
        pytest.skip("TensorRT's timing caches cannot be written by hand")


def _finish_build(file: TimingCacheFile, *numbers: int) -> None:
    config = _config()
    file.attach(config)
    made = config.create_timing_cache(_blob(*numbers))
    config.get_timing_cache().combine(made, True)
    file.merge(config)


def test_builds_add_to_the_file(tmp_path: Path) -> None:
    file = TimingCacheFile(tmp_path / "deep" / "timings")
    _finish_build(file, 1, 2)
    _finish_build(file, 2, 3)
    assert _count(file.path) == 3


def test_what_another_process_added_meanwhile_stays(tmp_path: Path) -> None:
    file = TimingCacheFile(tmp_path / "timings")
    config = _config()
    file.attach(config)
    _finish_build(TimingCacheFile(file.path), 7)
    config.get_timing_cache().combine(config.create_timing_cache(_blob(8)), True)
    file.merge(config)
    assert _count(file.path) == 2


def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "timings"
    in_threads(lambda number: _finish_build(TimingCacheFile(path), number), range(8))
    assert _count(path) == 8
    assert {item.name for item in tmp_path.iterdir()} <= {"timings", "timings.lock"}


@pytest.mark.parametrize("content", [b"nonsense", b"TRTPTIME", _blob.__name__.encode() * 50])
def test_a_damaged_file_starts_anew(tmp_path: Path, content: bytes) -> None:
    file = TimingCacheFile(tmp_path / "timings")
    file.path.write_bytes(content)
    with pytest.warns(RuntimeWarning, match="damaged"):
        _finish_build(file, 1)
    assert _count(file.path) == 1


def test_timings_of_another_environment_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = TimingCacheFile(tmp_path / "timings")
    _finish_build(file, 1)
    timing = __import__(type(_config().create_timing_cache(b"")).__module__, fromlist=["environment"])
    monkeypatch.setattr(timing, "environment", lambda: {"torch": "0", "device": "other"})
    config = _config()
    with trt_portable.strict(False):
        file.attach(config)
    assert config.get_timing_cache().queryKeys() == []


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file = TimingCacheFile(tmp_path / "file" / "timings")
    with pytest.warns(RuntimeWarning, match="not kept"):
        _finish_build(file, 1)


def test_leftovers_of_killed_writers_go(tmp_path: Path) -> None:
    leftover = tmp_path / ".timings-x1.saving"
    leftover.write_bytes(b"half")
    _finish_build(TimingCacheFile(tmp_path / "timings"), 1)
    assert not leftover.exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_a_pipe_in_the_place_of_the_file_is_a_warning_and_nobody_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "timings")
    with pytest.warns(RuntimeWarning, match="not a regular file"):
        _finish_build(TimingCacheFile(tmp_path / "timings"), 1)


def test_a_handle_that_went_stale_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another host has replaced the file: its timings were taken for none, and overwritten."""
    file = TimingCacheFile(tmp_path / "timings")
    config = _config()
    file.attach(config)
    _finish_build(TimingCacheFile(file.path), 1)
    config.get_timing_cache().combine(config.create_timing_cache(_blob(2)), True)
    read, count = build.read_file, iter(range(100))

    def stale(*args: Any) -> bytes:
        if next(count) % 2 == 0:
            raise OSError(errno.ESTALE, "Stale file handle")
        return read(*args)

    monkeypatch.setattr(build, "read_file", stale)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        file.merge(config)
    monkeypatch.undo()
    assert _count(file.path) == 2


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO, errno.EACCES, errno.EMFILE])
def test_a_file_that_cannot_be_read_is_not_overwritten(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = TimingCacheFile(tmp_path / "timings")
    _finish_build(file, 1)

    def refuse(*_: Any) -> bytes:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(build, "read_file", refuse)
    with pytest.warns(RuntimeWarning, match="tactic timings are not kept"):
        _finish_build(file, 2)
    monkeypatch.undo()
    assert _count(file.path) == 1
    _finish_build(file, 2)
    assert _count(file.path) == 2


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_names_that_no_file_has_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file has such a name"):
        TimingCacheFile(tmp_path / name)


def test_the_home_of_nobody_is_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is of the engine cache; it left as Python's RuntimeError."""
    monkeypatch.chdir(tmp_path)
    assert TimingCacheFile("~nobody-of-that-name/timing.cache").path.parent.parent == tmp_path
