"""What the page about ONNX models shows, run as a reader would type it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from trtc.app import app
from typer.testing import CliRunner

PAGE = Path(__file__).resolve().parent.parent / "docs" / "howto" / "onnx.md"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_samples_and_commands_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    commands = 0
    for kind, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if kind == "python":
            exec(compile(text, str(PAGE), "exec"), names)
            continue
        lines = text.splitlines()
        for place, line in enumerate(lines):
            if not line.startswith("$ trtc "):
                continue
            result = CliRunner().invoke(app, shlex.split(line)[2:])
            assert result.exit_code == 0, result.output
            shown = [shown for shown in lines[place + 1 :] if not shown.startswith("$")]
            assert all(shown_line in result.output for shown_line in shown)
            commands += 1
    assert commands == 5
