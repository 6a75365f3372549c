"""Programs whose engines hold plugins, loaded where nothing that compiles is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import trt_frontends
import trt_runtime
from trt_converters import ConverterRegistry, load_converters, plugin_from_operator
from trt_converters.registry import DYNAMO_CONVERTERS
from trt_core import PlanError
from trt_runtime.command_line import main

LIBRARY = """
import torch

@torch.library.custom_op("plugin_library::smooth", mutates_args=())
def smooth(x: torch.Tensor, by: float) -> torch.Tensor:
    return x / by + 1

@smooth.register_fake
def _(x, by):
    return torch.empty_like(x)
"""

SCRIPT = """
import sys, torch, trt_runtime
try:
    trt_runtime.load(sys.argv[1])
except trt_runtime.PlanError as error:
    print("operators=['plugin_library']" in str(error))
loaded = trt_runtime.load(sys.argv[1], operators=["plugin_library"])
print(loaded(torch.ones(3)).tolist(), [name for name in sys.modules if name in ("trt_converters", "trt_frontends")])
"""


class Smoothing(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.ops.plugin_library.smooth(x, 2.0)) * 2


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "plugin_library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    import plugin_library  # noqa: F401 - defines the operator

    load_converters()
    registry: ConverterRegistry = DYNAMO_CONVERTERS.copy()
    plugin_from_operator(torch.ops.plugin_library.smooth.default, registry=registry)
    compiled = trt_frontends.compile(
        Smoothing(), arg_inputs=(torch.ones(3),), min_block_size=1, registry=registry, require_full_compilation=True
    )
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    return tmp_path / "model.trtp"


def test_plugins_are_listed_and_found(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(saved)]) == 0
    assert "engines need the plugins plugin_library::smooth" in capsys.readouterr().out
    torch.testing.assert_close(trt_runtime.load(saved)(torch.ones(3)), torch.full((3,), 3.0))  # it is known here
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(saved)],
        env={**os.environ, "PYTHONPATH": str(saved.parent), "TRT_PROVIDER": "portable"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.splitlines() == ["True", "[3.0, 3.0, 3.0] []"], result.stderr


def test_plugins_of_a_library_are_registered_by_its_entry_point(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trt_core import operator_plugin

    called: list[str] = []

    class Entry:
        name, value = "plugin_library", "plugin_library:register"

        def load(self) -> object:
            return lambda: called.append("registered")

    monkeypatch.setattr(operator_plugin, "has_plugin", lambda name: bool(called))
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group, name: [Entry()])
    with pytest.raises(PlanError, match="needs the plugin plugin_library::smooth"):
        trt_runtime.load(saved)
    assert not called
    trt_runtime.load(saved, operators=["plugin_library"])
    assert called == ["registered"]


def test_a_library_whose_entry_point_fails_is_told(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trt_core import operator_plugin

    class Entry:
        name, value = "plugin_library", "plugin_library:register"

        def load(self) -> object:
            raise RuntimeError("no such driver")

    monkeypatch.setattr(operator_plugin, "has_plugin", lambda name: False)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group, name: [Entry()])
    with pytest.raises(PlanError, match=r"cannot be registered\n(.*\n)?  why: RuntimeError: no such driver"):
        trt_runtime.load(saved, operators=["plugin_library"])
