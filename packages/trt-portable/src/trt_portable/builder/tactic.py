"""Tactics: the ways in which an engine can execute its layers, beside interpreting them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from trt_core.cached_property import cached_property
from trt_portable.dtypes import FLOATS, storage_bytes
from trt_portable.enums import DataType, ElementWiseOperation, GatherMode, LayerType
from trt_portable.errors import PortableError, present
from trt_portable.execution.loaded_network import LoadedNetwork, load_network
from trt_portable.execution.program import Program
from trt_portable.fusion.epilogues import ProductChoice
from trt_portable.fusion.programs import fused_program, host_program, prepacked_program
from trt_portable.layers.convolution import IConvolutionLayer, IDeconvolutionLayer
from trt_portable.layers.indexing import IGatherLayer
from trt_portable.layers.pointwise import IElementWiseLayer
from trt_portable.libraries.library import Library
from trt_portable.libraries.library_program import libraries, machine_with
from trt_portable.network.layer import OPEN, ILayer, ITensor
from trt_portable.network.serialization import layers_from_json
from trt_portable.onnx_export import PLAN_TYPES
from trt_portable.plan.artifact import Artifact, Varying, machine_of
from trt_portable.plan.engine_info import EngineInfo, RefitMode, Shape
from trt_portable.plan.weight_store import WeightStore
from trt_portable.shape_tensors import HostValues, Value, as_tensor

INTERPRET: Final = "interpret"
"""Name of the tactic that every engine has: PyTorch's kernels, layer by layer."""
PREPACKED: Final = "prepacked"
"""Name of the tactic that does the same with products by kernels that want weights packed; for the CPU."""


@dataclass(frozen=True)
class Subject:
    """What a tactic works on.

    Attributes:
        structure: The network part of a plan, its layers in executable order.
        info: The engine part.
        tensors: A flat tensor on the device for each use of weights.
        device: Where the engine will run.
    """

    structure: Mapping[str, Any]
    info: EngineInfo
    tensors: Sequence[torch.Tensor]
    device: torch.device
    _layers: list[ILayer] = field(default_factory=list)

    def input_shapes(self, profile: int) -> tuple[Shape, ...]:
        """The optimal shape of each input."""
        return tuple(self.info.allowed_shape(tensor, profile).opt for tensor in self.info.io if tensor.is_input)

    def example_inputs(self, profile: int, shapes: Sequence[Shape] | None = None) -> list[Value]:
        """Inputs of some shapes, or the optimal ones: normal numbers, and integers that every table can be asked for.

        Of truth values, and of integers that are used as such, two in three are true: a mask that hides everything
        leaves attention without a result, of which each way makes another one.
        """
        values: list[Value] = []
        inputs = [tensor for tensor in self.info.io if tensor.is_input]
        generator = torch.Generator().manual_seed(0)
        for tensor, shape in zip(inputs, shapes or self.input_shapes(profile), strict=True):
            dtype = tensor.torch_dtype
            if tensor.is_host:
                numbers = self.info.profiles[profile].values[tensor.name].opt
                values.append(HostValues.of(numbers, shape, dtype, self.device))
            elif dtype in (torch.float32, torch.float16, torch.bfloat16):
                values.append(torch.randn(shape, generator=generator, device="cpu").to(self.device, dtype))
            else:
                most = 1 if dtype is torch.bool else self._greatest_integers[tensor.name]
                if most > 1:
                    value = torch.randint(most + 1, shape, generator=generator, device="cpu").to(self.device, dtype)
                else:
                    value = torch.zeros(shape, dtype=dtype, device=self.device)
                    if most and shape:
                        value += (torch.arange(shape[-1], device=self.device) % 3 != 1).to(dtype)
                values.append(value)
        return values

    @cached_property
    def _greatest_integers(self) -> Mapping[str, int]:
        """Up to what number each input may go, by name; see `_greatest_integer`."""
        network = layers_from_json(self.structure)
        given = [network.tensors[tensor] for tensor in network.inputs]
        names = [tensor.name for tensor in self.info.io if tensor.is_input]
        return {name: _greatest_integer(network.layers, each) for name, each in zip(names, given, strict=True)}

    @cached_property
    def updated_inputs(self) -> frozenset[int]:
        """Positions of the inputs that runs may update in place. A run that is repeated changes nothing more."""
        inputs = [tensor.name for tensor in self.info.io if tensor.is_input]
        aliased = (tensor.aliased_input for tensor in self.info.io if tensor.aliased_input is not None)
        return frozenset(inputs.index(name) for name in aliased)

    def with_own_updates(self, values: Sequence[Value]) -> list[Value]:
        """Inputs of a run whose results are to stay: what it updates in place is a copy."""
        return [as_tensor(value).clone() if at in self.updated_inputs else value for at, value in enumerate(values)]

    def interpreted(self) -> Program:
        """The program, interpreted, with its weights bound."""
        loaded, _ = self.loaded()
        program = fused_program(loaded) if self.device.type == "cuda" else host_program(loaded)
        program.load_constants()
        return program

    def prepacked(self, choose: ProductChoice) -> tuple[Program, list[ILayer]] | None:
        """The program with products packed for the CPU, and its layers as weights number them; None without products.

        Args:
            choose: Which kernel each product with a matrix has.
        """
        if self.device.type != "cpu":
            return None
        before = len(self._layers)
        program = prepacked_program(self.loaded()[0], choose)
        if program is None:
            return None
        program.load_constants()
        return program, self._layers[before:]

    def loaded(self) -> tuple[LoadedNetwork, WeightStore]:
        """The layers, with their weights as a loaded engine keeps them."""
        loaded, layers = load_network(self.structure, self.info, self.device)
        self._layers.extend(layers)
        return loaded, WeightStore(self.info.weight_slots, layers, self.tensors)

    def release(self) -> None:
        """Takes the weights from all layers that were made: layers and tensors refer to each other, and live on."""
        for layer in self._layers:
            layer._bound = {}
            if isinstance(layer, (IConvolutionLayer, IDeconvolutionLayer)):
                layer._own = None
        self._layers.clear()

    def weights(self) -> WeightStore:
        """The weights as a loaded engine keeps them."""
        return self.loaded()[1]


