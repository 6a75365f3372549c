"""The engine inspector, and what an engine says of itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import trt_portable as trt

Load = Callable[..., trt.ICudaEngine]
JSON, ONELINE = trt.LayerInformationFormat.JSON, trt.LayerInformationFormat.ONELINE


@pytest.fixture
def make(builder: trt.Builder, load: Load) -> Callable[[Any], trt.ICudaEngine]:
    def make(verbosity: Any) -> trt.ICudaEngine:
        network = builder.create_network()
        network.name = "net"
        x = network.add_input("x", trt.float32, (-1, 4))
        layer = network.add_activation(x, trt.ActivationType.LEAKY_RELU)
        layer.name, layer.metadata, layer.alpha = "leaky", "[source: model.py:3]", 0.5
        layer.get_output(0).name = "y"
        network.mark_output(layer.get_output(0))
        config = builder.create_builder_config()
        config.profiling_verbosity = verbosity
        config.hardware_compatibility_level = trt.HardwareCompatibilityLevel.AMPERE_PLUS
        return load(network, {"x": ((1, 4), (2, 4), (8, 4))}, config=config)

    return make


def test_detailed_json(make: Any) -> None:
    inspector = make(trt.ProfilingVerbosity.DETAILED).create_engine_inspector()
    report = json.loads(inspector.get_engine_information(JSON))
    (layer,) = report["Layers"]
    assert layer["Name"] == "leaky"
    assert layer["LayerType"] == "ACTIVATION"
    assert layer["Metadata"] == "[source: model.py:3]"
    assert layer["Parameters"]["alpha"] == 0.5
    assert layer["Inputs"] == [{"Name": "x", "Dimensions": [-1, 4], "DataType": "FLOAT", "Format": "Row major linear"}]
    x, y = report["I/O Tensors"]
    assert (x["Name"], x["IOMode"], x["DataType"], x["Location"]) == ("x", "INPUT", "FLOAT", "DEVICE")
    assert x["ProfileInfo"][0]["MaxShape"] == [8, 4]
    assert (y["Name"], y["IOMode"], y["Dimensions"]) == ("y", "OUTPUT", [-1, 4])
    assert json.loads(inspector.get_layer_information(0, JSON)) == layer
    assert "leaky" in inspector.get_layer_information(0, ONELINE)


def test_names_only_and_none(make: Any) -> None:
    names = make(trt.ProfilingVerbosity.LAYER_NAMES_ONLY).create_engine_inspector()
    assert json.loads(names.get_engine_information(JSON))["Layers"] == ["leaky"]
    assert "leaky" in names.get_engine_information(ONELINE)
    silent = make(trt.ProfilingVerbosity.NONE).create_engine_inspector()
    assert json.loads(silent.get_engine_information(JSON))["Layers"] == []
    assert silent.get_layer_information(0, ONELINE).strip() == ""


def test_a_context_makes_extents_concrete(make: Any, logger: Any) -> None:
    engine = make(trt.ProfilingVerbosity.DETAILED)
    inspector = engine.create_engine_inspector()
    inspector.execution_context = context = engine.create_execution_context()
    assert inspector.execution_context is context
    context.set_input_shape("x", (3, 4))
    tensors = json.loads(inspector.get_engine_information(JSON))["I/O Tensors"]
    assert [tensor["Dimensions"] for tensor in tensors] == [[3, 4], [3, 4]]
    inspector.execution_context = make(trt.ProfilingVerbosity.NONE).create_execution_context()
    assert inspector.execution_context is context
    assert "another engine" in logger.errors[-1]


def test_an_index_out_of_range_is_reported(make: Any, logger: Any) -> None:
    inspector = make(trt.ProfilingVerbosity.DETAILED).create_engine_inspector()
    assert inspector.get_layer_information(7, JSON) == ""
    assert "out of range" in logger.errors[-1]
    with pytest.raises(TypeError):
        inspector.get_engine_information("json")


def test_engine_queries(make: Any, logger: Any) -> None:
    engine = make(trt.ProfilingVerbosity.DETAILED)
    assert engine.name == "net"
    assert list(engine) == ["x", "y"] == [engine[0], engine[-1]]
    with pytest.raises(IndexError):
        engine[2]
    assert engine.num_io_tensors == 2 and engine.num_layers == 1
    assert engine.get_tensor_name(1) == "y"
    assert engine.get_tensor_dtype("x") is trt.float32
    assert engine.get_tensor_mode("z") is trt.TensorIOMode.NONE
    assert engine.get_tensor_format("x") is trt.TensorFormat.LINEAR
    assert engine.get_tensor_components_per_element("x") == -1
    assert engine.hardware_compatibility_level is trt.HardwareCompatibilityLevel.AMPERE_PLUS
    assert engine.engine_capability is trt.EngineCapability.STANDARD
    assert engine.num_aux_streams == 0
    assert engine.get_aliased_input_tensor("y") is None
    assert engine.get_tensor_profile_shape("x", 1) == []
    assert "profile 1 does not exist" in logger.errors[-1]


def test_weight_streaming_is_a_setting(builder: Any, load: Load, logger: Any) -> None:
    import numpy as np

    network = builder.create_network()
    x = network.add_input("x", trt.float32, (2,))
    constant = network.add_constant((2,), np.ones(2, np.float32)).get_output(0)
    total = network.add_elementwise(x, constant, trt.ElementWiseOperation.SUM)
    network.mark_output(total.get_output(0))
    assert load(network).streamable_weights_size == 0
    engine = load(network, flags=[trt.BuilderFlag.WEIGHT_STREAMING])
    assert engine.streamable_weights_size == engine.weight_streaming_budget_v2 == 8
    engine.weight_streaming_budget_v2 = 4
    assert engine.weight_streaming_budget_v2 == 4
    context = engine.create_execution_context()
    engine.weight_streaming_budget_v2 = 0
    assert engine.weight_streaming_budget_v2 == 4, "not while a context lives"
    del context
    engine.weight_streaming_budget_v2 = 0
    assert engine.weight_streaming_budget_v2 == 0
