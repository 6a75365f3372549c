"""`EngineInspector`: what an engine consists of, as text or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trt_portable.enums import LayerInformationFormat, ProfilingVerbosity
from trt_portable.pybind import Sealed, instance_of, to_integer
from trt_portable.reporting import RecordsErrors, Reporter

if TYPE_CHECKING:
    from trt_portable.plan.engine_info import IOTensor
    from trt_portable.runtime.engine_queries import EngineQueries
    from trt_portable.runtime.engine_state import EngineState
    from trt_portable.runtime.execution_context import IExecutionContext


class EngineInspector(RecordsErrors, Sealed):
    """Describes an engine's layers and bindings; made by `ICudaEngine.create_engine_inspector`.

    How much it tells was decided by the ``profiling_verbosity`` of the build.
    """

    def __init__(self, engine: EngineQueries, state: EngineState, reporter: Reporter) -> None:
        self._engine = engine
        self._state = state
        self._reporter = reporter
        self._context: IExecutionContext | None = None
        network = state.structure
        self._tensors: dict[int, dict[str, Any]] = {tensor["id"]: tensor for tensor in network["tensors"]}
        self._layers: list[dict[str, Any]] = network["layers"]

    @property
    def execution_context(self) -> IExecutionContext | None:
        """When set, bindings are reported with this context's extents."""
        return self._context

    @execution_context.setter
    def execution_context(self, context: IExecutionContext | None) -> None:
        if context is not None and context.engine is not self._engine:
            self._reporter.error("execution_context", "the context runs another engine")
            return
        self._context = context

    def get_layer_information(self, layer_index: int, format: LayerInformationFormat) -> str:
        """One layer in execution order; empty when the index is out of range."""
        self._expect_format(format)
        layer_index = to_integer(layer_index)
        if not 0 <= layer_index < len(self._layers):
            count = len(self._layers)
            rule = f"index {layer_index} is out of range: the engine has {count} layers"
            self._reporter.error("get_layer_information", rule)
            return ""
        layer = self._layer(self._layers[layer_index])
        if format is LayerInformationFormat.JSON:
            return json.dumps(layer)
        return _oneline(layer) + "\n"

    def get_engine_information(self, format: LayerInformationFormat) -> str:
        """All layers and bindings."""
        self._expect_format(format)
        layers = []
        if self._engine.profiling_verbosity is not ProfilingVerbosity.NONE:
            layers = [self._layer(entry) for entry in self._layers]
        tensors = [self._io_tensor(tensor) for tensor in self._state.info.io]
        if format is LayerInformationFormat.JSON:
            return json.dumps({"Layers": layers, "I/O Tensors": tensors})
        lines = ["Layers:", *(_oneline(layer) for layer in layers), "", "I/O Tensors:"]
        return "\n".join([*lines, *(str(tensor["Name"]) for tensor in tensors)]) + "\n"

    @staticmethod
    def _expect_format(format: LayerInformationFormat) -> None:
        instance_of(LayerInformationFormat, format, "format")

    def _layer(self, entry: Mapping[str, Any]) -> Any:
        verbosity = self._engine.profiling_verbosity
        if verbosity is ProfilingVerbosity.NONE:
            return {}
        if verbosity is ProfilingVerbosity.LAYER_NAMES_ONLY:
            return entry["name"]
        return {
            "Name": entry["name"],
            "LayerType": entry["type"],
            "Inputs": [self._tensor(tensor) for tensor in entry["inputs"] if tensor is not None],
            "Outputs": [self._tensor(tensor) for tensor in entry["outputs"]],
            "Parameters": entry["attributes"],
            "Weights": self._weights(entry),
            "TacticName": entry["implementation"] or self._state.info.tactic,
            "StreamId": 0,
            "Metadata": entry["metadata"],
        }

    def _weights(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        return {
            slot.role: {"Type": slot.dtype.name, "Count": slot.count, "Name": slot.name or ""}
            for slot in self._state.weights.slots
            if self._layers[slot.layer] is entry
        }

    def _tensor(self, tensor_id: int) -> dict[str, Any]:
        tensor = self._tensors[tensor_id]
        return {
            "Name": tensor["name"],
            "Dimensions": tensor["shape"],
            "DataType": tensor["dtype"],
            "Format": "Row major linear",
        }

    def _io_tensor(self, tensor: IOTensor) -> dict[str, Any]:
        engine = self._engine
        source = engine if self._context is None else self._context
        profiles = []
        for index in range(engine.num_optimization_profiles if tensor.is_input else 0):
            low, opt, high = engine.get_tensor_profile_shape(tensor.name, index)
            profiles.append(
                {
                    "MinShape": list(low),
                    "OptShape": list(opt),
                    "MaxShape": list(high),
                    "Format": engine.get_tensor_format_desc(tensor.name, index),
                }
            )
        return {
            "Name": tensor.name,
            "IOMode": engine.get_tensor_mode(tensor.name).name,
            "DataType": tensor.dtype.name,
            "Dimensions": list(source.get_tensor_shape(tensor.name)),
            "Location": engine.get_tensor_location(tensor.name).name,
            "IsShapeInferenceIO": tensor.is_host,
            "ProfileInfo": profiles,
        }


def _oneline(layer: Any) -> str:
    if not isinstance(layer, dict):
        return str(layer)
    if not layer:
        return ""
    inputs, outputs = (
        ", ".join(f"{t['Name']}: {t['DataType']}{t['Dimensions']}" for t in layer[side])
        for side in ("Inputs", "Outputs")
    )
    return f"{layer['LayerType']} {layer['Name']}: [{inputs}] -> [{outputs}]"
