"""The settings as a whole: each has a reader, names that TensorRT has, and a test in this folder of what it changes.

Where a setting has no effect, its test holds that the documented message is given.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from script_module import module_at
from settings_models import OPTIONS
from tensorrt_api import VERSIONS, load

from trt_core.settings import setting_names

EXTENSION = Path(__file__).parents[2] / "docs" / "_ext" / "settings_table.py"


def test_every_setting_has_a_test() -> None:
    files = Path(__file__).parent.glob("test_*.py")
    tests = {name for path in files for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)}
    missing = [name for name in setting_names() if f"test_{name}" not in tests]
    assert not missing, f"show what these change, each in a test named after it: {missing}"


def test_every_setting_is_read_somewhere() -> None:
    table = module_at(EXTENSION)
    unread = [name for name, modules in table.readers().items() if not modules]
    assert not unread, f"nothing reads these: {unread}"
    rendered = table.settings()
    for name in setting_names():
        assert f"### `{name}`\n" in rendered, "the heading is the anchor that others link to"
        assert f"\n{name}={table.example(name)}  # default: " in rendered


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if option is not None])
def test_options_are_tensorrts(name: str) -> None:
    option = OPTIONS[name]
    assert option is not None and option.tensorrt and option.portable
    for qualified in option.tensorrt:
        owner, _, member = qualified.partition(".")
        for version in VERSIONS:
            api = load(version)
            assert api.has_member(owner, member) or member in api.attributes(owner), f"{qualified} in {version}"
