"""Every command of `trtc` at the prompt, given what it cannot use: one error, exit code 2, and no file."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE
from typing import Any, Final

import pytest
import torch
import typer
from torch import nn
from trtc import app
from typer.testing import CliRunner

import trt_frontends

pytestmark = pytest.mark.sampled(4)

ARGUMENTS: Final = {
    "explain": "IN --json OUT.json",
    "diff": "IN IN",
    "verify": "IN --json OUT.json",
    "bisect": "IN --json OUT.json",
    "precision": "IN --json OUT.json",
    "inspect": "IN",
    "run": "IN --outputs OUT.npz",
    "bench": "IN",
    "profile": "IN --trace OUT.json",
    "trust": "IN",
    "sign": "IN",
    "verify-signature": "IN",
    "compile": "IN -o OUT.trtp",
    "generate": "IN",
    "export onnx": "IN -o OUT.onnx",
    "export triton": "IN OUT",
    "cache list": "--dir IN/cache",
    "cache clear": "--dir IN/cache",
    "cache prune": "--to 1 --dir IN/cache",
    "cache why-miss": "IN",
}
"""What each command is called with: IN is what it cannot use, OUT what it would write."""
ENVIRONMENT: Final = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
WITHOUT_FILES: Final = {"quickstart", "info"}
LONG: Final = "TRT_STRESS" in os.environ
FILES: Final = ("missing.trtp", "text.trtp", "empty.trtp", "folder.trtp", "text.onnx", "missing.onnx", "text.pt2")


def absurdly(options: set[str], values: Sequence[str]) -> list[tuple[str, str]]:
    """Options with values for them: each with all in long runs, else each with one, in turn."""
    pairs = itertools.product(sorted(options), values) if LONG else zip(sorted(options), itertools.cycle(values))
    return list(pairs)


def commands() -> set[str]:
    names = set()
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        names |= {f"{name} {inner}" for inner in getattr(command, "commands", ())} or {name}
    return names


def refused(command: str, file: Path, out: Path) -> str:
    words = ARGUMENTS[command].split()
    given = [word.replace("IN", str(file)).replace("OUT", str(out)) for word in words]
    before = sorted(file.parent.rglob("*"))
    result = CliRunner().invoke(app, [*command.split(), *given])
    assert isinstance(result.exception, SystemExit) and result.exit_code == 2, result.output
    assert sorted(file.parent.rglob("*")) == before
    assert result.output.lower().count("error:") == 1 and "Traceback" not in result.output
    return result.output


def test_the_table_has_every_command() -> None:
    assert commands() == ARGUMENTS.keys() | WITHOUT_FILES


@pytest.mark.parametrize("command", ARGUMENTS)
def test_the_table_names_what_a_command_has(command: str) -> None:
    named = {word for word in ARGUMENTS[command].split() if word.startswith("-")}
    found: Any = typer.main.get_command(app)
    for name in command.split():
        found = found.commands[name]
    known = {option for parameter in found.params for option in parameter.opts}
    if not known:  # its arguments are read by the command line of trt-runtime
        known = set(re.findall(r"(?<!\S)--?[a-z-]+", CliRunner().invoke(app, [command, "--help"]).output))
    assert named <= known


@pytest.mark.parametrize("command", ARGUMENTS)
def test_what_is_no_model_is_one_error(command: str, tmp_path: Path) -> None:
    for name in FILES:
        file = tmp_path / name
        if name.startswith("folder"):
            file.mkdir()
        elif not name.startswith("missing"):
            file.write_text("no model" if name.startswith("text") else "")
    for name in FILES:
        refused(command, tmp_path / name, tmp_path / "out")


@pytest.mark.parametrize("command", [name for name, words in ARGUMENTS.items() if "OUT." in words])
def test_what_cannot_be_written_is_told_first(command: str, tmp_path: Path) -> None:
    assert "nowhere" in refused(command, tmp_path / "missing.trtp", tmp_path / "nowhere" / "out")


@pytest.mark.parametrize("command", [name for name, words in ARGUMENTS.items() if "OUT." in words])
def test_folders_that_cannot_be_written_to_are_told_first(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = os.access  # users that may write everywhere are asked here, too
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path and access(path, mode))
    assert "nothing can be written to the folder" in refused(command, tmp_path / "missing.trtp", tmp_path / "out")


@pytest.mark.parametrize("words", ["explain x:y --json OUT --html OUT", "verify x:y --json OUT --html OUT"])
def test_two_files_of_one_path_are_refused(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, *others = words.replace("OUT", "out", 1).replace("OUT", str(tmp_path / "out")).split()
    result = CliRunner().invoke(app, [first, *others])
    assert result.exit_code == 2 and "two files would be one" in result.output


ABSURD: Final = ("", "a" * 5000, "nan", "-1", "9" * 30, "\u4e2d=\N{GRINNING FACE}")


@pytest.mark.parametrize("command", ARGUMENTS)
def test_absurd_values_of_any_option_are_no_traceback(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.trtp").write_text("no model")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    words = [word.replace("IN", str(tmp_path / "text.trtp")) for word in ARGUMENTS[command].split()]
    found: Any = typer.main.get_command(app)
    for name in command.split():
        found = found.commands[name]
    options = {option for parameter in found.params for option in parameter.opts if option.startswith("--")}
    if not options:  # its arguments are read by the command line of trt-runtime
        options = set(re.findall(r"(?<!\S)--[a-z-]+", CliRunner().invoke(app, [command, "--help"]).output)) - {"--help"}
    for option, absurd in absurdly(options, ABSURD):
        given = [word.replace("OUT", str(tmp_path / "out")) for word in words]
        result = CliRunner().invoke(app, [*command.split(), *given, option, absurd])
        assert isinstance(result.exception, SystemExit) and result.exit_code == 2, (option, absurd, result.exception)
        assert "error:" in result.output.lower() and "Traceback" not in result.output
    assert {file.name for file in tmp_path.iterdir()} == {"here", "text.trtp"}
    assert not any((tmp_path / "here").iterdir())


USABLE: Final = {
    "explain": "usable_model:make",
    "verify": "usable_model:make --samples 0 --no-exact",
    "bisect": "usable_model:make",
    "precision": "usable_model:make --no-engines",
    "export onnx": "usable_model:make -o out.onnx",
    "inspect": "model.trtp",
    "run": "model.trtp",
    "bench": "model.trtp --calls 1 --warm-up 0",
    "profile": "model.trtp --calls 1",
}
"""What each command is called with, where nothing is wrong with its model."""


@pytest.mark.parametrize("command", USABLE)
def test_absurd_values_beside_a_usable_model_are_one_error_or_none(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "usable_model", raising=False)
    (tmp_path / "usable_model.py").write_text(
        "import torch\ndef make():\n    return torch.nn.Linear(4, 2).eval(), (torch.ones(2, 4),)\n"
    )
    x = (torch.ones(2, 4),)
    trt_frontends.save(trt_frontends.compile(nn.Linear(4, 2).eval(), arg_inputs=x, min_block_size=1), "model.trtp")
    for option, absurd in absurdly(_options_with_values(command), ABSURD_BESIDE):
        before = set(tmp_path.rglob("*"))
        result = CliRunner().invoke(app, [*command.split(), *USABLE[command].split(), option, absurd])
        assert isinstance(result.exception, SystemExit | None), (option, absurd, result.exception)
        assert result.exit_code in (0, 1, 2) and "Traceback" not in result.output, (option, absurd, result.output)
        made = {path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts} - before
        if result.exit_code == 2:
            assert "error:" in result.output.lower() and not made, (option, absurd, result.output)
        for path in made:
            assert path.stat().st_size
            path.unlink()


ABSURD_BESIDE: Final = ("", "nan", "9" * 30, "/proc/self/mem")


def _options_with_values(command: str) -> set[str]:
    """The options of a command that are given something."""
    found: Any = typer.main.get_command(app)
    for name in command.split():
        found = found.commands[name]
    named = {name for option in found.params if not getattr(option, "is_flag", False) for name in option.opts}
    if options := {name for name in named if name.startswith("--")}:
        return options
    text = CliRunner().invoke(app, [command, "--help"]).output  # which the command line of trt-runtime reads
    return set(re.findall(r"\[(--[a-z-]+) [A-Z{]", text))


_MODELS: Final = """
import os, torch
def endless(*args, **kwargs):
    print("reached", flush=True)
    while True:
        pass
