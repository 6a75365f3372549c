"""Plugins of the second version, memory formats and shared memory of plugins."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import trt_portable as trt


class Scale(trt.IPluginV2DynamicExt):
    """y = factor * x, twice as long when it repeats."""

    def __init__(self, factor: float, formats: tuple[Any, ...] = (trt.TensorFormat.LINEAR,)) -> None:
        trt.IPluginV2DynamicExt.__init__(self)
        self.plugin_type, self.plugin_version, self.plugin_namespace, self.num_outputs = "Scale", "1", "", 1
        self.factor, self.formats, self.ready = factor, formats, False
        self.configured: list[Any] = []

    def get_output_datatype(self, index: int, input_types: Any) -> Any:
        return input_types[0]

    def get_output_dimensions(self, output_index: int, inputs: Any, expr_builder: Any) -> Any:
        output = trt.DimsExprs(inputs[0])
        output[0] = expr_builder.operation(trt.DimensionOperation.PROD, inputs[0][0], expr_builder.constant(2))
        return output

    def supports_format_combination(self, pos: int, in_out: Any, num_inputs: int) -> bool:
        return in_out[pos].type == trt.float32 and in_out[pos].format == self.formats[pos % len(self.formats)]

    def configure_plugin(self, pos: Any, in_out: Any) -> None:
        self.configured.append((pos[0].desc.format, in_out[0].desc.format))

    def initialize(self) -> None:
        self.ready = True

    def serialize(self) -> bytes:
        return pickle.dumps((self.factor, [int(kind) for kind in self.formats]))

    def clone(self) -> Any:
        return Scale(self.factor, self.formats)

    def enqueue(
        self, input_desc: Any, output_desc: Any, inputs: Any, outputs: Any, workspace: int, stream: int
    ) -> None:
        assert self.ready
        assert [input_desc[0].format, output_desc[0].format] == [self.formats[0], self.formats[-1]]
        outputs[0].tensor.copy_(torch.cat([inputs[0].tensor] * 2) * self.factor)


class ScaleCreator(trt.IPluginCreator):
    """Makes `Scale`."""

    def __init__(self) -> None:
        trt.IPluginCreator.__init__(self)
        self.name, self.plugin_version, self.plugin_namespace = "Scale", "1", ""
        self.field_names = trt.PluginFieldCollection([trt.PluginField("factor")])

    def create_plugin(self, name: str, field_collection: Any) -> Any:
        return Scale(float(field_collection[0].data[0]))

    def deserialize_plugin(self, name: str, serialized_plugin: bytes) -> Any:
        factor, formats = pickle.loads(serialized_plugin)
        return Scale(factor, tuple(list(trt.TensorFormat.__members__.values())[kind] for kind in formats))


@pytest.fixture(autouse=True)
def creator() -> Iterator[Any]:
    made = ScaleCreator()
    assert trt.get_plugin_registry().register_creator(made, "")
    yield made
    trt.get_plugin_registry().deregister_creator(made)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_plugin_of_the_second_version_is_built_saved_and_run(
    network: Any, load: Any, execute: Any, dynamic: bool
) -> None:
    creator = trt.get_plugin_registry().get_creator("Scale", "1", "")
    field = trt.PluginField("factor", np.array([3.0], np.float32), trt.PluginFieldType.FLOAT32)
    plugin = creator.create_plugin("scale", trt.PluginFieldCollection_(trt.PluginFieldCollection([field])))
    x = network.add_input("x", trt.float32, (-1, 3) if dynamic else (2, 3))
    layer = network.add_plugin_v2([x], plugin)
    assert isinstance(layer, trt.IPluginV2Layer)
    assert layer.type == trt.LayerType.PLUGIN_V2
    assert layer.plugin is plugin
    assert tuple(layer.get_output(0).shape) == ((-1, 3) if dynamic else (4, 3))
    layer.get_output(0).name = "y"
    network.mark_output(layer.get_output(0))
    engine = load(network, {"x": ((1, 3), (2, 3), (4, 3))} if dynamic else None)
    assert plugin.configured == [(trt.TensorFormat.LINEAR, trt.TensorFormat.LINEAR)]
    value = torch.randn(2, 3)
    found = execute(engine.create_execution_context(), {"x": value})["y"]
    torch.testing.assert_close(found, torch.cat([value, value]) * 3)
    assert plugin.serialization_size == plugin.get_serialization_size() == len(plugin.serialize())


@pytest.mark.parametrize(
    "formats",
    [(trt.TensorFormat.HWC, trt.TensorFormat.HWC), (trt.TensorFormat.CHW32, trt.TensorFormat.CHW32)],
    ids=lambda formats: formats[0].name,
)
def test_a_plugin_gets_the_formats_that_it_supports(network: Any, load: Any, execute: Any, formats: Any) -> None:
    x = network.add_input("x", trt.float32, (2, 3, 2, 2))
    plugin = Scale(2.0, formats)
    network.mark_output(network.add_plugin_v2([x], plugin).get_output(0))
    value = torch.randn(2, 3, 2, 2)
    (found,) = execute(load(network).create_execution_context(), {"x": value}).values()
    torch.testing.assert_close(found, torch.cat([value, value]) * 2)
    assert plugin.configured == [formats]


def test_a_plugin_that_supports_nothing_is_refused(network: Any, builder: Any, logger: Any) -> None:
    x = network.add_input("x", trt.float16, (2, 3))
    network.mark_output(network.add_plugin_v2([x], Scale(1.0)).get_output(0))
    assert builder.build_serialized_network(network, builder.create_builder_config()) is None
    assert "supports no format for input 0, HALF" in logger.errors[-1]


def test_only_plugins_written_in_python_are_taken(network: Any) -> None:
    with pytest.raises(TypeError, match="IPluginV2DynamicExt"):
        network.add_plugin_v2([], object())
    for kind in (trt.IPluginV2, trt.IPluginV2Ext, trt.IPluginV2DynamicExtBase):
        with pytest.raises(TypeError, match="No constructor"):
            kind()


@pytest.mark.parametrize(
    ("name", "info"),
    [
        ("IPluginV3", ("PLUGIN_V3", 1, 0)),
        ("IPluginV3OneCore", ("PLUGIN_V3ONE_CORE", 1, 0)),
        ("IPluginV3OneBuildV2", ("PLUGIN_V3ONE_BUILD", 2, 0)),
        ("IPluginCreatorV3One", ("PLUGIN CREATOR_V3ONE", 1, 0)),
        ("IPluginCreator", ("PLUGIN CREATOR_V1", 1, 0)),
    ],
)
def test_interfaces_tell_kind_and_version(name: str, info: Any) -> None:
    found = getattr(trt, name)().interface_info
    assert (found.kind, found.major, found.minor) == info
    assert getattr(trt, name)().api_language is trt.APILanguage.PYTHON


def test_lists_of_the_bindings_take_their_names() -> None:
    numbers = trt.NodeIndices([3])
    numbers.append(x=4)
    numbers.extend(L=[5, 6])
    numbers.insert(i=0, x=2)
    assert numbers.count(x=4) == 1
    assert numbers.pop(i=1) == 3
    numbers.remove(x=5)
    assert list(numbers) == [2, 4, 6]
    assert numbers[0:2] == [2, 4]
    assert trt.PluginField(trt.FallbackString("name")).name == "name"
