"""Every door through which a file is read: pipes, devices and folders are refused at once, by an error of ours."""

from __future__ import annotations

import ast
import collections
import hashlib
import json
import os
import re
import signal
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final

import numpy as np
import pytest
import torch
import typer
from torch import nn

import trt_frontends
import trt_runtime
from trt_converters.build import TimingCacheFile
from trt_core import CacheError, InputError, PlanError, TrtError, trt
from trt_core.files.folder import Folder
from trt_core.log import provider_logger
from trt_frontends import mutable_module
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_runtime import diffusion, sharded, signatures
from trt_runtime.command_line import inspection
from trt_runtime.command_line.tensor_files import read_tensors
from trt_runtime.engine_cache import EngineCache, EngineKey
from trt_runtime.program import loading
from trt_runtime.program.model_facts import ModelFacts, ResultClass, rebuilder
from trt_runtime.program_file import PROGRAM

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
    if path.is_dir():
        (folder / "manifest.json").mkdir()
    else:
        os.link(path, folder / "manifest.json", follow_symlinks=False)
    return trt_runtime.sharded.RankPart.find(str(folder), None, None)


def _diff(path: Path) -> Any:
    from trtc.app import _read_report

    return _read_report(path)


def _external_data(path: Path) -> Any:
    onnx = pytest.importorskip("onnx")
    from trt_portable.onnx_parser.initializers import ConstantReader

    weight = onnx.TensorProto(name="weight", data_type=onnx.TensorProto.FLOAT, dims=[1])
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", path.name), ("length", "4")):
        entry = weight.external_data.add()
        entry.key, entry.value = key, value
    return ConstantReader(path.parent).read(weight)


def _onnx(path: Path) -> Any:
    pytest.importorskip("onnx")
    from trt_frontends.onnx_models import explain_onnx

    return explain_onnx(path)


def _answers(path: Path) -> Any:
    from trt_frontends.accuracy.bisect import _Answers

    return _Answers(path, "identity")


def _pipeline_list(path: Path) -> Any:
    from trt_runtime.diffusion import _read_manifest

    return _read_manifest(path)


def _pipeline_index(path: Path) -> Any:
    from trt_runtime.diffusion import _read_index

    return _read_index(path)


def _model_source(path: Path) -> Any:
    from trtc.model_source import _load_program

    return _load_program(path)


def _trust_list(path: Path) -> Any:
    folder = path.with_name("trusted")
    folder.mkdir(mode=0o700)
    (folder / "trusted.keys").symlink_to(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRT_TRUSTED_KEYS", str(path))
        return signatures.trusted_keys()


DOORS: Final[dict[str, Callable[[Path], Any]]] = {
    "load": trt_runtime.load,
    "load, copied": lambda path: trt_runtime.load(path, copy=True),
    "load, trusted": lambda path: trt_runtime.load(path, trust=True),
    "read_plan": trt_runtime.read_plan,
    "inspect": inspection.inspect_file,
    "signer": signatures.signer,
    "sign": signatures.sign,
    "keys": lambda path: signatures.read_keys([path]),
    "mutable module": mutable_module.read_file,
    "tensors": lambda path: read_tensors(path),
    "sharded": _sharded,
    "report": _diff,
    "onnx": _onnx,
    "external data": _external_data,
    "search": _answers,
    "pipeline, list": _pipeline_list,
    "pipeline, index": _pipeline_index,
    "model to compile": _model_source,
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


def _sparse(path: Path) -> None:
    """A file of a terabyte that takes no room."""
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _zipped(path: Path, kind: int, size: int, name: str = "x.npy", claimed: int | None = None) -> None:
    with zipfile.ZipFile(path, "w", kind) as archive, archive.open(name, "w") as entry:
        for _ in range(size >> 20):
            entry.write(bytes(1 << 20))
        entry.write(b"x")
    if claimed is not None:  # in the directory at the end
        content = bytearray(path.read_bytes())
        at = content.rindex(b"PK\x01\x02")
        content[at + 20 : at + 28] = claimed.to_bytes(4, "little") * 2
        path.write_bytes(content)


def _pickled(path: Path) -> None:
    """An array of objects, whose pickle would run."""

    class Harm:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(path.with_name("harm")),)

    array = np.empty(1, object)
    array[0] = Harm()
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=True)