_COMPARISONS: Final = frozenset({ElementWiseOperation.EQUAL, ElementWiseOperation.GREATER, ElementWiseOperation.LESS})
_JOINING: Final = frozenset({LayerType.CONCATENATION, LayerType.SELECT})
_MOVING: Final = frozenset(
    {LayerType.SHUFFLE, LayerType.SQUEEZE, LayerType.UNSQUEEZE, LayerType.IDENTITY, LayerType.SLICE, LayerType.GATHER}
)
"""Layers whose result holds elements of the first tensor that they read, and zeros at most."""


def _greatest_integer(layers: Sequence[ILayer], start: ITensor) -> int:
    """Up to what number an input of integers may go, so that no layer looks beyond the end of a table.

    Args:
        layers: Of the network, in executable order.
        start: The input.

    Returns:
        1 where elements are compared and cast alone, as those of masks; 0 where they are computed with, or no integers.
    """
    limits, made = [], {start}
    truncates = any(map(_truncates, layers))
    for layer in layers:
        for at, read in enumerate(layer._inputs):
            if read in made and _moves_integers(layer, at):
                made.add(layer._outputs[0])
            elif read in made and not _takes_any(layer, truncates):
                limits.append(_last_index(layer, at))
    return max(min(limits, default=1), 0) if start.dtype in _INTEGERS else 0


def _moves_integers(layer: ILayer, at: int) -> bool:
    """Whether a layer's result is made of the integers that it reads there."""
    kind = layer._KIND
    is_cast = kind is LayerType.CAST and layer._outputs[0].dtype in _INTEGERS
    return is_cast or kind in _JOINING or (kind in _MOVING and at == 0)


def _takes_any(layer: ILayer, truncates: bool) -> bool:
    """Whether any integers will do; those that become floats only where none of these become integers again."""
    if layer._KIND is LayerType.CAST:
        return not truncates or layer._outputs[0].dtype is DataType.BOOL
    return layer._KIND is LayerType.SHAPE or (isinstance(layer, IElementWiseLayer) and layer.op in _COMPARISONS)


