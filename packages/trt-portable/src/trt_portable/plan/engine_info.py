"""What a plan says about its engine beyond the layers: bindings, profiles, refit, settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Annotated, Any

import torch

from trt_core.files import records, typed
from trt_core.files.records import Form
from trt_portable.dtypes import CARRIERS
from trt_portable.enums import (
    BuilderFlag,
    DataType,
    EngineCapability,
    HardwareCompatibilityLevel,
    ProfilingVerbosity,
    TensorFormat,
)
from trt_portable.formats import LAYOUTS
from trt_portable.memory import IHostMemory
from trt_portable.optimization_profile import Profile, Range
from trt_portable.plan import tables
from trt_portable.plan.extents import Expression, read_expression
from trt_portable.plan.plan_file import write_plan
from trt_portable.plan.weight_table import WeightTable
from trt_portable.shape_tensors import is_known_to_host

Shape = tuple[int, ...]


class RefitMode(Enum):
    """Which weights of an engine may be replaced."""

    NONE = "none"
    ALL = "all"
    IDENTICAL = "identical"
    INDIVIDUAL = "individual"


@dataclass(frozen=True)
class IOTensor:
    """An input or output of an engine.

    Attributes:
        name: Unique among inputs and outputs.
        id: Tensor id in the network structure.
        dtype: Element type of the memory bound to it.
        shape: Extents; -1 where they are known at run time only.
        is_input: Input or output.
        is_host: A shape tensor: its memory is on the host.
        dimension_names: Names of extents, "" where none; equal names mean equal extents.
        aliased_input: Input that must be bound to the same address (KV caches updated in place).
        format: How the bound memory is laid out.
        extents: Extents of an output as expressions of input extents; none where nothing is said.
    """

    name: str
    id: int
    dtype: DataType
    shape: Annotated[Shape, Form(tables.extents, list)]
    is_input: bool
    is_host: bool = False
    dimension_names: tuple[str, ...] = ()
    aliased_input: str | None = None
    format: TensorFormat = TensorFormat.LINEAR
    extents: tuple[Expression, ...] = ()

    @property
    def torch_dtype(self) -> torch.dtype:
        """The PyTorch type of the bound memory."""
        return CARRIERS[self.dtype]

    @property
    def is_dynamic(self) -> bool:
        """Whether an extent is known at run time only."""
        return -1 in self.shape


@dataclass(frozen=True)
class WeightSlot:
    """One use of weights: a layer's role.

    Attributes:
        layer: Index of the layer in the network structure.
        layer_name: Its name.
        role: Name of a `WeightsRole`.
        weights: Id of the weights in the plan.
        dtype: Element type.
        count: Number of elements.
        name: Name given by ``set_weights_name``, or None.
        refittable: Whether a refit may replace them.
    """

    layer: int
    layer_name: str
    role: str
    weights: str
    dtype: DataType
    count: int
    name: str | None = None
    refittable: bool = False


@dataclass(frozen=True)
class EngineInfo:
    """Everything about an engine that is not a layer.

    Attributes:
        name: The network's name.
        io: Inputs in network order, then outputs.
        profiles: At least one.
        weight_slots: Every use of weights.
        stripped: Ids of weights that the plan leaves out.
        refit: Which weights may be replaced.
        debug_tensors: Names of tensors that a debug listener may see, by tensor id.
        tactic: Name of the tactic that runs the program.
        prepacked: Whether products are computed with weights packed for the CPU, where no artifact runs.
        optimization_level, verbosity, capability, hardware: As the builder's configuration had them.
        tactic_sources: The same, one bit for each `TacticSource`.
        weight_streaming: Whether some weights may stay on the host.
        settings: Builder settings that are only reported, but for `flags`, a list of names.
    """

    name: str
    io: tuple[IOTensor, ...]
    profiles: tuple[Profile, ...]
    weight_slots: tuple[WeightSlot, ...] = ()
    stripped: frozenset[str] = frozenset()
    refit: RefitMode = RefitMode.NONE
    debug_tensors: Mapping[int, str] = field(default_factory=dict)
    tactic: str = "interpret"
    prepacked: bool = False
    optimization_level: int = 3
    verbosity: ProfilingVerbosity = ProfilingVerbosity.LAYER_NAMES_ONLY
    capability: EngineCapability = EngineCapability.STANDARD
    hardware: HardwareCompatibilityLevel = HardwareCompatibilityLevel.NONE
    tactic_sources: int = 0
    weight_streaming: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def allows_tf32(self) -> bool:
        """Whether products of float32 may lose digits to TF32."""
        return BuilderFlag.TF32.name in self.settings.get("flags", [BuilderFlag.TF32.name])

    def allowed_shape(self, tensor: IOTensor, profile: int) -> Range:
        """The extents that a profile allows an input; its own where they are fixed."""
        return self.profiles[profile].shapes.get(tensor.name, Range(tensor.shape, tensor.shape, tensor.shape))

    def check(self) -> None:
        """Sees whether names, numbers and the ranks of profiles make sense together.

        Raises:
            ValueError: They do not.
        """
        inputs = {tensor.name: tensor for tensor in self.io if tensor.is_input}
        if len({tensor.name for tensor in self.io}) != len(self.io):
            raise ValueError("two bindings have one name")
        for tensor in self.io:
            _check_format(tensor)
            if tensor.aliased_input is not None and (tensor.is_input or tensor.aliased_input not in inputs):
                raise ValueError(f"{tensor.name!r} is the alias of {tensor.aliased_input!r}, which is no input")
        ranks = [len(tensor.shape) for tensor in inputs.values()]
        for tensor in self.io:
            if len(tensor.extents) not in ({0} if tensor.is_input else {0, len(tensor.shape)}):
                raise ValueError(f"{tensor.name!r} has {len(tensor.extents)} expressions of extents")
            for expression in tensor.extents:
                read_expression(expression, f"an extent of {tensor.name!r}", ranks)
        if not self.profiles:
            raise ValueError("there is no profile")
        for profile in self.profiles:
            for name, shapes in profile.shapes.items():
                if name not in inputs or shapes.lengths != {len(inputs[name].shape)}:
                    raise ValueError(f"a profile has the shape {shapes.min} for {name!r}")
            for name, values in profile.values.items():
                if name not in inputs or len(values.lengths) != 1:
                    raise ValueError(f"a profile has the values {values} for {name!r}")
        typed.texts(self.settings.get("flags", []), "the flags of the builder")


def _check_format(tensor: IOTensor) -> None:
    """The memory of a binding has a format that exists for its type, rank and place.

    Raises:
        ValueError: It has not.
    """
    layout = LAYOUTS.get(tensor.format)
    if layout is None:
        fits = tensor.format is TensorFormat.LINEAR
    else:
        fits = not tensor.is_host and tensor.dtype in layout.dtypes and len(tensor.shape) >= layout.channel
    if not fits:
        raise ValueError(
            f"{tensor.name!r}, {tensor.dtype.name} of rank {len(tensor.shape)}, cannot lie in memory as "
            f"{tensor.format.name}"
        )


def is_host_constant(slot: WeightSlot) -> bool:
    """Whether weights are the numbers of a constant that the host knows: shapes may depend on them."""
    return slot.role == "CONSTANT" and is_known_to_host(slot.dtype, slot.count)


def strippable(slots: Iterable[WeightSlot]) -> frozenset[str]:
    """Ids of weights that a refit can bring back completely; numbers of shapes always stay."""
    leave: set[str] = set()
    stay: set[str] = set()
    for slot in slots:
        (leave if slot.refittable and not is_host_constant(slot) else stay).add(slot.weights)
    return frozenset(leave - stay)


def write_engine(
    structure: Mapping[str, Any],
    info: EngineInfo,
    slots: Sequence[WeightSlot],
    tensors: Mapping[str, torch.Tensor],
    features: Iterable[str],
    *,
    compiled: bytes = b"",
    strip: bool,
    keep_refit: bool = True,
) -> IHostMemory:
    """Serializes an engine.

    Args:
        structure: Layers and tensors, as the network half writes them.
        info: The rest; its weight slots are replaced by `slots`.
        slots: Every use of weights.
        tensors: Flat tensors by id; those that are missing count as stripped.
        features: What a reader must understand.
        compiled: Section of compiled artifacts.
        strip: Leave out the weights that a refit can bring back.
        keep_refit: Whether the engine read back can be refitted.
    """
    absent = {slot.weights for slot in slots if slot.weights not in tensors}
    stripped = frozenset(absent | (strippable(slots) if strip else frozenset()))
    written = WeightTable(tensors).only(tensors.keys() - stripped)
    if not keep_refit:
        slots = [replace(slot, refittable=False) for slot in slots]
        info = replace(info, refit=RefitMode.NONE)
    info = replace(info, weight_slots=tuple(slots), stripped=stripped)
    features = set(features) - {"stripped"} | ({"stripped"} if stripped else set())
    return write_plan({"network": structure, "engine": records.write(info)}, written, features, compiled)