_DEEP: Final = 100_000
CONTENTS: Final[dict[str, Callable[[Path], object]]] = {
    "nothing": lambda path: path.write_bytes(b""),
    "a byte": lambda path: path.write_bytes(b"{"),
    "no text": lambda path: path.write_bytes(bytes(range(256)) * 64),
    "NaN": lambda path: path.write_bytes(b'{"version": NaN, "a": [Infinity, -Infinity]}'),
    "a key twice": lambda path: path.write_bytes(b'{"a": 1, "a": 2}'),
    "depth": lambda path: path.write_bytes(b"[" * _DEEP + b"]" * _DEEP),
    "depth of objects": lambda path: path.write_bytes(b'{"a":' * _DEEP + b"1" + b"}" * _DEEP),
    "a large number": lambda path: path.write_bytes(b'{"a": ' + b"9" * _DEEP + b"}"),
    "a large exponent": lambda path: path.write_bytes(b'{"a": 1e999999999}'),
    "half of a character": lambda path: path.write_bytes(rb'{"a": "\ud800"}'),
    "a list": lambda path: path.write_bytes(b"[1, 2, 3]"),
    "a terabyte": _sparse,
    "a compressed archive": lambda path: _zipped(path, zipfile.ZIP_DEFLATED, 1 << 24),
    "an archive that lies": lambda path: _zipped(path, zipfile.ZIP_STORED, 0, claimed=(1 << 32) - 2),
    "an archive with a way out": lambda path: _zipped(path, zipfile.ZIP_STORED, 0, "../../harm"),
    "a pickle": _pickled,
    "a header of tensors": lambda path: path.write_bytes((1 << 62).to_bytes(8, "little") + b"{}"),
    "tensors beyond the end": lambda path: path.write_bytes(
        _safetensors(b'{"x":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}')
    ),
    "tensors upon each other": lambda path: path.write_bytes(
        _safetensors(
            b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"y":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
        )
    ),
    "a magic": lambda path: path.write_bytes(PROGRAM.magic + bytes(64)),
}
"""What files may hold that nobody has written in good faith."""


