"""What an engine runs that was fastest in a library: the network handed over again, and the layers for the rest."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from trt_core.remembered import Remembered
from trt_portable.dtypes import CARRIERS
from trt_portable.errors import PortableError
from trt_portable.execution.program import LayerFailure, Program
from trt_portable.libraries import NAMES
from trt_portable.libraries.library import Library, OnnxRuntime, OpenVino, Signature
from trt_portable.onnx_export import ExportedPlan, export_plan
from trt_portable.plan.artifact import Artifact
from trt_portable.plan.engine_info import EngineInfo, Shape
from trt_portable.plan.weight_store import WeightStore
from trt_portable.shape_tensors import Value, as_tensor


@functools.cache
def libraries() -> Mapping[str, Library]:
    """All that there are, by name."""
    return {name: kind(name) for name, kind in zip(NAMES, (OpenVino, OnnxRuntime), strict=True)}


def identities() -> list[str]:
    """Names and versions of those that may be used here: what is built without them may be slower."""
    return [f"{name} {version}" for name, each in libraries().items() if (version := each.version()) is not None]


def machine_with(library: str, machine: Mapping[str, str]) -> dict[str, str]:
    """A machine, as artifacts name it, with the version of a library that is at hand."""
    found = libraries().get(library)
    version = None if found is None else found.version()
    return {**machine, **({} if version is None else {library: version})}


class LibraryProgram:
    """What a library made of an engine. Any number of threads may run it at once.

    Args:
        artifact: Says which library, and for which shapes.
        structure: The network part of the plan.
        info: The engine part.
        weights: The engine's weights, on the host; the library may read them where they lie.

    Raises:
        PortableError: The library refuses the network, or fails.
    """

    def __init__(
        self, artifact: Artifact, structure: Mapping[str, Any], info: EngineInfo, weights: WeightStore
    ) -> None:
        self.artifact = artifact
        self._signature = Signature.of(info)
        self._weights = weights  # whose memory the library may read
        self._shapes: Remembered[tuple[Shape, ...], list[Shape | None]] = Remembered()
        library = libraries()[artifact.tactic]
        try:
            exported = exported_for(artifact, structure, info, weights)
            self._model = library.compile(exported, self._signature, torch.get_num_threads())
        except Exception as error:  # somebody else's compiler may fail in any way
            raise PortableError(f"{library.name} cannot run its network: {type(error).__name__}: {error}") from error

    @property
    def constants(self) -> object:
        """What a run that starts now reads besides its inputs."""
        return self._model

    def run(self, values: Sequence[Value], targets: Sequence[torch.Tensor | None] = ()) -> list[Value]:
        """Computes the outputs, on as many threads as PyTorch had when it was loaded.

        Args:
            values: One per input, in order.
            targets: None, or memory for each output that no input shares; outputs are left there.

        Raises:
            LayerFailure: The library failed.
        """
        shapes = tuple([tuple(value.shape) for value in values])
        known = self._shapes.get(shapes)
        if known is None:
            known = self._shapes[shapes] = self._signature.output_shapes(shapes)
        inputs = [as_tensor(value).contiguous() for value in values]
        given = list(targets) or [None] * len(known)
        outputs = [
            target
            if target is not None and target.shape == shape and target.is_contiguous()
            else None
            if shape is None
            else torch.empty(shape, dtype=tensor.torch_dtype, device="cpu")
            for target, shape, tensor in zip(given, known, self._signature.outputs, strict=True)
        ]
        try:
            return list(self._model.run(inputs, outputs))
        except Exception as error:
            raise LayerFailure(self.artifact.tactic, error) from error


def exported_for(
    artifact: Artifact, structure: Mapping[str, Any], info: EngineInfo, weights: WeightStore
) -> ExportedPlan:
    """The network for the shapes of an artifact: fixed, or open where these vary.

    Raises:
        ExportError: A layer has no form in ONNX.
    """
    bound: list[dict[str, torch.Tensor]] = [{} for _ in structure["layers"]]
    for at, slot in enumerate(weights.slots):
        tensor = weights.tensor(at)
        if tensor is None:
            raise PortableError(f"weights of layer {slot.layer_name!r} are missing")
        bound[slot.layer][slot.role] = tensor
    open_axes = {(each.source, each.axis) for each in artifact.varying}
    shapes = {
        tensor.name: [-1 if (at, axis) in open_axes else extent for axis, extent in enumerate(shape)]
        for at, (tensor, shape) in enumerate(zip(Signature.of(info).inputs, artifact.shapes, strict=True))
    }
    return export_plan(structure, bound, shapes)


class LibraryExecutable:
    """Runs what a library made where it serves the inputs at hand, and layers for all others.

    Inputs with elements that are not finite go to the layers: libraries make numbers of NaN where PyTorch keeps them.

    Args:
        programs: Each for shapes of its own.
        layers: Runs all shapes.
    """

    def __init__(self, programs: Sequence[LibraryProgram], layers: Program) -> None:
        self._programs = tuple(programs)
        self._layers = layers
        floats = {torch.float32, torch.float16, torch.bfloat16}
        inputs = programs[0]._signature.inputs
        self._floats = [at for at, tensor in enumerate(inputs) if CARRIERS[tensor.dtype] in floats]

    @property
    def constants(self) -> object:
        """What a run that starts now reads besides its inputs."""
        return (self._layers.constants, self._programs)

    def run(self, values: Sequence[Value], targets: Sequence[torch.Tensor | None] = ()) -> Sequence[Value]:
        """Computes the outputs.

        Args:
            values: One per input, in order.
            targets: None, or memory for each output that no input shares.

        Raises:
            LayerFailure: A layer refused its operands or failed; where a library does, the layers run.
        """
        shapes = tuple([tuple(value.shape) for value in values])
        for program in self._programs:
            if program.artifact.serves(shapes):
                if all(is_finite(as_tensor(values[at])) for at in self._floats):
                    with contextlib.suppress(LayerFailure):  # indices out of bounds, which read 0 in the layers
                        return program.run(values, targets)
                break
        return self._layers.run(values, targets)


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether a sum of all elements is finite, and so are these; large ones may sum up to what is not."""
    total = float(tensor.sum(dtype=torch.float32))
    return total - total == 0.0
