"""One version for all distributions, pinned literally between them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from script_module import module_at

from trt_core import settings_reader

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
VERSION = (ROOT / "VERSION").read_text(encoding="utf-8").strip()
PROJECTS = sorted(ROOT.glob("packages/*/pyproject.toml"))


def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _all_requirements(project: dict[str, Any]) -> list[str]:
    extras = project.get("optional-dependencies", {}).values()
    return [*project["dependencies"], *(requirement for extra in extras for requirement in extra)]


def _as_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


@pytest.mark.parametrize("path", [ROOT / "pyproject.toml", *PROJECTS], ids=lambda path: path.parent.name)
def test_every_project_has_the_version_of_the_workspace(path: Path) -> None:
    assert _read(path)["project"]["version"] == VERSION


@pytest.mark.parametrize("path", PROJECTS, ids=lambda path: path.parent.name)
def test_every_pin_between_our_distributions_is_exact_and_current(path: Path) -> None:
    siblings = [requirement for requirement in _all_requirements(_read(path)["project"]) if "trt-" in requirement]
    assert all(re.fullmatch(rf"trt-[a-z]+=={re.escape(VERSION)}", requirement) for requirement in siblings), siblings


@pytest.mark.parametrize("path", PROJECTS, ids=lambda path: path.parent.name)
def test_tensorrt_is_an_extra_and_never_required(path: Path) -> None:
    project = _read(path)["project"]
    assert not [requirement for requirement in project["dependencies"] if requirement.startswith("tensorrt")]
    offers = "tensorrt" in project.get("optional-dependencies", {})
    assert offers == (path.parent.name in {"trt-converters", "trt-frontends", "trt-runtime"})
    if offers:
        assert project["optional-dependencies"]["tensorrt"] == ["tensorrt>=10.16,<12"]


def test_the_tool_rewrites_a_version_and_every_pin() -> None:
    text = 'version = "1.2.3"\ndependencies = ["trt-core==1.2.3", "torch==2.13.0"]\nother = ["trt-runtime==0.9"]\n'
    expected = 'version = "2.0"\ndependencies = ["trt-core==2.0", "torch==2.13.0"]\nother = ["trt-runtime==2.0"]\n'
    assert module_at(ROOT / "tools" / "versions.py").with_version(text, "2.0") == expected


def test_retired_settings_are_gone_in_the_version_that_drops_them() -> None:
    removal = _as_numbers(settings_reader.REMOVAL_VERSION)
    assert _as_numbers(VERSION) < removal, (
        f"version {settings_reader.REMOVAL_VERSION} is here: drop what trt_core.settings_reader renames, "
        "and name the next version that drops something"
    )
