"""ONNX Runtime as a tactic (the extra `trt-portable[onnxruntime]`)."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from trt_portable.libraries.library import CompiledModel, Library, Signature
from trt_portable.onnx_export import NUMBERS, ExportedPlan
from trt_portable.weights import Weights

if TYPE_CHECKING:
    from onnx import TensorProto

_ERRORS: Final = 3  # of its levels of severity


class OnnxRuntime(Library):
    """Sessions on the CPU provider."""

    def compile(self, exported: ExportedPlan, signature: Signature, threads: int) -> CompiledModel:
        """Makes a session. Large weights stay where they are, but for those that it packs."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _ERRORS
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
