"""What a library must do to be a tactic.

A library gets a network as an ONNX model, written from the layers of a plan. Nothing of its own is saved: an artifact
says which library won at a build, in which version, and whoever loads the plan hands the network over again.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from trt_portable.onnx_export import NUMBERS, ExportedPlan
from trt_portable.plan.engine_info import EngineInfo, IOTensor, Shape
from trt_portable.plan.extents import evaluate, sizes_by_symbol
from trt_portable.weights import Weights

if TYPE_CHECKING:
    from onnx import TensorProto


SWITCH: Final = "TRT_PORTABLE_LIBRARIES"
"""Environment variable: the libraries that may be used, with commas between. Unset, all that are installed are."""


@dataclass(frozen=True)
class Signature:
    """The ends of a model.

    Attributes:
        inputs: In order.
        outputs: In order.
    """

    inputs: tuple[IOTensor, ...]
    outputs: tuple[IOTensor, ...]

    @staticmethod
    def of(info: EngineInfo) -> Signature:
        """That of an engine."""
        inputs, outputs = (tuple(t for t in info.io if t.is_input is is_input) for is_input in (True, False))
        return Signature(inputs, outputs)

    def output_shapes(self, shapes: tuple[Shape, ...]) -> list[Shape | None]:
        """Extents of outputs for those of inputs; None where the plan does not say them."""
        symbols = sizes_by_symbol(shapes)
        return [_extents(tensor, symbols) for tensor in self.outputs]


def _extents(tensor: IOTensor, symbols: Mapping[str, int]) -> Shape | None:
    if not tensor.is_dynamic:
        return tensor.shape
    if not tensor.extents or None in tensor.extents:
        return None
    return tuple(evaluate(extent, symbols) for extent in tensor.extents)


class CompiledModel(Protocol):
    """A model as a library runs it. Any number of threads may run it at once."""

    def run(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor]:
        """Computes the outputs.

        Args:
            inputs: Dense tensors on the host.
            outputs: Memory for each; None where its extents are not known before.

        Returns:
            The outputs, those that had memory in it.
        """


class Library(ABC):
    """A library that compiles ONNX models for the CPU.

    Args:
        name: Of its Python package; stands in plans and in the timing cache.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def version(self) -> str | None:
        """Its version; None where it, or the `onnx` package, is not installed, or it is switched off."""
        allowed = os.environ.get(SWITCH)
        if allowed is not None and self.name not in map(str.strip, allowed.split(",")):
            return None
        return _version(self.name) if _version("onnx") is not None else None

    @abstractmethod
    def compile(self, exported: ExportedPlan, signature: Signature, threads: int) -> CompiledModel:
        """Compiles a model. It may raise whatever it meets.

        Args:
            exported: The model.
            signature: Its ends.
            threads: Threads to run it with.
        """


@functools.cache
def _version(package: str) -> str | None:
    """The version of an installed package, which is not imported for that."""
    if importlib.util.find_spec(package) is None:
        return None
    for distribution in (package, f"{package}-gpu"):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


_FATAL: Final = 4
"""Of its levels of severity: errors are raised as well, and what it writes of them holds names as models have them."""


class OnnxRuntime(Library):
    """Sessions on the CPU provider."""

    def compile(self, exported: ExportedPlan, signature: Signature, threads: int) -> CompiledModel:
        """Makes a session. Large weights stay where they are, but for those that it packs."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _FATAL
        options.add_session_config_entry("session.force_spinning_stop", "1")  # threads are PyTorch's between runs
        names, values = [], []
        for initializer in exported.model.graph.initializer:
            weights = exported.weights.get(initializer.name)
            if weights is not None:
                _lies_elsewhere(initializer)
                names.append(initializer.name)
                values.append(_value(weights, initializer))
        if names:
            options.add_external_initializers(names, values)
        model = exported.model.SerializeToString()
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return _Session(session, signature, values)


def _lies_elsewhere(initializer: TensorProto) -> None:
    """Marks an initializer as one whose data somebody else gives."""
    initializer.data_location = type(initializer).EXTERNAL
    place = initializer.external_data.add()
    place.key, place.value = "location", initializer.name


def _value(weights: Weights, initializer: TensorProto) -> Any:
    """Weights in the memory that they have."""
    import onnxruntime

    array = np.frombuffer(weights._buffer(), dtype=_KINDS[weights.nbytes // max(weights.size, 1)])
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
        array.reshape(tuple(initializer.dims)), initializer.data_type
    )


_KINDS: Final = {1: np.uint8, 2: np.uint16, 4: np.float32, 8: np.int64}


class _Session:
    """Runs a session; each thread that runs at the same time has bindings of its own."""

    def __init__(self, session: Any, signature: Signature, keep: object) -> None:
        self._session = session
        self._keep = keep
        self._numbers = [[NUMBERS[each.dtype] for each in ends] for ends in (signature.inputs, signature.outputs)]
        self._names = [[each.name for each in found()] for found in (session.get_inputs, session.get_outputs)]
        self._bindings: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def run(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor]:
        """Runs on memory as it is."""
        try:
            binding = self._bindings.get_nowait()
        except queue.Empty:
            binding = self._session.io_binding()
        for name, number, value in zip(self._names[0], self._numbers[0], inputs, strict=True):
            binding.bind_input(name, "cpu", 0, number, tuple(value.shape), value.data_ptr())
        for name, number, place in zip(self._names[1], self._numbers[1], outputs, strict=True):
            if place is None:
                binding.bind_output(name, "cpu")
            else:
                binding.bind_output(name, "cpu", 0, number, tuple(place.shape), place.data_ptr())
        self._session.run_with_iobinding(binding)
        found = list(outputs)
        if any(each is None for each in outputs):  # `None in` compares tensors, which takes longer than a small run
            made = binding.get_outputs()
            found = [from_dlpack(made[at]).clone() if each is None else each for at, each in enumerate(found)]
        self._bindings.put(binding)
        return found  # type: ignore[return-value]


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
        core = _openvino_core()
        model = core.read_model(_with_weights_as_inputs(exported).SerializeToString())
        for parameter in model.get_parameters():
            weights = exported.weights.get(parameter.get_friendly_name())
            if weights is not None:
                constant = _constant(weights, parameter)
                parameter.output(0).replace(constant.output(0))
                model.remove_parameter(parameter)
        settings = {**_SETTINGS, "INFERENCE_NUM_THREADS": threads}
        compiled = core.compile_model(model, "CPU", settings)
        for ends, wanted in ((compiled.inputs, signature.inputs), (compiled.outputs, signature.outputs)):
            named = [each.get_names() for each in ends]
            if len(named) != len(wanted) or not all(own.name in names for own, names in zip(wanted, named)):  # noqa: B905
                raise ValueError(f"it has the ends {named}, not {[own.name for own in wanted]}")
        return _Model(compiled, exported.weights)


def _openvino_core() -> Any:
    """What compiles one model, with a plugin of its own: one for all keeps weights by their addresses.

    The thread that loads a plugin has its stack for signals until the plugin goes, and then the stack of before, which
    may have gone first: the next signal, Ctrl-C too, would end the process. So a thread loads it that ends at once.
    """
    import openvino

    core = openvino.Core()
    loading = threading.Thread(target=core.get_versions, args=("CPU",))
    loading.start()
    loading.join()
    return core


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
