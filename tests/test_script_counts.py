"""Scripts that are written for torch-tensorrt: those that run, and that the guide says how many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.script_counts import FAILING, ONE_LINE, UNCHANGED, counts, run_scripts

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "tests/data/torch_tensorrt_scripts"


def test_scripts_run_and_the_guide_says_how_many() -> None:
    outcomes = run_scripts(SCRIPTS)
    found = {outcome.script: outcome.outcome for outcome in outcomes if outcome.outcome != UNCHANGED}
    assert found == {
        "converter.py": ONE_LINE,
        "save_exported_program.py": ONE_LINE,
    }, [outcome for outcome in outcomes if outcome.outcome == FAILING]
    counted = counts(outcomes)
    guide = " ".join((ROOT / "docs/howto/from_torch_tensorrt.md").read_text().split())
    assert (
        f"Of {len(outcomes)} scripts, one for each way of use, {counted[UNCHANGED]} run unchanged, "
        f"{counted[ONE_LINE]} with one line, {counted[FAILING]} fail"
    ) in guide


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