def _safetensors(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + bytes(4)


ENDINGS: Final = {"tensors": ("npz", "npy", "pt", "safetensors"), "onnx": ("onnx",)}


@pytest.mark.parametrize("content", CONTENTS)
def test_whatever_a_file_holds_it_is_refused(content: str, tmp_path: Path) -> None:
    """By each door, with an error that says which file it is, without running or writing anything."""
    for door, opens in DOORS.items():
        for ending in ENDINGS.get(door, ("file",)):
            folder = tmp_path / f"{door}-{ending}"
            folder.mkdir()
            path = folder / f"hostile.{ending}"
            CONTENTS[content](path)
            try:
                found = opens(path)
            except (TrtError, Unsupported, typer.BadParameter) as error:
                assert str(error), door
            else:  # any bytes are numbers, no line is no key, and a text is a text
                assert (
                    door == "external data"
                    or not found
                    or (door, content) == ("pipeline, index", "half of a character")
                )
            os.truncate(path, 0)
            assert {one.name for one in folder.iterdir()} <= {path.name, "sharded"}, door


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
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
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


OPENERS: Final = {
    *("open", "io.open", "os.open", "os.fdopen", "mmap.mmap", "zipfile.ZipFile", "zipfile.is_zipfile", "np.load"),
    *("np.fromfile", "np.memmap", "torch.load", "torch.jit.load", "torch.export.load", "torch.from_file", "onnx.load"),
    *("safe_open", "load_file", "tarfile.open", "gzip.open", "pickle.load", "json.load", "torch.hub.load"),
}
METHODS: Final = {"open", "read_bytes", "read_text", "mmap", "from_file"}
"""Names by which something opens or reads a file, whatever it is a method of."""

ELSEWHERE: Final = {
    # what was opened through the ground, or by descriptor
    ("trt_runtime/command_line/tensor_files.py", "zipfile.ZipFile"): "in an open file",
    ("trt_runtime/command_line/tensor_files.py", "archive.open"): "an entry of an open file",
    ("trt_runtime/command_line/tensor_files.py", "self._archive.open"): "an entry of an open file",
    ("trt_converters/build.py", "Folder.open"): "the ground's own",
    ("trt_runtime/sharded.py", "Folder.open"): "the ground's own",
    ("trt_runtime/diffusion.py", "Folder.open"): "the ground's own",
    ("trt_portable/onnx_parser/initializers.py", "Folder.open"): "the ground's own",
    ("trt_runtime/signatures.py", "PrivateFolder.open"): "the ground's own",
    ("trt_runtime/engine_cache.py", "PrivateFolder.open"): "the ground's own",
    ("trt_runtime/isolation/messages.py", "mmap.mmap"): "memory without a file",
    ("trt_portable/execution/paging.py", "mmap.mmap"): "memory without a file",
    # what the system or an installation holds
    ("trt_runtime/isolation/messages.py", "os.open"): "memory of this process, by descriptor",
    ("trt_runtime/isolation/worker.py", "*.read_text"): "the system's",
    ("trt_runtime/isolation/confinement.py", "os.open"): "a path alone, whose content nobody reads",
    ("trt_portable/execution/paging.py", "*.read_text"): "the system's",
    ("trt_runtime/program/allowed_operators.py", "*.read_text"): "of this distribution",
    (
        "trt_partition/report/partition_report.py",
        "*.read_text",
    ): "own",
    ("trt_portable/__init__.py", "path.read_bytes"): "of this distribution",
    ("trt_converters/block_key.py", "path.read_bytes"): "code of an installed distribution",
    ("trt_converters/block_key.py", "*.read_bytes"): "code of an installed distribution",
    # what this user names and trusts, or has just made
    ("trtc/model_source.py", "torch.export.load"): "a model to compile, which is code of this user",
    ("trt_runtime/exchange.py", "torch.export.load"): "with trust=True",
    ("trtc/quickstart.py", "torch.load"): "what the same command has written",
    ("trt_runtime/sharded.py", "os.open"): "a folder, for the disk to keep",
    ("trt_runtime/command_line/commands.py", "os.open"): "the null device",
    ("trt_runtime/command_line/commands.py", "open"): "the null device",
    ("trtc/app.py", "os.open"): "the null device",
    (
        "trt_portable/builder/inductor/tactic.py",
        "*.read_bytes",
    ): "what Triton has just written",
}
"""Calls outside of `trt_core.files` that open files, and why each may."""


def _opening_calls(source: Path) -> Iterator[str]:
    text = source.read_text(encoding="utf-8")
    last_names = {name.rpartition(".")[2] for name in OPENERS} | METHODS
    if not last_names & set(re.findall(r"\w+", text)):  # a tree takes longer
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
                is_named = isinstance(node.func.value, ast.Name | ast.Attribute)
                yield ast.unparse(node.func) if is_named else f"*.{node.func.attr}"
            elif isinstance(node.func, ast.Name | ast.Attribute) and (function := ast.unparse(node.func)) in OPENERS:
                yield function


def test_files_are_opened_on_one_ground() -> None:
    """Who opens a file goes through `trt_core.files`, which takes regular files alone, or says here why not."""
    packages = Path(__file__).parents[1] / "packages"
    found = set()
    for root in packages.glob("*/src"):
        for source in root.rglob("*.py"):
            place = source.relative_to(root).as_posix()
            if not place.startswith("trt_core/files/"):
                found |= {(place, call) for call in _opening_calls(source)}
    assert found - ELSEWHERE.keys() == set()
    assert ELSEWHERE.keys() - found == set()


def _save_sharded(folder: Path) -> None:
    """A model of one rank, and another program beside it."""
    folder.mkdir()
    for name, model in (("rank-0.trtp", nn.ReLU()), ("other.trtp", nn.Sigmoid())):
        compiled = trt_frontends.compile(model.eval(), arg_inputs=(torch.ones(2, 3),), min_block_size=1)
        trt_runtime.save(compiled, folder / name)
    content = (folder / "rank-0.trtp").read_bytes()
    part = sharded.RankProgram("rank-0.trtp", len(content), hashlib.sha256(content).hexdigest(), {})
    (folder / sharded.MANIFEST).write_text(sharded.Manifest(1, None, {}, (part,)).to_json())


def _between(monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[], object]) -> None:
    """Has somebody change files after those of a folder were looked at, and before one of them is opened."""
    plain = Folder.open_to_read
    changes = [change]

    def changed(folder: Folder, asked: str) -> int:
        if asked == name and changes:
            changes.pop()()
        return plain(folder, asked)

    monkeypatch.setattr(Folder, "open_to_read", changed)


