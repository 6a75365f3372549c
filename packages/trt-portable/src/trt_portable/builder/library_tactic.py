"""The tactics `openvino` and `onnxruntime`: the whole network compiled for the CPU by a library that is installed.

An artifact of theirs holds nothing but the library's version and the shapes: the network is handed over again when a
plan is loaded (`trt_portable.libraries`). One artifact serves all sizes of a profile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from trt_portable.builder.tactic import NotApplicable, Subject, Tactic
from trt_portable.dtypes import FLOATS, storage_bytes
from trt_portable.enums import DataType, LayerType
from trt_portable.libraries.library import Library
from trt_portable.libraries.program import libraries, machine_with
from trt_portable.network.serialization import layers_from_json
from trt_portable.onnx_export import PLAN_TYPES
from trt_portable.plan.artifact import Artifact, Varying, machine_of
from trt_portable.plan.engine_info import EngineInfo, RefitMode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_LEAST_LEVEL: Final = 3
_LEAST_MILLISECONDS: Final = 1.0
"""Shorter runs gain less than it costs to load a library and to compile with it."""

MOST_WEIGHT_BYTES: Final = 1 << 30
"""Weights of larger networks are held once, by layers: a library's copies would take twice their memory in builds."""


class LibraryTactic(Tactic):
    """A library on the CPU.

    Args:
        library: Which.
    """

    def __init__(self, library: Library) -> None:
        super().__init__(library.name, _LEAST_LEVEL)
        self._library = library

    @property
    def identity(self) -> str:
        """Name and version: another version is as fast as it is."""
        return f"{self.name} {self._library.version()}"

    @property
    def least_milliseconds(self) -> float:
        """What layers take at least where it is worth a try."""
        return _LEAST_MILLISECONDS

    def is_candidate(self, subject: Subject) -> bool:
        """Whether the library is there, and the engine one that it can run.

        Raises:
            NotApplicable: It is there, and cannot run the engine.
        """
        if subject.device.type != "cpu" or self._library.version() is None:
            return False
        reason = next(_reasons_against(subject.structure, subject.info), None)
        if reason is not None:
            raise NotApplicable(reason)
        return True

    def build(self, subject: Subject, profile: int) -> Artifact:
        """Says what is to be compiled; whoever makes a program of it has it compiled."""
        machine = machine_with(self.name, machine_of(subject.device))
        varying = tuple(_varying(subject.info, profile))
        return Artifact(self.name, machine, subject.input_shapes(profile), {}, varying=varying)


def _varying(info: EngineInfo, profile: int) -> Iterator[Varying]:
    """The extents that a profile leaves open."""
    for source, tensor in enumerate(tensor for tensor in info.io if tensor.is_input):
        allowed = info.allowed_shape(tensor, profile)
        for axis, (least, most) in enumerate(zip(allowed.min, allowed.max, strict=True)):
            if least != most:
                yield Varying(source, axis, least, most)


def _reasons_against(structure: Mapping[str, Any], info: EngineInfo) -> Iterator[str]:
    """Why no library may run an engine."""
    weights = {slot.weights: storage_bytes(slot.dtype, slot.count) for slot in info.weight_slots}
    weight_bytes = sum(weights.values())
    if weight_bytes > MOST_WEIGHT_BYTES:
        yield f"its weights take {weight_bytes:,} bytes, more than {MOST_WEIGHT_BYTES:,}, and a library would copy them"
    if info.refit is not RefitMode.NONE:
        yield "a refit may replace its weights, and the library would compile the network anew"
    if info.weight_streaming:
        yield "its weights are streamed"
    if info.debug_tensors:
        yield "tensors inside of it are shown to debug listeners"
    for tensor in info.io:
        if tensor.is_host:
            yield f"the numbers of {tensor.name!r} are read on the host"
        if tensor.aliased_input is not None:
            yield f"{tensor.name!r} is an input that is updated in place"
        if tensor.dtype in _FOREIGN:
            yield f"{tensor.name!r} is {tensor.dtype.name}"
    for layer in structure["layers"]:
        if layer["type"] not in PLAN_TYPES:
            yield f"layer {layer['name']!r} of the kind {layer['type']} is none that libraries are given"
    for made in layers_from_json(structure).layers:
        if made._DATA_DEPENDENT:
            yield f"data decides how large the result of layer {made.name!r} is"
        if made._is_random:
            yield f"layer {made.name!r} draws random numbers"
        given, result = made.get_input(0), made.get_output(0)
        if made._KIND is LayerType.CAST and given and result and given.dtype in FLOATS and result.dtype in _INTEGERS:
            yield f"layer {made.name!r} casts floats to integers, which saturate"


_INTEGERS: Final = frozenset({DataType.INT8, DataType.UINT8, DataType.INT32, DataType.INT64})
_FOREIGN: Final = frozenset({DataType.FP8, DataType.INT4, DataType.FP4, DataType.E8M0})
LIBRARY_TACTICS: Final = tuple(LibraryTactic(library) for library in libraries().values())
"""The better ones first."""
