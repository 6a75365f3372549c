"""PyTorch operators inside engines: plugins in Python that call the operator.

Engines hold such plugins by name, so a process that runs one needs the operator and what is here, and nothing of what
built it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any, Final

import torch

from trt_core import trt
from trt_core.dtypes import from_trt, parse_dtype, to_trt
from trt_core.internals import OpOverload
from trt_core.provider import provider_module
from trt_core.sizes.expressions import Extent

VERSION: Final = "1"


def has_plugin(name: str) -> bool:
    """Whether the provider in use knows a plugin.

    Args:
        name: `library::name`: an operator, or a plugin's namespace and name.
    """
    registry = trt.get_plugin_registry()
    if registry.get_creator(name, VERSION, "") is not None:
        return True
    namespace, own = split_name(name)
    return any(creator.name == own and creator.plugin_namespace == namespace for creator in registry.all_creators)


def split_name(name: str) -> tuple[str, str]:
    """Returns the namespace of a plugin, which may be empty, and its name there."""
    namespace, _, own = name.partition("::")
    return (namespace, own) if own else ("", name)


def plugins_in(network: Any) -> set[str]:
    """Returns the plugins that a network holds, each as `namespace::name`, or as its name where it has no namespace."""
    names = set()
    layers = (network.get_layer(place) for place in range(network.num_layers))
    for layer in layers:
        if layer.type != trt.LayerType.PLUGIN_V3:
            continue
        if not hasattr(layer, "plugin"):
            layer.__class__ = trt.IPluginV3Layer  # TensorRT's bindings return layers as what all are
        core = layer.plugin.get_capability_interface(trt.PluginCapabilityType.CORE)
        namespace, name = (getattr(core, part, "") for part in ("plugin_namespace", "plugin_name"))
        names.add(f"{namespace}::{name}" if namespace else name)
    return names - {""}


def register_operator(op: OpOverload) -> Any:
    """Returns the plugin creator of an operator, made and registered with the provider in use when there is none.

    Args:
        op: A functional operator with a fake implementation.
    """
    known = trt.get_plugin_registry().get_creator(op.name(), VERSION, "")
    if known is not None:
        return known
    made = _plugin_classes(provider_module())[1](op)
    trt.get_plugin_registry().register_creator(made, "")
    return made


def plugin_of(op: OpOverload, call: PluginCall) -> Any:
    """Returns a plugin that makes one call of an operator, for the provider in use."""
    return _plugin_classes(provider_module())[0](op, call)


@functools.lru_cache(maxsize=2)
def _plugin_classes(api: ModuleType) -> tuple[Any, Any]:
    """The plugin and its creator, whose bases are known once the provider is."""

    # the bases are known at run time
    class OperatorPlugin(
        api.IPluginV3,  # type: ignore[misc, name-defined]
        api.IPluginV3OneCore,  # type: ignore[misc, name-defined]
        api.IPluginV3OneBuild,  # type: ignore[misc, name-defined]
        api.IPluginV3OneRuntime,  # type: ignore[misc, name-defined]
    ):
        """Runs one call of an operator."""

        def __init__(self, op: OpOverload, call: PluginCall) -> None:
            for base in (api.IPluginV3, api.IPluginV3OneCore, api.IPluginV3OneBuild, api.IPluginV3OneRuntime):
                base.__init__(self)
            self.op, self.call = op, call
            self.plugin_name, self.plugin_version, self.plugin_namespace = op.name(), VERSION, ""
            self.num_outputs = len(call.output_types)
            # TensorRT refers to the bytes of a field, and the collection to the field: both stay as long as the plugin
            self._content = call.to_bytes()
            self._field = api.PluginField("call", self._content, api.PluginFieldType.CHAR)
            self._fields = api.PluginFieldCollection([self._field])

        def get_capability_interface(self, type: Any) -> Any:  # noqa: A002 - TensorRT's name
            return self

        def clone(self) -> OperatorPlugin:
            return OperatorPlugin(self.op, self.call)

        def attach_to_context(self, resource_context: Any) -> OperatorPlugin:
            return self.clone()

        def get_fields_to_serialize(self) -> Any:
            return self._fields

        def get_output_data_types(self, input_types: Sequence[Any]) -> list[Any]:
            return [to_trt(parse_dtype(name)) for name in self.call.output_types]

        def get_output_shapes(self, inputs: Sequence[Any], shape_inputs: Sequence[Any], expr_builder: Any) -> list[Any]:
            return [api.DimsExprs(shape) for shape in plugin_extents(self.call, inputs, expr_builder)]

        def supports_format_combination(self, pos: int, in_out: Sequence[Any], num_inputs: int) -> bool:
            wanted = parse_dtype((*self.call.input_types, *self.call.output_types)[pos])
            described = in_out[pos].desc
            return bool(described.format == api.TensorFormat.LINEAR and described.type == to_trt(wanted))

        def configure_plugin(self, in_: Sequence[Any], out: Sequence[Any]) -> None:
            """Needs nothing: the call says everything."""

        def on_shape_change(self, in_: Sequence[Any], out: Sequence[Any]) -> None:
            """Needs nothing: the operator sees the tensors."""

        def enqueue(
            self,
            input_desc: Sequence[Any],
            output_desc: Sequence[Any],
            inputs: Sequence[int],
            outputs: Sequence[int],
            workspace: int,
            stream: int,
        ) -> None:
            given = [_memory(address, described) for address, described in zip(inputs, input_desc, strict=True)]
            wanted = [_memory(address, described) for address, described in zip(outputs, output_desc, strict=True)]
            tensors = dict(zip(self.call.tensors, given, strict=True))
            with torch.no_grad(), _on_stream(stream):
                made = self.op(**self.call.constants, **tensors)
                for target, value in zip(wanted, made if isinstance(made, (tuple, list)) else (made,), strict=True):
                    target.copy_(value)

    class OperatorPluginCreator(api.IPluginCreatorV3One):  # type: ignore[misc, name-defined]
        """Makes the plugins of one operator."""

        def __init__(self, op: OpOverload) -> None:
            api.IPluginCreatorV3One.__init__(self)
            self.op = op
            self.name, self.plugin_version, self.plugin_namespace = op.name(), VERSION, ""
            self.field_names = api.PluginFieldCollection([api.PluginField("call")])

        def create_plugin(self, name: str, field_collection: Any, phase: Any) -> OperatorPlugin:
            return OperatorPlugin(self.op, PluginCall.from_bytes(bytes(field_collection[0].data)))

    return OperatorPlugin, OperatorPluginCreator


def _memory(address: int, described: Any) -> torch.Tensor:
    """The tensor at an address that TensorRT hands to a plugin."""
    known = getattr(address, "tensor", None)
    if isinstance(known, torch.Tensor):  # the portable provider gives the memory itself
        return known
    dtype, shape = from_trt(described.type), tuple(described.dims)
    if math.prod(shape) == 0:
        return torch.empty(shape, dtype=dtype, device="cuda")
    memory = _DeviceBytes(int(address), math.prod(shape) * dtype.itemsize)
    return torch.as_tensor(memory, device="cuda").view(dtype).reshape(shape)


class _DeviceBytes:
    """Bytes on the current GPU, in the interface that PyTorch reads addresses from."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def _on_stream(stream: int) -> contextlib.AbstractContextManager[Any]:
    if not stream or not torch.cuda.is_available():
        return contextlib.nullcontext()
    return torch.cuda.stream(torch.cuda.ExternalStream(stream))