def test_the_program_of_a_rank_is_the_one_that_was_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody swaps the file at the last moment before it is read."""
    folder = tmp_path / "model"
    _save_sharded(folder)
    x = torch.randn(2, 3)
    assert torch.equal(trt_runtime.load(folder)(x), x.relu())
    _between(monkeypatch, "rank-0.trtp", lambda: (folder / "other.trtp").replace(folder / "rank-0.trtp"))
    with pytest.raises(PlanError, match="not the one that the manifest describes"):
        trt_runtime.load(folder)


def _save_pipeline(folder: Path, model: nn.Module) -> None:
    """A pipeline whose parts are all compiled: the first one is `model`."""
    folder.mkdir(exist_ok=True)
    compiled = trt_frontends.compile(model.eval(), arg_inputs=(torch.ones(2, 3),), min_block_size=1)
    trt_runtime.save(compiled, folder / "unet.forward.trtp")
    trt_runtime.save(compiled, folder / "vae.decode.trtp")
    parts = {
        part: {"methods": {method: [f"{part}.{method}.trtp"]}, "dtype": "float32", "buffers": {}}
        for part, method in (("unet", "forward"), ("vae", "decode"))
    }
    (folder / "compiled.json").write_text(json.dumps({"pipeline": "Pipeline", "parts": parts}))
    (folder / "model_index.json").write_text(
        json.dumps({"_class_name": "Pipeline", **{part: ["diffusers", "Part"] for part in parts}})
    )


class _Diffusers:
    """The part of diffusers that reading a pipeline needs."""

    class DiffusionPipeline:
        pass

    class Pipeline(DiffusionPipeline):
        def __init__(self, **parts: Any) -> None:
            self.parts = parts

    class Part(nn.Module):
        from_pretrained = load_config = staticmethod(lambda *args, **kwargs: {})

        @classmethod
        def from_config(cls, config: Any) -> nn.Module:
            return cls()

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            raise NotImplementedError

        decode = forward


@pytest.fixture
def _load_parts(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Any]:
    monkeypatch.setattr(diffusion, "_diffusers", lambda: _Diffusers)
    return lambda folder: diffusion.load_pipeline(folder).parts


@pytest.mark.parametrize("at", ["unet.forward.trtp", "vae.decode.trtp", "model_index.json"])
def test_a_pipeline_is_read_from_the_folder_that_was_opened(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _load_parts: Callable[[Path], Any]
) -> None:
    """Another folder takes its place while it is read."""
    folder, other = tmp_path / "ours", tmp_path / "theirs"
    _save_pipeline(folder, nn.ReLU())
    _save_pipeline(other, nn.Sigmoid())

    def swap() -> None:
        folder.rename(tmp_path / "moved")
        other.rename(folder)

    _between(monkeypatch, at, swap)
    x = torch.randn(2, 3)
    parts = _load_parts(folder)
    assert torch.equal(parts["unet"](x), x.relu()) and torch.equal(parts["vae"].decode(x), x.relu())
    assert torch.equal(_load_parts(folder)["unet"](x), x.sigmoid())


class _Lazy(ModuleType):
    """A library whose parts are imported when they are asked for, of which some cannot be."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError(f"Failed to import {name}")


class _Dummy(type):
    """Stands for a class that needs a library which is not there."""

    def __getattr__(cls, name: str) -> Any:
        raise ImportError(f"{cls.__name__} requires a library")