def _last_index(layer: ILayer, at: int) -> int:
    """The greatest index that a layer may read there; 0 where that is not known."""
    if not isinstance(layer, IGatherLayer) or at != 1 or layer.mode is not GatherMode.DEFAULT:
        return 0
    extents = present(layer._inputs[0])._extents
    return 0 if extents is None or extents[layer.axis] is OPEN else extents[layer.axis] - 1


def _truncates(layer: ILayer) -> bool:
    """Whether it makes integers of floats."""
    if layer._KIND is not LayerType.CAST:
        return False
    return present(layer._inputs[0]).dtype in FLOATS and layer._outputs[0].dtype in _INTEGERS


class NotApplicable(PortableError):
    """A tactic that is at hand cannot run an engine; the message says why."""


class Tactic(ABC):
    """One way of executing a program.

    Args:
        name: Stands in the plan and in the timing cache.
        least_level: Builder optimization level from which the tactic is tried.
    """

    def __init__(self, name: str, least_level: int) -> None:
        self.name = name
        self.least_level = least_level

    @property
    def identity(self) -> str:
        """What the timing cache tells tactics apart by."""
        return self.name

    @property
    def least_milliseconds(self) -> float:
        """What layers take at least where it is worth a try; asked where layers are timed first."""
        return 0.0

    @abstractmethod
    def is_candidate(self, subject: Subject) -> bool:
        """Whether trying is worth the time it takes.

        Raises:
            NotApplicable: It never could run such an engine.
        """

    def begin(self) -> None:  # noqa: B027 - most have nothing to begin
        """Starts what takes long to be ready for `build`, and goes on by itself."""

    @abstractmethod
    def build(self, subject: Subject, profile: int) -> Artifact | None:
        """Makes an artifact for a profile's optimal shapes; None where the tactic does not apply.

        It may raise whatever it meets: a tactic that fails in any way is not chosen.
        """

    def build_range(self, subject: Subject, profile: int) -> Artifact | None:
        """Makes an artifact for a range of a profile's shapes; None where the tactic has none, and the layers run."""
        return None


_LEAST_LEVEL: Final = 3
_LEAST_MILLISECONDS: Final = 1.0
"""Shorter runs gain less than it costs to load a library and to compile with it."""

MOST_WEIGHT_BYTES: Final = 1 << 30
"""Weights of larger networks are held once, by layers: a library's copies would take twice their memory in builds."""


_GREATEST_EXACT: Final = 1 << 24
"""Greatest integer up to which float32 holds all of them; some libraries compute with integers in floats."""


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
        """Says what is to be compiled; whoever makes a program of it has it compiled.

        Raises:
            NotApplicable: It has integers that the library may round.
        """
        for slot, numbers in zip(subject.info.weight_slots, subject.tensors, strict=True):
            if slot.dtype in (DataType.INT32, DataType.INT64) and _is_beyond(numbers, _GREATEST_EXACT):
                raise NotApplicable(f"{slot.layer_name!r} has integers that float32 does not hold")
        machine = machine_with(self.name, machine_of(subject.device))
        varying = tuple(_varying(subject.info, profile))
        return Artifact(self.name, machine, subject.input_shapes(profile), {}, varying=varying)


def _is_beyond(numbers: torch.Tensor, limit: int) -> bool:
    return bool(((numbers > limit) | (numbers < -limit)).any())


def _varying(info: EngineInfo, profile: int) -> Iterator[Varying]:
    """The extents that a profile leaves open; layers compute what has no elements."""
    for source, tensor in enumerate(tensor for tensor in info.io if tensor.is_input):
        allowed = info.allowed_shape(tensor, profile)
        for axis, (least, most) in enumerate(zip(allowed.min, allowed.max, strict=True)):
            if least != most:
                yield Varying(source, axis, max(1, least), most)


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
        if _truncates(made):
            yield f"layer {made.name!r} casts floats to integers, which saturate"


_INTEGERS: Final = frozenset({DataType.INT8, DataType.UINT8, DataType.INT32, DataType.INT64})
_FOREIGN: Final = frozenset({DataType.FP8, DataType.INT4, DataType.FP4, DataType.E8M0})
LIBRARY_TACTICS: Final = tuple(LibraryTactic(library) for library in libraries().values())
"""The better ones first."""
