"""What the distributions promise to installers: entry points, typing, supported versions."""

from __future__ import annotations

import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))


def _project(folder: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def _names(folder: Path) -> str:
    return folder.name


@pytest.mark.parametrize("folder", FOLDERS, ids=_names)
def test_a_package_is_typed_and_described(folder: Path) -> None:
    package = folder.name.replace("-", "_")
    assert (folder / "src" / package / "py.typed").is_file()
    assert (folder / "src" / package / "__init__.py").is_file()
    assert len((folder / "README.md").read_text(encoding="utf-8")) > 200


@pytest.mark.parametrize("folder", FOLDERS, ids=_names)
def test_every_distribution_supports_the_same_pythons(folder: Path) -> None:
    workspace = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    project = _project(folder)
    assert project["requires-python"] == workspace["requires-python"] == ">=3.10"
    named = set(re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"])))
    assert named == {"3.10", "3.11", "3.12", "3.13"}


def test_every_entry_point_exists() -> None:
    project = _project(ROOT / "packages" / "trt-frontends")
    points = {**project["scripts"], **project["entry-points"]["torch_dynamo_backends"]}
    assert set(points) == {"trtc", "tensorrt", "torch_tensorrt"}
    for name, value in points.items():
        assert callable(EntryPoint(name, value, "group").load())


@pytest.mark.parametrize("folder", FOLDERS, ids=_names)
def test_every_distribution_carries_the_licence_and_its_authors(folder: Path) -> None:
    project = _project(folder)
    assert (project["license"], project["license-files"]) == ("BSD-3-Clause", ["LICENSE"])
    assert project["authors"] == [{"name": "The trt developers"}]
    assert (folder / "LICENSE").read_text(encoding="utf-8") == (ROOT / "LICENSE").read_text(encoding="utf-8")