@dataclass(frozen=True)
class PluginCall:
    """One call of an operator.

    Attributes:
        constants: Arguments that are no tensors, by parameter name.
        tensors: Parameters that are tensors, in the order of the plugin's inputs.
        input_types: Types of those tensors, by name.
        output_types: Types of the results, by name.
        output_shapes: Extents of the results; see `trt_core.sizes.expressions`.
        symbols: Where the symbols of those extents are read: input and axis.
    """

    constants: Mapping[str, Any]
    tensors: Sequence[str]
    input_types: Sequence[str]
    output_types: Sequence[str]
    output_shapes: Sequence[Sequence[Extent]]
    symbols: Mapping[str, Sequence[int]]

    def to_bytes(self) -> bytes:
        """Returns the call as JSON, which plans carry."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> PluginCall:
        """Reads what `to_bytes` wrote."""
        return cls(**json.loads(data))


_MOST_POWER: Final = 64


def plugin_extents(call: PluginCall, inputs: Sequence[Any], builder: Any) -> list[list[Any]]:
    """Returns the extents of the results as expressions of TensorRT.

    Args:
        call: The call.
        inputs: `trt.DimsExprs` of the inputs.
        builder: The `trt.IExprBuilder`.
    """
    read = {name: inputs[index][axis] for name, (index, axis) in call.symbols.items()}
    return [[_expression(extent, read, builder) for extent in shape] for shape in call.output_shapes]


def _expression(extent: Extent, read: Mapping[str, Any], builder: Any) -> Any:
    if isinstance(extent, int):
        return builder.constant(extent)
    if isinstance(extent, str):
        return read[extent]
    assert isinstance(extent, list)  # extents that depend on data are refused
    name, *operands = extent
    if name == "pow":
        base, exponent = operands
        if type(exponent) is not int or not 0 <= exponent <= _MOST_POWER:  # a plan may say so
            raise ValueError(f"the exponent {exponent!r:.40} of an extent is not between 0 and {_MOST_POWER}")
        factors = [_expression(base, read, builder)] * exponent if exponent else [builder.constant(1)]
        return functools.reduce(functools.partial(builder.operation, trt.DimensionOperation.PROD), factors)
    values = [_expression(operand, read, builder) for operand in operands]
    if name == "mod":
        return _remainder(values[0], values[1], builder)
    operations = trt.DimensionOperation
    operation = {
        "add": operations.SUM,
        "mul": operations.PROD,
        "floordiv": operations.FLOOR_DIV,
        "ceildiv": operations.CEIL_DIV,
        "max": operations.MAX,
        "min": operations.MIN,
    }[name]
    return functools.reduce(lambda left, right: builder.operation(operation, left, right), values)


def _remainder(value: Any, divisor: Any, builder: Any) -> Any:
    operations = trt.DimensionOperation
    quotient = builder.operation(operations.FLOOR_DIV, value, divisor)
    return builder.operation(operations.SUB, value, builder.operation(operations.PROD, quotient, divisor))
