"""Every door through which a file is read: pipes, devices and folders are refused at once, by an error of ours."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest
import torch
import typer
from torch import nn

import trt_frontends
import trt_runtime
from trt_converters.timing_cache_file import TimingCacheFile
from trt_core import CacheError, TrtError, trt
from trt_core.log import provider_logger
from trt_frontends import refit
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_runtime import signatures
from trt_runtime.command_line import inspection
from trt_runtime.command_line.commands import read_tensors
from trt_runtime.engine_cache import EngineCache, EngineKey

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pipes, devices and modes of POSIX")


@pytest.fixture(autouse=True)
def _nothing_waits() -> Iterator[None]:
    """A door that waits for the other end of a pipe, or reads a device without an end, is found."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise AssertionError("a door waits")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _sharded(path: Path) -> Any:
    folder = path.with_name("sharded")
    folder.mkdir()
    (folder / "manifest.json").symlink_to(path)
    return trt_runtime.sharded.RankPart.find(str(folder), None, None)


def _diff(path: Path) -> Any:
    from trtc.app import _read_report

    return _read_report(path)


def _external_data(path: Path) -> Any:
    onnx = pytest.importorskip("onnx")
    from trt_portable.onnx_parser.initializers import _read_part

    return _read_part(path, 0, 4, onnx.TensorProto(name="weight"), path.name)


def _onnx(path: Path) -> Any:
    pytest.importorskip("onnx")
    from trt_frontends.onnx_models import explain_onnx

    return explain_onnx(path)


def _answers(path: Path) -> Any:
    from trt_frontends.accuracy.bisect import _Answers

    return _Answers(path, "identity")


DOORS: Final[dict[str, Callable[[Path], Any]]] = {
    "load": trt_runtime.load,
    "load, copied": lambda path: trt_runtime.load(path, copy=True),
    "load, trusted": lambda path: trt_runtime.load(path, trust=True),
    "read_plan": trt_runtime.read_plan,
    "inspect": inspection.inspect_file,
    "signer": signatures.signer,
    "sign": signatures.sign,
    "keys": lambda path: signatures.read_keys([path]),
    "mutable module": refit.read_file,
    "tensors": lambda path: read_tensors(path),
    "sharded": _sharded,
    "report": _diff,
    "onnx": _onnx,
    "external data": _external_data,
    "search": _answers,
}


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("door", DOORS)
def test_what_is_no_regular_file_is_refused_at_once(door: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"{kind}.{'npz' if door == 'tensors' else 'onnx' if door == 'onnx' else 'file'}"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises((TrtError, OSError, Unsupported, typer.BadParameter)):
        DOORS[door](path)


def _plan() -> tuple[Any, torch.Tensor, EngineKey]:
    compiled = trt_frontends.compile(nn.ReLU(), arg_inputs=(torch.ones(2, 3),), min_block_size=1)
    (engine,) = (child for child in compiled.modules() if isinstance(child, trt_runtime.TRTModule))
    return engine.header, engine.plan, EngineKey({"graph": "relu"})


@pytest.mark.parametrize("kind", ["link", "pipe", "device", "others write", "another user's"])
@pytest.mark.parametrize("ending", [".plan", ".key"])
def test_entries_of_the_engine_cache_are_this_users_own_files(kind: str, ending: str, tmp_path: Path) -> None:
    header, plan, key = _plan()
    cache = EngineCache(tmp_path / "cache")
    assert cache.insert(key, header, plan)
    assert cache.find(key) is not None
    entry = tmp_path / "cache" / f"{key.digest}{ending}"
    _put_in_place(entry, kind)
    with pytest.warns(RuntimeWarning, match="damaged and is removed"):
        assert cache.find(key) is None
    assert not os.path.lexists(entry)


@pytest.mark.parametrize("kind", ["link", "pipe", "device", "others write", "another user's"])
def test_the_key_that_signs_is_this_users_own_file(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cryptography")
    monkeypatch.setenv("TRT_KEY_DIR", str(tmp_path / "keys"))
    signatures.signing_key()
    (name,) = (found for found in os.listdir(tmp_path / "keys") if not found.startswith("."))
    _put_in_place(tmp_path / "keys" / name, kind)
    assert signatures.own_public_key() is None
    with pytest.raises(CacheError):
        signatures.signing_key()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_a_timing_cache_that_is_no_file_is_left_alone(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "timing.cache"
    if kind == "folder":
        path.mkdir()
    else:
        _put_in_place(path, kind)
    config = trt.Builder(provider_logger()).create_builder_config()
    cache = TimingCacheFile(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cache.attach(config)
        cache.merge(config)
    assert path.is_dir() or not path.is_file()
    assert [one for one in caught if "tactic timings are not kept" in str(one.message)]


@pytest.mark.parametrize("name", ["timing.cache.lock", "timing.cache"])
def test_a_link_beside_a_timing_cache_leads_nowhere_else(name: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / name).symlink_to(target)
    config = trt.Builder(provider_logger()).create_builder_config()
    cache = TimingCacheFile(folder / "timing.cache")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cache.attach(config)
        cache.merge(config)
    assert name == "timing.cache" or target.read_bytes() == b"precious"


def _put_in_place(path: Path, kind: str) -> None:
    if kind == "link":
        path.rename(path.with_name("elsewhere"))
        path.symlink_to("elsewhere")
        return
    if kind == "others write":
        path.chmod(0o622)
        return
    if kind == "another user's":
        if os.geteuid() != 0:
            pytest.skip("only root gives files away")
        os.chown(path, 12345, 12345)
        return
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path, 0o600)
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("door", ["engine cache", "keys"])
@pytest.mark.parametrize("how", ["parent everybody renames in", "folder others write to", "link of another user"])
def test_folders_that_others_can_swap_are_not_used(
    door: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "parent" / "folder"
    folder.mkdir(parents=True, mode=0o700)
    if how == "parent everybody renames in":
        folder.parent.chmod(0o777)
    elif how == "folder others write to":
        folder.chmod(0o770)
    else:
        if os.geteuid() != 0:
            pytest.skip("only root gives files away")
        link = tmp_path / "link"
        link.symlink_to(folder)
        os.chown(link, 12345, 12345, follow_symlinks=False)
        folder = link
    with pytest.raises(CacheError):
        if door == "engine cache":
            EngineCache(folder)
        else:
            pytest.importorskip("cryptography")
            monkeypatch.setenv("TRT_KEY_DIR", str(folder))
            signatures.signing_key()
