"""OpenVINO as a tactic (the extra `trt-portable[openvino]`)."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from trt_portable.libraries.library import CompiledModel, Library, Signature
from trt_portable.onnx_export import ExportedPlan
from trt_portable.weights import Weights

_SETTINGS: Final = {
    "PERFORMANCE_HINT": "LATENCY",
    "NUM_STREAMS": 1,
    "INFERENCE_PRECISION_HINT": "f32",  # where a processor has bfloat16, it would be taken for float32
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    "CPU_DENORMALS_OPTIMIZATION": False,
    "ENABLE_CPU_PINNING": False,  # threads of one engine must not all be pinned to the same processors
}


class OpenVino(Library):
    """Models on the plugin for CPUs."""

    def compile(self, exported: ExportedPlan, signature: Signature, threads: int) -> CompiledModel:
        """Compiles a model. Large weights come in as inputs and become constants that lie where they did."""
        import openvino

        model = openvino.Core().read_model(_with_weights_as_inputs(exported).SerializeToString())
        for parameter in model.get_parameters():
            weights = exported.weights.get(parameter.get_friendly_name())
            if weights is not None:
                constant = _constant(weights, parameter)
                parameter.output(0).replace(constant.output(0))
                model.remove_parameter(parameter)
        settings = {**_SETTINGS, "INFERENCE_NUM_THREADS": threads}
        compiled = openvino.Core().compile_model(model, "CPU", settings)
        for ends, wanted in ((compiled.inputs, signature.inputs), (compiled.outputs, signature.outputs)):
            named = [each.get_names() for each in ends]
            if len(named) != len(wanted) or not all(own.name in names for own, names in zip(wanted, named)):  # noqa: B905
                raise ValueError(f"it has the ends {named}, not {[own.name for own in wanted]}")
        return _Model(compiled, exported.weights)


def _with_weights_as_inputs(exported: ExportedPlan) -> Any:
    from onnx import helper

    graph = exported.model.graph
    kept = []
    for each in graph.initializer:
        if each.name in exported.weights:
            graph.input.append(helper.make_tensor_value_info(each.name, each.data_type, list(each.dims)))
        else:
            kept.append(each)
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return exported.model


def _constant(weights: Weights, parameter: Any) -> Any:
    import openvino

    shape = parameter.get_partial_shape().to_shape()
    return openvino.op.Constant(_shared(weights._tensor(), shape, parameter.get_element_type()))


def _shared(tensor: torch.Tensor, shape: Any, kind: Any) -> Any:
    """Memory of a dense tensor as OpenVINO takes it."""
    import openvino

    array = (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return openvino.Tensor(array, openvino.Shape(list(shape)), kind)


class _Model:
    """Runs a compiled model; each thread that runs at the same time has a request of its own."""

    def __init__(self, compiled: Any, keep: object) -> None:
        self._compiled = compiled
        self._keep = keep
        self._kinds = [[each.element_type for each in ends] for ends in (compiled.inputs, compiled.outputs)]
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def run(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor]:
        """Runs on memory as it is."""
        try:
            request = self._requests.get_nowait()
        except queue.Empty:
            request = self._compiled.create_infer_request()
        for at, (value, kind) in enumerate(zip(inputs, self._kinds[0], strict=True)):
            request.set_input_tensor(at, _shared(value, value.shape, kind))
        for at, (place, kind) in enumerate(zip(outputs, self._kinds[1], strict=True)):
            if place is not None:
                request.set_output_tensor(at, _shared(place, place.shape, kind))
        request.infer(share_outputs=True)  # in this thread
        found = [
            torch.from_numpy(np.array(request.get_output_tensor(at).data)) if place is None else place
            for at, place in enumerate(outputs)
        ]
        self._requests.put(request)
        return found
