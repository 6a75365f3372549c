"""The examples run as a reader would run them, and print what they promise."""

from __future__ import annotations

from pathlib import Path

import pytest
from fresh_process import run_python

FOLDER = Path(__file__).resolve().parent.parent / "examples"

EXPECTED = {
    "bert.py": ["(4, 64): largest difference"],
    "custom_operator.py": ["the converter agrees with eager", "coverage 100%"],
    "python_plugin.py": ["with the plugin: 1 engine, coverage 100%"],
    "torch_compile.py": ["batch 9", "the buffer was written: True", "changed weights are used: True"],
}


def _run(name: str, *arguments: str) -> str:
    done = run_python(FOLDER / name, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_runs(name: str) -> None:
    output = _run(name)
    for line in EXPECTED[name]:
        assert line in output


def test_what_one_example_saves_another_deploys(tmp_path: Path) -> None:
    saved = tmp_path / "resnet18.trtp"
    output = _run("classify_image.py", str(saved))
    assert output.count("as eager: True") == 3
    deployed = _run("deploy.py", str(saved))
    assert "compilers imported: " in deployed
    assert "same classes as one: True" in deployed


def test_the_readme_names_every_example() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    scripts = {path.name for path in FOLDER.glob("*.py")}
    assert scripts == {*EXPECTED, "classify_image.py", "deploy.py"}
    assert all(f"({name})" in text for name in scripts)
