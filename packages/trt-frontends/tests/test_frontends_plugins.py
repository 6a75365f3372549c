"""What others bring: plugins that programs need where nothing that compiles is imported, and lowering passes."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fresh_process import run_python
from torch import nn

import trt_frontends
import trt_runtime
from trt_converters import ConverterRegistry, converter, load_converters, plugin_from_operator
from trt_converters.registry import DYNAMO_CONVERTERS
from trt_core import LoweringError, PlanError
from trt_lowering import installed_passes
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
    environment = {"PYTHONPATH": str(saved.parent), "TRT_PROVIDER": "portable"}
    result = run_python(SCRIPT, str(saved), env=environment, bare=True)
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


def test_plugins_that_follow_from_no_operator_are_registered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = trt_frontends.compile(nn.ReLU().eval(), arg_inputs=(torch.ones(3),), min_block_size=1)
    trt_runtime.save(compiled, tmp_path / "model.trtp")
    called: list[str] = []

    def register() -> None:
        called.append("registered")

    class Entry:
        name, value = "kernels", "kernels:register"

        def load(self) -> object:
            return register

    monkeypatch.setattr("importlib.metadata.entry_points", lambda group, name: [Entry()] if name == "kernels" else [])
    trt_runtime.load(tmp_path / "model.trtp")
    assert not called
    for _ in range(2):
        trt_runtime.load(tmp_path / "model.trtp", operators=["kernels"])
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


PASSES = """
import torch
from trt_lowering import GraphPass
ORDER = []

class Noted(GraphPass):
    def __init__(self, name="installed", target=None):
        self.name, self._target = name, target

    def call(self, gm):
        ORDER.append(self.name)
        nodes = gm.graph.find_nodes(op="call_function", target=self._target) if self._target else []
        for node in nodes:
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
        return len(nodes)

class DropRelu(Noted):
    def __init__(self):
        super().__init__("installed", torch.ops.aten.relu.default)

class Broken(GraphPass):
    name = "broken"

    def call(self, gm):
        for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default):
            del node.meta["val"]
        return 1
"""


def _compiled(way: str, model: nn.Module, **settings: Any) -> Any:
    settings["min_block_size"] = 1
    if way == "compile":
        return trt_frontends.compile(model, arg_inputs=(torch.ones(2, 4),), **settings)
    return torch.compile(model, backend="tensorrt", options=settings)


@pytest.fixture
def passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A distribution whose entry point names `DropRelu`, and its module."""
    metadata = tmp_path / "passes_of_a_library-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: passes-of-a-library\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[trt_lowering.passes]\nrelu = passes_of_a_library:DropRelu\n")
    (tmp_path / "passes_of_a_library.py").write_text(PASSES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "passes_of_a_library", raising=False)
    installed_passes.cache_clear()
    yield importlib.import_module("passes_of_a_library")
    installed_passes.cache_clear()


@pytest.mark.parametrize("way", ["compile", "torch.compile"])
def test_passes_of_others_run_in_their_order(way: str, passes: Any) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), torch.linspace(-1, 1, 8).reshape(2, 4)
    given = [passes.Noted("second"), passes.Noted("first")]
    with torch.no_grad():
        found = _compiled(way, model, lowering_passes=given)(x)
        torch.testing.assert_close(found, model[0](x))  # the installed pass dropped the activation
    assert passes.ORDER == ["installed", "second", "first"]


def test_passes_of_others_are_held_to_the_contract(
    passes: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TRT_BLOCKED_PLUGINS", "relu")
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), torch.ones(2, 4)
    with pytest.raises(LoweringError, match="the lowering pass 'broken' failed") as caught:
        _compiled("compile", model, lowering_passes=[passes.Broken()])
    assert "passes_of_a_library.Broken" in str(caught.value) and 'no meta["val"]' in str(caught.value)
    with torch.no_grad():  # under torch.compile the graph runs in PyTorch, and the same is said
        torch.testing.assert_close(_compiled("torch.compile", model, lowering_passes=[passes.Broken()])(x), model(x))
    (said,) = [message for _, level, message in caplog.record_tuples if level == logging.WARNING]
    assert str(caught.value) in said


