"""Text from files commands no terminal and no browser, wherever it is shown."""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from fresh_process import run_python
from program_files import ProgramFile
from torch import nn
from trtc.app import list_entries

import trt_frontends
import trt_runtime
from trt_core import InputError
from trt_core.log import logger
from trt_partition import PartitionReport, diff_reports
from trt_runtime.command_line import main
from trt_runtime.engine_cache import CacheEntry, EngineCache

TRTC: Final = "import trtc; trtc.main()"
EVIL: Final = "[/x][bold]\x1b[2J\x07\x9b1m\u202e\u2066\r<img src=x onerror=alert(1)>'\"{{7*7}}"
"""What terminals and consoles obey, what turns text around, and what pages run."""


def _commands(text: str) -> set[str]:
    """Characters in a text that are more than text."""
    return {one for one in text if not one.isprintable() and one not in "\n\t"}


def _strings(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Places of all strings, and of all keys, in a JSON value."""
    if isinstance(value, str):
        yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        if isinstance(key, str):
            yield (*place, key, None)
        yield from _strings(child, (*place, key))


def _with_evil(value: Any, place: tuple[Any, ...]) -> Any:
    changed = copy.deepcopy(value)
    at = changed
    is_key = place[-1] is None
    path = place[:-1] if is_key else place
    for step in path[:-1]:
        at = at[step]
    if is_key:
        at[EVIL] = at.pop(path[-1])
    else:
        at[path[-1]] = EVIL
    return changed


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> ProgramFile:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Softmax(-1)).eval()
    compiled = trt_frontends.compile(
        model, arg_inputs=(torch.ones(2, 3),), min_block_size=1, torch_executed_ops={"aten.relu"}
    )
    path = tmp_path_factory.mktemp("hostile") / "model.trtp"
    trt_runtime.save(compiled, path)
    return ProgramFile.read(path.read_bytes())


def test_every_string_of_a_program_is_shown_as_text(
    program: ProgramFile, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model.trtp"
    shown = 0
    for place in _strings(program.graph):
        hostile = program.copy()
        hostile.graph = _with_evil(program.graph, place)
        hostile.write(path)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for arguments in (["inspect", str(path)], ["run", str(path)], ["inspect", "--json", str(path)]):
                main(arguments)
            try:
                loaded = trt_runtime.load(path)
                text = repr(loaded)
                assert "<img" not in loaded._repr_html_() and not _commands(loaded._repr_html_())
            except Exception as error:
                text = str(error)
        out = capsys.readouterr()
        told = [text, out.out, out.err, *(str(one.message) for one in caught), caplog.text]
        assert not any(map(_commands, told)), (place, told)
        shown += any(r"\x1b[2J" in one for one in told)
        caplog.clear()
    assert shown > 20


def test_a_file_of_an_evil_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / EVIL.replace("/", "")
    for command in ("inspect", "run", "bench", "sign", "verify-signature", "trust"):
        for write in (False, True):
            if write:
                path.write_bytes(b"content")
            main([command, str(path)])
            out = capsys.readouterr()
            assert not _commands(out.out) and not _commands(out.err)
        path.unlink()


def test_engines_of_evil_names_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consoles read markup in the cells of a table: `[/x]` alone was an error."""
    built = {"name": EVIL, "provider": EVIL, "layers": EVIL, "build_seconds": 1.0}
    entry = CacheEntry("0" * 64, {}, 1, 0.0, built)
    monkeypatch.setattr(EngineCache, "entries", lambda self: [entry])
    monkeypatch.setenv("COLUMNS", "600")
    list_entries(str(tmp_path))
    out = capsys.readouterr().out
    assert not _commands(out) and "[/x][bold]" in out


def test_messages_and_logs_are_text(caplog: pytest.LogCaptureFixture) -> None:
    error = InputError(EVIL, where=EVIL, why=EVIL, hint=EVIL)
    assert not _commands(str(error)) and error.what == EVIL
    with caplog.at_level(logging.WARNING, logger.name):
        logger.warning("read %s", EVIL)
        logger.warning("read %s", "text")
    assert not _commands(caplog.text) and r"\x1b[2J" in caplog.text
    assert caplog.records[1].args == ("text",)


@pytest.fixture(scope="module")
def reports() -> tuple[PartitionReport, PartitionReport]:
    """A report, and one in which every text that may be any is hostile."""
    report = trt_frontends.explain(
        nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Softmax(-1)),
        arg_inputs=(torch.ones(2, 3),),
        min_block_size=1,
        torch_executed_ops={"aten.relu"},
    )
    value = json.loads(report.to_json())
    for place in list(_strings(value)):
        if place[-1] is None:
            continue
        changed = _with_evil(value, place)
        try:
            PartitionReport.from_json(json.dumps(changed)).to_html()
        except Exception:  # a text of which there are few
            continue
        value = changed
    return report, PartitionReport.from_json(json.dumps(value))


def test_reports_are_shown_as_text(reports: tuple[PartitionReport, PartitionReport], tmp_path: Path) -> None:
    report, evil = reports
    texts = [evil.to_text(), repr(evil), diff_reports(report, evil).to_text()]
    assert all(r"\x1b[2J" in text for text in (texts[0], texts[2]))
    pages = [evil.to_html(title=EVIL), evil._repr_html_()]
    assert not any("<img" in page for page in pages)
    assert not any(map(_commands, [*texts, *pages]))
    paths = [tmp_path / "before.json", tmp_path / "after.json"]
    for path, one in zip(paths, reports, strict=True):
        path.write_text(one.to_json())
    result = run_python(TRTC, "diff", *map(str, paths))
    assert result.returncode == 1 and r"\x1b[2J" in result.stdout, result.stderr
    assert not _commands(result.stdout)


def test_names_in_onnx_models_are_shown_as_text(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx import helper

    ends = [helper.make_tensor_value_info(f"{EVIL}{name}", onnx.TensorProto.FLOAT, [2]) for name in "ab"]
    node = helper.make_node("Relu", [ends[0].name], [ends[1].name], name=EVIL)
    other = helper.make_node(EVIL, [ends[0].name], ["c"], name=EVIL, domain=EVIL)
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(helper.make_graph([node, other], EVIL, ends[:1], ends[1:])), path)
    result = run_python(TRTC, "explain", str(path))
    assert r"\x1b[2J" in result.stdout, result.stderr
    assert not _commands(result.stdout) and not _commands(result.stderr)
    result = run_python(TRTC, "compile", str(path), "-o", str(tmp_path / "x.trtp"))
    assert not _commands(result.stdout) and not _commands(result.stderr) and "Traceback" not in result.stderr
