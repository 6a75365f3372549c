"""Layers whose meaning is a plugin written in Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch

from trt_core.files import typed
from trt_portable.dtypes import FROM_TORCH
from trt_portable.enums import (
    DataType,
    ErrorCodeTRT,
    LayerType,
    PluginCapabilityType,
    QuickPluginCreationRequest,
    TensorFormat,
    TensorRTPhase,
)
from trt_portable.errors import Refusal, UnknownExtents
from trt_portable.formats import LAYOUTS
from trt_portable.network.layer import Facts, ILayer, ITensor
from trt_portable.network.rules import require
from trt_portable.plan import tables
from trt_portable.plugin.interfaces import (
    DimsExprs,
    DynamicPluginTensorDesc,
    IDimensionExpr,
    IExprBuilder,
    IPluginCreatorV3Quick,
    IPluginResourceContext,
    IPluginV3,
    PluginField,
    PluginFieldCollection,
    PluginFieldCollection_,
    PluginTensorDesc,
    get_plugin_registry,
)
from trt_portable.shape_tensors import Value, as_tensor, host_numbers

if TYPE_CHECKING:
    from trt_portable.network.symbols import Symbols

_DEFAULT_LIMIT: Final = 100


def choose_formats(build: Any, tensors: Sequence[DynamicPluginTensorDesc], num_inputs: int) -> tuple[TensorFormat, ...]:
    """The first combination of formats that a plugin supports, LINEAR where it can be.

    Args:
        build: The build face of the plugin.
        tensors: Inputs, then outputs; their formats are set on the way.
        num_inputs: How many are inputs.

    Raises:
        Refusal: The plugin supports none of the combinations that were tried.
    """
    budget = int(getattr(build, "format_combination_limit", _DEFAULT_LIMIT)) * max(len(tensors), 1)
    furthest = 0

    def search(position: int) -> bool:
        nonlocal budget, furthest
        if position == len(tensors):
            return True
        furthest = max(furthest, position)
        for kind in _candidates(tensors[position]):
            if budget == 0:
                return False
            budget -= 1
            tensors[position].desc.format = kind
            if build.supports_format_combination(position, tensors, num_inputs) and search(position + 1):
                return True
        return False

    if search(0):
        return tuple(tensor.desc.format for tensor in tensors)
    which = f"input {furthest}" if furthest < num_inputs else f"output {furthest - num_inputs}"
    found = tensors[furthest].desc
    raise Refusal(
        f"the plugin supports no format for {which}, {found.type.name} of extents {tuple(found.dims)}",
        ErrorCodeTRT.UNSUPPORTED_STATE,
    )


def _candidates(tensor: DynamicPluginTensorDesc) -> list[TensorFormat]:
    rank = len(tensor.desc.dims)
    fitting = [kind for kind, layout in LAYOUTS.items() if tensor.desc.type in layout.dtypes and rank >= layout.channel]
    return [TensorFormat.LINEAR, *fitting]


def memory_for(tensor: torch.Tensor, kind: TensorFormat, *, fill: bool) -> torch.Tensor:
    """Memory of a tensor in a format, filled with its values or not; the tensor itself where it is LINEAR."""
    layout = LAYOUTS.get(kind)
    if layout is None:
        return tensor.contiguous() if fill else tensor
    memory = tensor.new_empty(layout.memory_shape(tensor.shape))
    if fill:
        layout.pack(tensor, memory)
    return memory


def take_from(memory: torch.Tensor, kind: TensorFormat, tensor: torch.Tensor) -> None:
    """Reads a tensor from its memory in a format; nothing to do where they are the same."""
    layout = LAYOUTS.get(kind)
    if layout is not None:
        layout.unpack(memory, tensor)


class TensorAddress(int):
    """The address of a tensor's memory, as plugins receive it.

    Attributes:
        tensor: The memory as a tensor.
    """

    tensor: torch.Tensor

    def __new__(cls, tensor: torch.Tensor) -> TensorAddress:
        """Takes the address of a tensor's memory."""
        made = super().__new__(cls, tensor.data_ptr())
        made.tensor = tensor
        return made