@pytest.mark.parametrize("at", ["pipeline", "library", "part", "class"])
def test_parts_that_a_library_cannot_import_are_refused(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _load_parts: Callable[[Path], Any]
) -> None:
    """They left as the library's errors."""
    folder = tmp_path / "pipeline"
    _save_pipeline(folder, nn.ReLU())
    library = _Lazy("diffusers")
    vars(library).update({name: one for name, one in vars(_Diffusers).items() if not name.startswith("__")})
    if at == "part":
        library.pipelines = ModuleType("pipelines")  # type: ignore[attr-defined]
        library.pipelines.broken = _Lazy("broken")  # type: ignore[attr-defined]
    elif at == "class":
        library.Part = _Dummy("Part", (), {})  # type: ignore[attr-defined]
    elif at == "library":
        library.pipelines = _Lazy("pipelines")  # type: ignore[attr-defined]
    else:
        del library.Pipeline
    monkeypatch.setattr(diffusion, "_diffusers", lambda: library)
    index = folder / "model_index.json"
    index.write_text(index.read_text().replace('"diffusers"', '"broken"', int(at in ("library", "part"))))
    with pytest.raises(PlanError, match="cannot be imported"):
        diffusion.load_pipeline(folder)


def test_parts_of_transformers_ask_nobody_whether_code_may_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _load_parts: Callable[[Path], Any]
) -> None:
    """Those, too, that diffusers shows beside a pipeline of its own."""
    asked: list[dict[str, Any]] = []

    class Processor:
        from_pretrained = staticmethod(lambda *args, **kwargs: asked.append(kwargs))

    class Pipeline(_Diffusers.DiffusionPipeline):
        def __init__(self, processor: Any, unet: Any, vae: Any) -> None:
            """Takes a part that is no program."""

    Processor.__module__ = "transformers.models.some.processing_some"
    folder = tmp_path / "pipeline"
    _save_pipeline(folder, nn.ReLU())
    pipelines = ModuleType("pipelines")
    pipelines.some = ModuleType("some")  # type: ignore[attr-defined]
    pipelines.some.Processor = Processor
    monkeypatch.setattr(_Diffusers, "pipelines", pipelines, raising=False)
    monkeypatch.setattr(_Diffusers, "Pipeline", Pipeline)
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps({**index, "processor": ["some", "Processor"]}))
    diffusion.load_pipeline(folder)
    assert [one["trust_remote_code"] for one in asked] == [False]


@pytest.mark.parametrize("kind", ["link", "pipe", "device", "folder"])
@pytest.mark.parametrize("at", ["compiled.json", "unet.forward.trtp", "vae.decode.trtp", "model_index.json"])
def test_files_of_a_pipeline_are_regular_ones_whenever_they_are_put_there(
    at: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _load_parts: Callable[[Path], Any]
) -> None:
    folder = tmp_path / "pipeline"
    _save_pipeline(folder, nn.ReLU())
    _between(monkeypatch, at, lambda: _put_in_place(folder / at, kind))
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    with pytest.raises(TrtError, match=r"not a regular file|this is a symbolic link|this is a folder"):
        _load_parts(folder)
    assert (len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0) <= before