class Model(torch.nn.Module):
    def forward(self, x):
        if os.environ["STAGE"] == "capture":
            endless()
        return x + 1
def make():
    from trt_portable.builder.builder import Builder
    if os.environ["STAGE"] == "build":
        Builder.build_serialized_network = endless
    if os.environ["STAGE"] == "save":
        os.fsync = endless
    return Model(), (torch.ones(2),)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("stage", ["capture", "build", "save"] if LONG else ["save"])
def test_an_interrupted_command_ends_and_leaves_nothing(stage: str, tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(_MODELS)
    settings = ["--quiet", "-s", "min_block_size=1"]
    interrupt(["-m", "trtc", "compile", "models:make", "-o", "out.trtp", *settings], tmp_path, stage)
    assert [file.name for file in tmp_path.iterdir()] == ["models.py"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("door", ["trtc", "trt_runtime"] if LONG else ["trt_runtime"])
def test_an_interrupted_command_of_programs_ends(door: str, tmp_path: Path) -> None:
    code = (
        "import runpy, sys, trt_runtime.command_line.commands as commands\n"
        "def endless(arguments):\n"
        "    print('reached', flush=True)\n"
        "    while True: pass\n"
        "commands._RUN['inspect'] = endless\n"
        f"sys.argv = ['{door}', 'inspect', 'x.trtp']\n"
        f"runpy.run_module('{door}', run_name='__main__')\n"
    )
    interrupt(["-c", code], tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(("door", "module"), [("trtc", "typer"), ("trt_runtime", "torch")])
def test_an_interrupted_import_ends(door: str, module: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text("print('reached', flush=True)\nwhile True: pass\n")
    interrupt(["-m", door, "--help"], tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_an_interrupted_reading_of_arguments_ends(tmp_path: Path) -> None:
    code = (
        "import sys, trtc, typer.core\n"
        "def endless(*_):\n"
        "    print('reached', flush=True)\n"
        "    while True: pass\n"
        "typer.core.TyperCommand.parse_args = endless\n"
        "sys.argv = ['trtc', 'info']\n"
        "trtc.main()\n"
    )
    interrupt(["-c", code], tmp_path)


def interrupt(arguments: list[str], folder: Path, stage: str = "") -> None:
    """Interrupts a command, and all that it started, once it says that it is where it should be interrupted."""
    before = signal.signal(  # jobs in the background ignore it, and hand that on
        signal.SIGINT, signal.default_int_handler
    )
    try:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            stdout=PIPE,
            stderr=PIPE,
            text=True,
            env={**ENVIRONMENT, "STAGE": stage},
            start_new_session=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "reached\n"
            os.killpg(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130 and errors == "interrupted\n"