class PluginLayer(ILayer):
    """A plugin of any version. Inputs: first those for data, then those for shapes, whose values the host knows."""

    _CACHEABLE = False
    _NESTED = ("plugin",)
    _SAVED: ClassVar[tuple[str, ...]] = ()
    """What a plan keeps of a plugin of this version, beside its identity."""

    _plugin: IPluginV3
    _data_inputs: int = 0
    _formats: tuple[TensorFormat, ...] = ()
    _running: Any = None

    @property
    def _HOST_INPUTS(self) -> frozenset[int]:  # type: ignore[override]
        return frozenset(range(self._data_inputs, len(self._inputs)))

    def _face(self, kind: PluginCapabilityType) -> Any:
        face = self._plugin.get_capability_interface(kind)
        if face is None:
            raise Refusal(f"the plugin has no capability {kind.name}", ErrorCodeTRT.INVALID_STATE)
        return face

    def _types(self, inputs: Sequence[DataType]) -> list[DataType]:
        build = self._face(PluginCapabilityType.BUILD)
        types = list(build.get_output_data_types(list(inputs)))
        require(len(types) == build.num_outputs, f"{len(types)} types for {build.num_outputs} outputs")
        for dtype in types:
            require(dtype not in {DataType.BOOL, DataType.UINT8}, f"an output of type {dtype.name}")
        return types

    def _shapes(self, extents: Sequence[Sequence[Any]], numbers: Sequence[Sequence[Any]]) -> list[list[IDimensionExpr]]:
        """The plugin's output extents from those of its inputs and the values of its shape inputs."""
        build = self._face(PluginCapabilityType.BUILD)
        given, shapes = (
            [DimsExprs([IDimensionExpr(number) for number in group]) for group in groups]
            for groups in (extents, numbers)
        )
        found = build.get_output_shapes(given, shapes, IExprBuilder())
        require(len(found) == build.num_outputs, f"{len(found)} shapes for {build.num_outputs} outputs")
        return [[shape[axis] for axis in range(len(shape))] for shape in found]

    def _known_facts(self, symbols: Symbols) -> tuple[Facts, ...] | None:
        data = [tensor for tensor in self._inputs[: self._data_inputs] if tensor is not None]
        hosts = [tensor for tensor in self._inputs[self._data_inputs :] if tensor is not None]
        types = self._types([tensor._dtype for tensor in data])
        shapes = self._shapes(
            [[symbols.integer(extent) for extent in tensor._extents or ()] for tensor in data],
            [[symbols.integer(number) for number in tensor._host or ()] for tensor in hosts],
        )
        found = []
        for dtype, shape in zip(types, shapes, strict=True):
            extents = tuple(
                symbols.create() if extent.is_size_tensor() else symbols.expression(extent._value) for extent in shape
            )
            found.append(Facts(extents, dtype, None))
        return tuple(found)

    def _check_complete(self) -> None:
        build = self._face(PluginCapabilityType.BUILD)
        tensors = [t for t in (*self._inputs[: self._data_inputs], *self._outputs) if t is not None]
        described = [DynamicPluginTensorDesc._of(tuple(t.shape), t.dtype) for t in tensors]
        self._formats = choose_formats(build, described, self._data_inputs)
        build.configure_plugin(described[: self._data_inputs], described[self._data_inputs :])

    def _memory(
        self, inputs: Sequence[Value | None]
    ) -> tuple[list[torch.Tensor], list[list[IDimensionExpr]], list[torch.Tensor]]:
        """The data, the output extents that the plugin says, and outputs as large as these can be."""
        values = [as_tensor(value) for value in inputs[: self._data_inputs] if value is not None]
        numbers = [host_numbers(value) for value in inputs[self._data_inputs :] if value is not None]
        shapes = self._shapes([tuple(value.shape) for value in values], numbers)
        types = [FROM_TORCH[value.dtype] for value in values]
        made = [self._carrier(dtype) for dtype in self._types(types)]
        device = values[0].device if values else self._device
        outputs = [
            torch.empty([extent._value for extent in shape], dtype=dtype, device=device)
            for shape, dtype in zip(shapes, made, strict=True)
        ]
        return values, shapes, outputs

    def _greatest(self, inputs: Sequence[Value | None]) -> Sequence[Value] | None:
        return self._memory(inputs)[2]

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        values, shapes, outputs = self._memory(inputs)
        device = values[0].device if values else self._device
        if device.type == "meta":
            if any(extent.is_size_tensor() for shape in shapes for extent in shape):
                raise UnknownExtents("the extents of the plugin's outputs depend on data")
            return tuple(outputs)
        self._alias(values, outputs)
        self._enqueue(values, outputs, device)
        return tuple(self._cut(output, shape, outputs) for output, shape in zip(outputs, shapes, strict=True))

    def _alias(self, values: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        """Lets outputs share the memory of the inputs that they alias; the engine's own values stay as they are."""
        aliased_input = getattr(self._face(PluginCapabilityType.BUILD), "get_aliased_input", lambda output: -1)
        for at in range(len(outputs)):
            source = aliased_input(at)
            if source is not None and source >= 0:
                values[source] = outputs[at] = values[source].clone(memory_format=torch.contiguous_format)

    def _enqueue(self, inputs: list[torch.Tensor], outputs: list[torch.Tensor], device: torch.device) -> None:
        if self._running is None:
            runtime = self._face(PluginCapabilityType.RUNTIME)
            attached = runtime.attach_to_context(IPluginResourceContext())
            self._running = attached.get_capability_interface(PluginCapabilityType.RUNTIME)
        formats = self._formats or (TensorFormat.LINEAR,) * (len(inputs) + len(outputs))
        wanted = formats[: len(inputs)], formats[len(inputs) :]
        described = [
            [
                PluginTensorDesc._of(tuple(t.shape), FROM_TORCH[t.dtype], kind)
                for t, kind in zip(tensors, kinds, strict=True)
            ]
            for tensors, kinds in zip((inputs, outputs), wanted, strict=True)
        ]
        build = self._face(PluginCapabilityType.BUILD)
        dynamic = [[DynamicPluginTensorDesc._of(tuple(d.dims), d.type, d.format) for d in group] for group in described]
        size = int(build.get_workspace_size(*dynamic) or 0)
        workspace = torch.empty(size, dtype=torch.uint8, device=device)
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        given = [memory_for(t, kind, fill=True) for t, kind in zip(inputs, wanted[0], strict=True)]
        taken = [memory_for(t, kind, fill=False) for t, kind in zip(outputs, wanted[1], strict=True)]
        self._running.on_shape_change(*described)
        self._running.enqueue(
            *described,
            [TensorAddress(memory) for memory in given],
            [TensorAddress(memory) for memory in taken],
            workspace.data_ptr(),
            stream,
        )
        for memory, kind, tensor in zip(taken, wanted[1], outputs, strict=True):
            take_from(memory, kind, tensor)

    @staticmethod
    def _cut(output: torch.Tensor, shape: list[IDimensionExpr], outputs: list[torch.Tensor]) -> torch.Tensor:
        """An output in the extents that the plugin computed, in which it wrote its elements densely."""
        if not any(extent.is_size_tensor() for extent in shape):
            return output
        extents = [
            given if extent._size_tensor is None else int(outputs[extent._size_tensor[0]])
            for given, extent in zip(output.shape, shape, strict=True)
        ]
        return output.reshape(-1)[: math.prod(extents)].reshape(extents)

    def _nested(self, write: Callable[[ILayer], dict[str, Any]], id_of: Callable[[ITensor], int]) -> dict[str, Any]:
        core = self._face(PluginCapabilityType.CORE)
        return {
            "plugin": {
                "name": core.plugin_name,
                "version": core.plugin_version,
                "namespace": core.plugin_namespace,
                "data_inputs": self._data_inputs,
                "formats": [kind.name for kind in self._formats],
                **self._saved(),
            }
        }

    def _restore_nested(
        self, entry: Mapping[str, Any], read: Callable[[Mapping[str, Any]], ILayer], tensors: Mapping[int, ITensor]
    ) -> None:
        what = f"the plugin of layer {self._name!r}"
        saved = typed.fields(entry["plugin"], what, (*tables.PLUGIN, *self._SAVED))
        identity = [typed.text(saved[part], what) for part in ("name", "version", "namespace")]
        creator = get_plugin_registry().get_creator(*identity)
        if creator is None:
            raise Refusal(
                f"no creator is registered for plugin {saved['name']!r} version "
                f"{saved['version']!r} in namespace {saved['namespace']!r}",
                ErrorCodeTRT.INVALID_STATE,
            )
        self._plugin = self._recreated(creator, saved)
        self._data_inputs = typed.integer(saved["data_inputs"], f"the number of data inputs of {what}")
        self._formats = tuple(
            typed.member(TensorFormat, name, f"a format of {what}") for name in typed.items(saved["formats"], what)
        )

    def _saved(self) -> dict[str, Any]:
        """What a plan keeps of the plugin, as JSON."""
        raise NotImplementedError

    def _recreated(self, creator: Any, saved: Mapping[str, Any]) -> IPluginV3:
        """The plugin that a creator makes of what a plan kept."""
        raise NotImplementedError


class IPluginV3Layer(PluginLayer):
    """A plugin. Inputs: first those for data, then those for shapes, whose values the host knows."""

    _KIND = LayerType.PLUGIN_V3
    _SAVED = tables.PLUGIN_V3

    @property
    def plugin(self) -> IPluginV3:
        """The plugin."""
        return self._plugin

    def _saved(self) -> dict[str, Any]:
        fields = self._face(PluginCapabilityType.RUNTIME).get_fields_to_serialize()
        return {"fields": [field._to_json() for field in fields]}

    def _recreated(self, creator: Any, saved: Mapping[str, Any]) -> IPluginV3:
        fields = PluginFieldCollection_(
            PluginFieldCollection(PluginField._from_json(entry) for entry in typed.items(saved["fields"], "fields"))
        )
        made: IPluginV3
        if isinstance(creator, IPluginCreatorV3Quick):
            request = QuickPluginCreationRequest.PREFER_JIT
            made = creator.create_plugin(saved["name"], saved["namespace"], fields, TensorRTPhase.RUNTIME, request)
        else:
            made = creator.create_plugin(saved["name"], fields, TensorRTPhase.RUNTIME)
        return made