@pytest.mark.parametrize("kind", ["link", "pipe", "device", "folder"])
@pytest.mark.parametrize("at", [sharded.MANIFEST, "rank-0.trtp"])
def test_files_of_ranks_are_regular_ones_whenever_they_are_put_there(
    at: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    _save_sharded(folder)
    _between(monkeypatch, at, lambda: _put_in_place(folder / at, kind))
    with pytest.raises(TrtError, match=r"not a regular file|this is a symbolic link|this is a folder"):
        trt_runtime.load(folder)


def test_a_generator_is_the_file_that_was_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program without others inside was looked at, and then opened once more."""
    compiled = trt_frontends.compile(nn.ReLU(), arg_inputs=(torch.ones(2, 3),), min_block_size=1)
    trt_runtime.save(compiled, tmp_path / "program.trtp")
    opened = []
    plain = loading.map_file
    monkeypatch.setattr(loading, "map_file", lambda *args, **kwargs: opened.append(args) or plain(*args, **kwargs))
    (program,) = loading.load_with(tmp_path / "program.trtp")
    assert len(opened) == 1 and isinstance(program, trt_runtime.LoadedProgram)
    with pytest.raises(TrtError, match="number of elements"):
        loading.load_with(tmp_path / "program.trtp", data_dependent_elements=-1)


@pytest.mark.parametrize("rank", [1, 2**62])
def test_manifests_name_no_rank_beyond_the_last(rank: int) -> None:
    program = {"file": "rank-0.trtp", "bytes": 1, "sha256": "", "collectives": [[[0, rank], "x"]]}
    document = {"format": 1, "world_size": 1, "mesh": None, "groups": {}, "programs": [program]}
    with pytest.raises(TrtError, match="damaged"):
        trt_runtime.sharded.Manifest.from_json(json.dumps(document).encode(), "a folder")


@pytest.mark.parametrize("count", [2, 1 << 20])
@pytest.mark.parametrize("place", ["collectives", "groups", "mesh"])
def test_groups_of_manifests_have_each_rank_once(place: str, count: int) -> None:
    """Each rank of a group is compared with all others: two megabytes of one rank would have taken hours."""
    ranks = [0] * count
    told = [[ranks, "x"]] if place == "collectives" else []
    document = {
        "format": 1,
        "world_size": 1,
        "mesh": {"shape": [count], "names": [], "ranks": ranks} if place == "mesh" else None,
        "groups": {"0": ranks} if place == "groups" else {},
        "programs": [{"file": "rank-0.trtp", "bytes": 1, "sha256": "", "collectives": told}],
    }
    with pytest.raises(TrtError, match="damaged"):
        trt_runtime.sharded.Manifest.from_json(json.dumps(document).encode(), "a folder")


@pytest.mark.parametrize("parts", [None, ("zz",)])
def test_parts_that_do_not_fit_the_callers_class_are_told(parts: tuple[str, ...] | None) -> None:
    name = "collections:OrderedDict"
    facts = ModelFacts(results={"output": ResultClass(name, parts, 5)})
    rebuild = rebuilder({"a": 1}, facts, [collections.OrderedDict])
    assert rebuild is not None
    with pytest.raises(TrtError, match="cannot be made a"):
        rebuild({"a": 1})


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "a" * 300, "nowhere"])
def test_names_that_no_file_has_are_refused(name: str, tmp_path: Path, _load_parts: Callable[[Path], Any]) -> None:
    """By whoever gives them, a caller or a file: they left as what Python says of them."""
    compiled = trt_frontends.compile(nn.ReLU(), arg_inputs=(torch.ones(2, 3),), min_block_size=1)
    _save_pipeline(tmp_path / "pipeline", nn.ReLU())
    listed = tmp_path / "pipeline" / "compiled.json"
    listed.write_text(listed.read_text().replace('"unet.forward.trtp"', json.dumps(name)))
    with pytest.raises(TrtError, match=r"missing|damaged|no file has such a name"):
        _load_parts(tmp_path / "pipeline")
    for door in sorted(DOORS.keys() - {"sharded", "external data", "search"}):
        with pytest.raises((TrtError, OSError, Unsupported, typer.BadParameter)):
            DOORS[door](tmp_path / name)
    if "a" * 300 != name != "nowhere":
        with pytest.raises(InputError, match="no file has such a name"):
            trt_runtime.save(compiled, tmp_path / name)
    assert not {one.name for one in tmp_path.iterdir()} - {"pipeline"}


def test_a_file_of_a_pipeline_that_cannot_be_opened_is_told(tmp_path: Path, _load_parts: Callable[[Path], Any]) -> None:
    """One whose name is too long for the system left as its error."""
    _save_pipeline(tmp_path / "pipeline", nn.ReLU())
    listed, long = tmp_path / "pipeline" / "compiled.json", "a" * 300
    text = listed.read_text().replace('"unet.forward.trtp"', f'"unet.{long}.trtp"').replace('"forward"', f'"{long}"')
    listed.write_text(text)
    with pytest.raises(PlanError, match="a file of the pipeline cannot be read"):
        _load_parts(tmp_path / "pipeline")
