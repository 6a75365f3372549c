"""Scripts that are written for torch-tensorrt: those that run, and that the guide says how many."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tools.script_counts import FAILING, ONE_LINE, UNCHANGED, run_scripts

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "tests/data/torch_tensorrt_scripts"
NAMES = sorted(path.name for path in SCRIPTS.glob("*.py"))
EDITED = json.loads((SCRIPTS / "edits.json").read_text())
RUN = NAMES if "TRT_STRESS" in os.environ else NAMES[::3]


@pytest.mark.parametrize("name", RUN)
def test_scripts_run_as_they_are_or_with_their_line(name: str, tmp_path: Path) -> None:
    shutil.copy(SCRIPTS / name, tmp_path)
    shutil.copy(SCRIPTS / "edits.json", tmp_path)
    (outcome,) = run_scripts(tmp_path)
    assert outcome.outcome == (ONE_LINE if name in EDITED else UNCHANGED), outcome.why


def test_the_guide_says_how_many_run() -> None:
    guide = " ".join((ROOT / "docs/howto/from_torch_tensorrt.md").read_text().split())
    assert EDITED.keys() <= set(NAMES)
    unchanged = len(NAMES) - len(EDITED)
    assert (
        f"Of {len(NAMES)} scripts, one for each way of use, {unchanged} run unchanged, {len(EDITED)} with one" in guide
    )


@pytest.mark.parametrize(
    ("source", "edits", "outcome", "why"),
    [
        ("import torch_tensorrt", "{}", UNCHANGED, ""),
        ("raise ValueError('broken')", "{}", FAILING, "ValueError: broken"),
        ("import sys; sys.exit(3)", "{}", FAILING, "SystemExit: 3"),
        ("1 / 0", '{"script.py": ["1 / 0", "1 / 1"]}', ONE_LINE, ""),
        ("1 / 0", '{"script.py": ["1 / 0", "2 / 0"]}', FAILING, "ZeroDivisionError: division by zero"),
        ("1 / 0", '{"script.py": ["1 / 3", "1 / 1"]}', FAILING, "its edit is not of one line that is there once"),
    ],
)
def test_outcomes_are_told_apart(source: str, edits: str, outcome: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(source)
    (tmp_path / "edits.json").write_text(edits)
    (found,) = run_scripts(tmp_path)
    assert (found.outcome, found.why) == (outcome, why)
