"""The Python samples of every README run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fresh_process import run_python

ROOT = Path(__file__).resolve().parent.parent
_SAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _samples(readme: Path) -> list[str]:
    return _SAMPLE.findall(readme.read_text(encoding="utf-8"))


WITH_SAMPLES = [path for path in (ROOT / "README.md", *sorted(ROOT.glob("packages/*/README.md"))) if _samples(path)]


def _name(path: Path) -> str:
    return path.parent.name if path.parent != ROOT else "workspace"


@pytest.mark.parametrize("readme", WITH_SAMPLES, ids=_name)
def test_the_samples_of_a_readme_run(readme: Path, tmp_path: Path) -> None:
    done = run_python("\n".join(_samples(readme)), cwd=tmp_path, env={"TRT_PROVIDER": "portable"})
    assert done.returncode == 0, done.stderr


def test_the_first_things_in_the_readme_are_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first = text.index("python -m pip install uv && uv run trtc quickstart")
    second = text.index("python -m pip install uv && uv run nox -s tests")
    assert text[:second].count("\n") < 6
    assert first < second


def test_the_readme_of_lowering_names_every_pass() -> None:
    package = ROOT / "packages" / "trt-lowering"
    defined = set()
    for path in (package / "src" / "trt_lowering").rglob("*.py"):
        passes = r"^class ([A-Z]\w+)\((?:Graph|Operator)Pass\)"
        defined |= set(re.findall(passes, path.read_text(encoding="utf-8"), re.MULTILINE)) - {"OperatorPass"}
    text = (package / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `([A-Z]\w+)` \|", text[text.index("## Passes") :], re.MULTILINE)
    assert sorted(named) == sorted(defined)
