"""Every command of `trtc` at the prompt, given what it cannot use: one error, exit code 2, and no file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any, Final

import pytest
import typer
from trtc import app
from typer.testing import CliRunner

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
    "cache list": "--directory IN",
    "cache clear": "--directory IN",
    "cache prune": "--directory IN --keep 1",
    "cache why-miss": "--directory IN --key IN",
}
"""What each command is called with: IN is what it cannot use, OUT what it would write."""
ENVIRONMENT: Final = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
WITHOUT_FILES: Final = {"quickstart", "info"}
FILES: Final = ("missing.trtp", "text.trtp", "empty.trtp", "folder.trtp", "text.onnx", "missing.onnx", "text.pt2")


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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_an_interrupted_command_ends_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(
        "import sys, torch\n"
        "class Endless(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        print('captures', flush=True)\n"
        "        while True:\n"
        "            pass\n"
        "def make():\n"
        "    return Endless(), (torch.ones(2),)\n"
    )
    command = [sys.executable, "-m", "trtc", "compile", "models:make", "-o", "out.trtp"]
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # jobs in the background ignore it, and hand that on
    try:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True, env=ENVIRONMENT)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "captures\n"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130 and "Traceback" not in errors
    assert not (tmp_path / "out.trtp").exists()