OWN = """
import torch
from trt_core import trt

@torch.library.custom_op("own_library::add_number", mutates_args=())
def add_number(x: torch.Tensor, number: float) -> torch.Tensor:
    return x + number

@add_number.register_fake
def _(x, number):
    return torch.empty_like(x)


class AddNumber(trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime):
    def __init__(self, number, namespace):
        for base in (trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime):
            base.__init__(self)
        self.number, self.num_outputs = number, 1
        self.plugin_name, self.plugin_version, self.plugin_namespace = "AddNumber", "1", namespace

    def get_capability_interface(self, type):
        return self

    def clone(self):
        return AddNumber(self.number, self.plugin_namespace)

    def attach_to_context(self, resource_context):
        return self.clone()

    def get_fields_to_serialize(self):
        data = str(self.number).encode()
        return trt.PluginFieldCollection([trt.PluginField("number", data, trt.PluginFieldType.CHAR)])

    def get_output_data_types(self, input_types):
        return [input_types[0]]

    def get_output_shapes(self, inputs, shape_inputs, expr_builder):
        return [trt.DimsExprs(inputs[0])]

    def supports_format_combination(self, pos, in_out, num_inputs):
        return in_out[pos].desc.format == trt.TensorFormat.LINEAR

    def configure_plugin(self, in_, out):
        pass

    def on_shape_change(self, in_, out):
        pass

    def enqueue(self, input_desc, output_desc, inputs, outputs, workspace, stream):
        torch.add(inputs[0].tensor, self.number, out=outputs[0].tensor)


class Creator(trt.IPluginCreatorV3One):
    def __init__(self, namespace):
        trt.IPluginCreatorV3One.__init__(self)
        self.name, self.plugin_version, self.plugin_namespace = "AddNumber", "1", namespace
        self.field_names = trt.PluginFieldCollection([trt.PluginField("number")])

    def create_plugin(self, name, field_collection, phase):
        return AddNumber(float(bytes(field_collection[0].data)), self.plugin_namespace)


def register(namespace="own_library"):
    trt.get_plugin_registry().register_creator(Creator(namespace), namespace)
"""

WITHOUT_OWN = """
import sys, trt_runtime
try:
    trt_runtime.load(sys.argv[1])
except trt_runtime.PlanError as error:
    print(error)
"""


@pytest.mark.parametrize("namespace", ["own_library", ""])
def test_plugins_of_a_converter_that_does_not_name_them_are_listed(
    namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_library.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    own: Any = importlib.import_module("own_library")
    own.register(namespace)
    load_converters()
    registry: ConverterRegistry = DYNAMO_CONVERTERS.copy()

    @converter(torch.ops.own_library.add_number.default, registry=registry)
    def add_number(ctx: Any, x: Any, number: float) -> Any:
        return ctx.output(ctx.network.add_plugin_v3([ctx.tensor(x)], [], own.AddNumber(number, namespace)))

    class Adding(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.own_library.add_number(x, 2.5).relu()

    file, options = tmp_path / "model.trtp", {"min_block_size": 1, "registry": registry}
    cached = {"cache_built_engines": True, "reuse_cached_engines": True, "engine_cache_dir": str(tmp_path / "cache")}
    for _ in range(2):  # the second engine comes from the cache, without a network
        compiled = trt_frontends.compile(Adding(), arg_inputs=(torch.ones(3),), **options, **cached)
        torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 3.5))
        trt_frontends.save(compiled, file)
        name = f"{namespace}::AddNumber" if namespace else "AddNumber"
        assert main(["inspect", str(file)]) == 0
        assert f"engines need the plugins {name}\n" in capsys.readouterr().out
    torch.testing.assert_close(trt_runtime.load(file)(torch.ones(3)), torch.full((3,), 3.5))
    result = run_python(WITHOUT_OWN, str(file), bare=True)
    wanted = "operators=['own_library']" if namespace else "belongs to no library"
    assert f"needs the plugin {name}" in result.stdout
    assert wanted in result.stdout
