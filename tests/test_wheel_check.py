"""The tool that installs each wheel alone: which distributions it puts together."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from script_module import module_at

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return module_at(ROOT / "tools" / "check_wheels.py")


def test_a_saved_model_needs_three_distributions(tool: ModuleType) -> None:
    assert tool.closure("trt-runtime", tool.projects()) == {"trt-runtime", "trt-core", "trt-portable"}


def test_the_foundations_need_core_alone(tool: ModuleType) -> None:
    assert tool.closure("trt-core", tool.projects()) == {"trt-core"}
    assert tool.closure("trt-portable", tool.projects()) == {"trt-core", "trt-portable"}


def test_the_frontend_needs_everything(tool: ModuleType) -> None:
    known = tool.projects()
    assert tool.closure("trt-frontends", known) == set(known)


def test_a_failing_command_says_what_it_printed(tool: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(tool.CheckError, match=r"(?s)exited with 3.*the reason"):
        tool.run(["sh", "-c", "echo the reason; exit 3"], tmp_path)
    assert tool.run(["sh", "-c", "echo fine; exit 5"], tmp_path, expected=(0, 5)) == "fine\n"
